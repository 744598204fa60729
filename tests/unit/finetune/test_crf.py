"""Sequences of tags: the conditional random field and the best legal sequence against enumeration,
and the tagger that a language model joins.
"""

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from seqeval.scheme import IOB2, IOBES, Tokens

from rungwise.core.errors import ConfigError
from rungwise.finetune import evaluate, finetune, restore
from rungwise.finetune.model import Tagger, TaskModel, describe
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import Tagged, TaskInfo
from rungwise.tasks.kinds.heads import CrfHead, Rows
from rungwise.tasks.kinds.items import Item, Row
from rungwise.tasks.kinds.kind import Outputs, Reading
from rungwise.tasks.kinds.tagging import Transitions
from tests.toy_tasks import config_of, stand_in, toy_data

C, WIDTH = 3, 5
WORDS = (4, 1, 3)  # of the rows that have any


def field() -> tuple[CrfHead, Rows, torch.Tensor, torch.Tensor]:
    """A head with random scores in double precision, its rows, the second without words, the states
    and the tags of the words."""
    torch.manual_seed(0)
    head = CrfHead(WIDTH, C, 0.0).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn_like(parameter))
    row_W = torch.tensor([0] * 4 + [2] + [3] * 3)
    rows = Rows(None, torch.arange(4), 4, row_W, torch.tensor([0, 2, 3, 5, 1, 1, 2, 3]))
    return head, rows, torch.randn(4, 6, WIDTH).double(), torch.randint(C, (8,))


def scores(head: CrfHead, emissions: np.ndarray) -> dict[tuple[int, ...], float]:
    """The score of every sequence of tags of one row."""
    first, follow, last = (getattr(head, n).detach().numpy() for n in ("first", "follow", "last"))
    return {
        tags: first[tags[0]]
        + sum(emissions[n, tag] for n, tag in enumerate(tags))
        + sum(follow[pair] for pair in itertools.pairwise(tags))
        + last[tags[-1]]
        for tags in itertools.product(range(C), repeat=len(emissions))
    }


def test_partition_loss_and_marginals_are_those_of_all_sequences() -> None:
    """All 81 sequences of three tags over four words, and those of the shorter rows."""
    head, rows, states, tags = field()
    emissions = head.train()(states, rows)
    logits = head.eval()(states, rows).detach()
    partitions = head.log_partition(emissions, rows)
    loss, begin = 0.0, 0
    for number, words in enumerate(WORDS):
        part = slice(begin, begin + words)
        each = scores(head, emissions[part].detach().numpy())
        partition = np.logaddexp.reduce(list(each.values()))
        assert partitions[number].item() == pytest.approx(partition, rel=1e-12)
        loss += partition - each[tuple(tags[part].tolist())]
        for word, tag in itertools.product(range(words), range(C)):
            share = sum(np.exp(s - partition) for path, s in each.items() if path[word] == tag)
            assert logits[part][word, tag].exp().item() == pytest.approx(share, rel=1e-9)
        begin += words
    found = head.loss(emissions, rows, tags)
    assert found.item() == pytest.approx(loss, rel=1e-12)
    assert torch.autograd.gradcheck(
        lambda e: head.loss(e, rows, tags), (emissions.detach().requires_grad_(),)
    )


def test_without_scores_between_tags_it_is_a_softmax_for_each_word() -> None:
    head, rows, states, _ = field()
    with torch.no_grad():
        for parameter in (head.first, head.follow, head.last):
            parameter.zero_()
    expected = head.train()(states, rows).log_softmax(-1)
    torch.testing.assert_close(head.eval()(states, rows), expected)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_language_model_of_zeros_leaves_the_tagger_as_it_is_bit_for_bit(after: int) -> None:
    """The weights that read the states are its only others."""
    torch.manual_seed(1)
    sizes = (7, 20, 8, 6, 2)
    joined, plain = (Tagger(*sizes, join, 0.0).double() for join in (after, None))
    layers = _layers(joined)
    with torch.no_grad():
        for one, other in zip(_layers(plain), layers, strict=True):
            for name, value in one.items():
                value.copy_(other[name][..., : value.shape[-1]])
        plain.embedding.weight.copy_(joined.embedding.weight)
    ids, lengths = torch.randint(20, (3, 9)), torch.tensor([9, 2, 5])
    states = torch.randn(3, 9, 7).double()
    expected = plain(states, lengths, ids)
    found = joined(torch.zeros_like(states), lengths, ids)
    assert torch.equal(found[..., : expected.shape[-1]], expected)
    assert not torch.equal(joined(states, lengths, ids), found), "the states are read"
    assert joined.out == found.shape[-1] == (19 if after == 2 else 12)


def _layers(tagger: Tagger) -> list[dict[str, Any]]:
    """The weights of each layer by name, lowest first, whichever part holds it."""
    layers = []
    for part in filter(None, (tagger.below, tagger.above)):
        for number in range(part.lstm.num_layers):
            named = part.lstm.named_parameters()
            layers.append({n.replace(f"_l{number}", ""): v for n, v in named if f"_l{number}" in n})
    return layers


def test_a_tagger_with_a_field_learns_and_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    top = {
        "kind": "bilstm",
        "num_layers": 2,
        "hidden_size": 8,
        "embedding_size": 6,
        "states_after": 1,
    }
    config = config_of(crf=True, top=top, adaptation={"kind": "frozen"}, epochs=12, dropout=0.0)
    data = toy_data("tagging")
    model = finetune(config, data, seed=0)
    assert isinstance(model.head, CrfHead)
    assert isinstance(model.top, Tagger)
    scores = evaluate(model, data, "test")
    assert scores.metrics["accuracy"] > 0.9
    again = restore(describe(model), model.state_dict())
    assert evaluate(again, data, "test").loss == scores.loss
    with pytest.raises(ConfigError, match=r"finetune\.crf is true, which is for tagging"):
        finetune(config_of(crf=True), toy_data("classification"), seed=0)


def test_layers_may_be_read_side_by_side() -> None:
    data = toy_data("classification")
    config = config_of(adaptation={"kind": "features", "layers": [0, 2], "combine": "join"})
    model = TaskModel(config, data.info, data.pretrained).eval()
    ids = torch.randint(20, (2, 5))
    layers = model.encoder.layers(ids)
    torch.testing.assert_close(model.states(ids, None, None), torch.cat((layers[0], layers[2]), -1))
    assert model.head.linear.in_features == 32


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
