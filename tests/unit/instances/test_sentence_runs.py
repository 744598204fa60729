"""Runs of consecutive sentences: whole, in order, within documents; what is left out is counted."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rungwise.core.errors import DataError
from rungwise.instances.batch import SentenceRuns
from rungwise.instances.kind import Facts
from rungwise.instances.masking import Vocabulary
from rungwise.instances.sentence_runs import SentenceRunsConfig
from rungwise.instances.shards import Shard, pad_rows
from rungwise.tokenizer import SpecialIds
from tests.corpora import text_of

END = 3
SPECIAL = SpecialIds(end=END, ids=(0, END))
FACTS = Facts("s", 60_000, SPECIAL, 0)
DOCUMENTS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=14), min_size=1, max_size=9)


def read(config: SentenceRunsConfig, shard: Shard) -> SentenceRuns[NDArray[Any]]:
    rows = np.arange(len(shard))
    return config.batch(
        pad_rows(shard, rows, rows, config.width, 0), rows, 0, Vocabulary(60_000, SPECIAL)
    )


def runs_of(config: SentenceRunsConfig, shard: Shard) -> list[list[tuple[int, list[int]]]]:
    """The sentences of each run, with the number of their document in it."""
    batch = read(config, shard)
    return [
        [
            (int(batch.document[row, place]), batch.ids[row, place, :length].tolist())
            for place, length in enumerate(batch.lengths[row].tolist())
            if length
        ]
        for row in range(len(shard))
    ]


def test_two_documents_worked_by_hand() -> None:
    """Sentences 10 | 11 12 13 | 14 15 and 16 17 | 18; at most two tokens, two sentences a run."""
    text, rng = text_of([[1, 3, 2], [2, 1]]), np.random.default_rng(0)
    config = SentenceRunsConfig(sentences=3, sentence_length=2)
    built = config.build(text, SPECIAL, rng)
    assert built.shard.ids.tolist() == [10, END, 11, 12, END, 14, 15, END, 16, 17, END, 18, END]
    assert built.shard.offsets.tolist() == [0, 8, 13]
    assert (built.counts["sentences_cut"], built.counts["tokens_unused"]) == (1, 1)
    assert runs_of(config, built.shard) == [
        [(1, [10]), (1, [11, 12]), (1, [14, 15])],
        [(1, [16, 17]), (1, [18])],
    ]
    packed = SentenceRunsConfig(sentences=4, sentence_length=2, packed=True)
    built = packed.build(text, SPECIAL, rng)
    assert runs_of(packed, built.shard) == [
        [(1, [10]), (1, [11, 12]), (1, [14, 15]), (2, [16, 17])],
        [(1, [18])],
    ]
    assert built.counts["sentences_alone"] == 2
    assert built.shard.ids[:11].tolist() == [10, END, 11, 12, END, 14, 15, END, END, 16, 17]


@given(DOCUMENTS, st.integers(2, 6), st.integers(1, 9), st.booleans(), st.integers(1, 9))
@settings(max_examples=200)
def test_every_sentence_is_in_one_run_in_order_or_counted(
    lengths: list[list[int]], R: int, L: int, packed: bool, planned: int
) -> None:
    planned = min(planned, len(lengths))
    text = text_of(lengths)
    config = SentenceRunsConfig(sentences=R, sentence_length=L, packed=packed)
    built = config.build(text, SPECIAL, np.random.default_rng(0), planned)
    shard, counts = built.shard, built.counts
    checked = config.check(shard, FACTS)
    document_of = {
        int(text.starts[sentence]) + 10: document
        for document in range(planned)
        for sentence in range(text.first_sentence[document], text.first_sentence[document + 1])
    }
    runs = runs_of(config, shard)
    used: list[int] = []
    for run in runs:
        documents = [document_of[ids[0]] for _, ids in run]
        assert len(run) <= R
        assert packed or (len(run) > 1 and len(set(documents)) == 1)
        # Numbers within the run change where the document does.
        assert [number for number, _ in run] == (
            1 + np.unique(documents, return_inverse=True)[1]
        ).tolist()
        for _, ids in run:
            place = np.searchsorted(text.starts, ids[0] - 10)
            whole = int(text.starts[place + 1] - text.starts[place])
            assert ids == list(range(ids[0], ids[0] + min(whole, L)))
            used.append(ids[0])
    assert used == sorted(set(used))
    missing = len(document_of) - len(used)
    assert missing == (0 if packed else counts["sentences_alone"])
    assert checked["sentences"] == len(used)
    assert counts["text_tokens"] == sum(sum(document) for document in lengths[:planned])
    assert counts["tokens_unused"] == counts["text_tokens"] - checked["sentence_tokens"]
    assert counts["documents_of_one_sentence"] == sum(len(d) == 1 for d in lengths[:planned])
    if packed:
        assert all(len(run) == R for run in runs[:-1])
    statistics = config.statistics({"documents": planned, **counts, **checked})
    assert 0 <= statistics["fill"] <= 1


@pytest.mark.parametrize(
    ("places", "tokens", "message"),
    [
        ([2], [77], r"\[END\] must be exactly 15"),
        ([0], [END], r"\[END\] must be exactly 15"),
        ([0, 2], [END, 77], "sentences with a token must be exactly 15"),
        ([5, 6], [END, 77], "tokens of a sentence must be at most 4"),
        ([10, 11], [END, 77], "runs that do not end with the end symbol must be exactly 0"),
    ],
)
def test_a_broken_run_is_caught(places: list[int], tokens: list[int], message: str) -> None:
    config = SentenceRunsConfig(sentences=3, sentence_length=4)
    shard = config.build(text_of([[2, 3, 4]] * 5), SPECIAL, np.random.default_rng(0)).shard
    ids = shard.ids.copy()
    ids[places] = tokens
    with pytest.raises(DataError, match=message):
        config.check(dataclasses.replace(shard, ids=ids), FACTS)
