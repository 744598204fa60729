"""The legal sequence of tags with the highest score, against all sequences that seqeval finds
legal."""

import itertools
from functools import cache

import numpy as np
import pytest
from seqeval.scheme import IOB2, IOBES, Tokens

from rungwise.core.errors import ConfigError
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import Tagged, TaskInfo
from rungwise.tasks.kinds.items import Item, Row
from rungwise.tasks.kinds.kind import Outputs, Reading
from rungwise.tasks.kinds.tagging import Transitions

LABELS = {
    IOB2: ("O", "B-X", "I-X", "B-Y", "I-Y"),
    IOBES: ("S-X", "O", "B-X", "I-X", "E-X", "S-Y", "E-Y", "B-Y"),
}


def written(tags: tuple[str, ...], scheme: type) -> list[str]:
    """The tags that the entities of a sentence have, as seqeval's strict mode finds them."""
    again = ["O"] * len(tags)
    for entity in Tokens(list(tags), scheme).entities:
        length = entity.end - entity.start
        marks = ["B", *["I"] * (length - 1)]
        if scheme is IOBES:
            marks = ["S"] if length == 1 else [*marks[:-1], "E"]
        again[entity.start : entity.end] = [f"{mark}-{entity.tag}" for mark in marks]
    return again


@cache
def legal(scheme: type, words: int) -> list[tuple[int, ...]]:
    """All sequences of labels of which nothing is lost when they are read as entities."""
    labels = LABELS[scheme]
    sequences = itertools.product(range(len(labels)), repeat=words)
    named = ((each, tuple(labels[tag] for tag in each)) for each in sequences)
    return [each for each, tags in named if written(tags, scheme) == list(tags)]


@pytest.mark.parametrize(
    ("scheme", "words"), [(IOB2, 1), (IOB2, 2), (IOB2, 4), (IOBES, 1), (IOBES, 2), (IOBES, 3)]
)
def test_the_best_is_that_of_all_legal_sequences(scheme: type, words: int) -> None:
    rng = np.random.default_rng(words)
    labels, allowed = LABELS[scheme], np.array(legal(scheme, words))
    transitions = Transitions.of(labels)
    changed = 0
    for _ in range(50):
        logits_WC = 3 * rng.normal(size=(words, len(labels)))
        scores = logits_WC[np.arange(words), allowed].sum(axis=1)
        best = transitions.best(logits_WC)
        assert best == allowed[scores.argmax()].tolist()
        changed += best != logits_WC.argmax(axis=1).tolist()
    assert 0 < changed < 50


def test_a_sentence_is_legal_over_the_rows_that_it_goes_on_in() -> None:
    info = TaskInfo("tagging", LABELS[IOB2], False, "f1")
    row = Row((1, 2, 3), (0, 0, 0), 2)
    items = [Item((row,), 0, None, (1,)), Item((row,), 0, None, (1,), 1), Item((row,), 1)]
    first, second = np.array([[5.0, 4, 0, 0, 0]]), np.array([[0.0, 0, 3, 0, 0]])
    examples = [Tagged("1", ("a", "b")), Tagged("2", ())]
    outputs = Outputs([first, second, np.zeros((0, 5))], items, examples)
    for legal_tags, tags in ((False, ["O", "I-X"]), (True, ["B-X", "I-X"])):
        predictions = task_kind(info, Reading(legal_tags=legal_tags)).decode(outputs, {})
        assert [each["tags"] for each in predictions] == [tags, []]


@pytest.mark.parametrize(
    ("labels", "tag"),
    [(("O", "I-X", "B-Y", "I-Y"), "I-X"), (("O", "B-X", "S-X"), "B-X"), (("O", "E-X"), "E-X")],
)
def test_a_tag_that_no_sequence_can_have_is_named(labels: tuple[str, ...], tag: str) -> None:
    with pytest.raises(ConfigError, match=rf"finetune\.legal_tags is true, .* the tag '{tag}'"):
        Transitions.of(labels)
