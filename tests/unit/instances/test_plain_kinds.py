"""Kinds without masks: packed causal blocks, runs of sentences, documents. Every token is read once
and in order, or is counted as left out."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rungwise.core.errors import DataError
from rungwise.core.tokens import SpecialIds
from rungwise.instances.kind import Facts, Kind
from rungwise.instances.masking import Vocabulary
from rungwise.instances.shards import Shard, pad_rows
from rungwise.instances.texts import CausalConfig, DocumentRowsConfig, SentenceRunsConfig
from tests.corpora import text_of

END = 3
SPECIAL = SpecialIds(end=END, ids=(0, END))
FACTS = Facts("s", 60_000, SPECIAL, 0)
DOCUMENTS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=14), min_size=1, max_size=9)
LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=12)  # of documents of one sentence


def read(config: Kind, shard: Shard, rows: Any = None) -> Any:
    rows = np.arange(len(shard)) if rows is None else rows
    padded = pad_rows(shard, rows, rows, config.width, 0)
    return config.batch(padded, rows, 0, Vocabulary(60_000, SPECIAL))


def test_two_documents_as_blocks_worked_by_hand() -> None:
    """[END] 10 11 12 [END] 13 14 [END] in blocks of three."""
    config, text = CausalConfig(sequence_length=3), text_of([[3], [2]])
    batch = read(config, config.build(text, SPECIAL, np.random.default_rng(0)).shard)
    assert batch.ids.tolist() == [[3, 10, 11], [12, 3, 13], [14, 3, 0]]
    assert batch.targets.tolist() == [[10, 11, 12], [3, 13, 14], [3, 0, 0]]
    assert batch.weights.tolist() == [[1, 1, 1], [1, 1, 1], [1, 0, 0]]
    assert batch.document.tolist() == [[1, 1, 1], [0, 1, 1], [0, 1, 1]]
    assert batch.positions.tolist() == [[0, 1, 2], [0, 0, 1], [0, 0, 1]]


@given(LENGTHS, st.integers(2, 40))
@settings(max_examples=60)
def test_every_token_is_predicted_once_from_its_own_document(lengths: list[int], size: int) -> None:
    config, text = CausalConfig(sequence_length=size), text_of([[length] for length in lengths])
    built = config.build(text, SPECIAL, np.random.default_rng(0))
    counts = config.check(built.shard, FACTS)
    assert counts["predicted"] == sum(lengths) + len(lengths)
    assert counts["ends"] == len(lengths) + 1
    assert config.statistics(counts | built.counts)["fill"] <= 1
    batch = read(config, built.shard)
    real = batch.weights > 0
    predicted = batch.targets[real].tolist()
    expected, token = [], 10
    for length in lengths:
        expected += [*range(token, token + length), END]
        token += length
    assert predicted == expected
    # What a position may see, with its target, is a run of one document from where the block or
    # the document begins.
    owner = {END: -1} | {
        token: number
        for number, (begin, length) in enumerate(
            zip(10 + np.cumsum([0, *lengths[:-1]]), lengths, strict=True)
        )
        for token in range(int(begin), int(begin) + length)
    }
    for row, position in np.argwhere(real):
        seen = batch.document[row] == batch.document[row, position]
        seen[position + 1 :] = False
        assert seen.sum() == batch.positions[row, position] + 1
        owners = {owner[token] for token in batch.ids[row, seen].tolist()} - {-1}
        owners |= {owner[int(batch.targets[row, position])]} - {-1}
        assert len(owners) <= 1


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


def test_two_documents_as_runs_worked_by_hand() -> None:
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
@settings(max_examples=60)
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
    if packed:
        assert all(len(run) == R for run in runs[:-1])
    statistics = config.statistics({"documents": planned, **counts, **checked})
    assert 0 <= statistics["fill"] <= 1


RUNS = SentenceRunsConfig(sentences=3, sentence_length=4)
BLOCKS = CausalConfig(sequence_length=4)


@pytest.mark.parametrize(
    ("config", "places", "tokens", "message"),
    [
        (RUNS, [2], [77], r"\[END\] must be exactly 15"),
        (RUNS, [0], [END], r"\[END\] must be exactly 15"),
        (RUNS, [0, 2], [END, 77], "sentences with a token must be exactly 15"),
        (RUNS, [5, 6], [END, 77], "tokens of a sentence must be at most 4"),
        (RUNS, [10, 11], [END, 77], "runs that do not end with the end symbol must be exactly 0"),
        (BLOCKS, [5], [77], "begin with the last token of the one before"),
        (BLOCKS, [0], [77], "framed by end symbols"),
    ],
)
def test_a_broken_row_is_caught(
    config: Kind, places: list[int], tokens: list[int], message: str
) -> None:
    shard = config.build(text_of([[2, 3, 4]] * 5), SPECIAL, np.random.default_rng(0)).shard
    ids = shard.ids.copy()
    ids[places] = tokens
    with pytest.raises(DataError, match=message):
        config.check(dataclasses.replace(shard, ids=ids), FACTS)


@given(DOCUMENTS, st.integers(1, 30), st.integers(1, 12), st.integers(1, 4), st.data())
@settings(max_examples=50)
def test_rows_of_documents_are_those_of_a_slow_builder(
    lengths: list[list[int]], most: int, planned: int, bins: int, data: Any
) -> None:
    planned = min(planned, len(lengths))
    expected, begin = [], 10
    for document in lengths[:planned]:
        expected.append(list(range(begin, begin + sum(document)))[:most])
        begin += sum(document)
    config = DocumentRowsConfig(sequence_length=most)
    built = config.build(text_of(lengths), SPECIAL, np.random.default_rng(0), planned)
    counts = built.counts | config.check(built.shard, FACTS)
    whole = [sum(document) for document in lengths[:planned]]
    assert counts["instances"] == planned
    assert counts["text_tokens"] == sum(whole)
    assert counts["tokens_unused"] == sum(whole) - sum(map(len, expected))
    assert counts["documents_cut"] == sum(length > most for length in whole)
    assert built.shard.columns["document"].tolist() == list(range(10, 10 + planned))
    assert 0 < config.statistics(counts)["fill"] <= 1
    # In any order, each row as often as it is asked for.
    rows = np.array(data.draw(st.lists(st.integers(0, planned - 1), min_size=1, max_size=9)))
    batch = read(config, built.shard, rows)

    def documents(part: Any) -> list[list[int]]:
        padding = np.arange(part.ids.shape[1]) >= part.lengths[:, None]
        assert not part.ids[padding].any()
        return [ids[:n].tolist() for ids, n in zip(part.ids, part.lengths.tolist(), strict=True)]

    assert documents(batch) == [expected[row] for row in rows]
    parts = list(batch.micro_batches(min(bins, len(rows)), False))
    assert sorted(row for part in parts for row in documents(part)) == sorted(documents(batch))
    assert all(part.ids.shape[1] < part.lengths.max() + 8 for part in parts)
    (fixed,) = batch.micro_batches(1, True)
    assert fixed.ids.shape == (len(rows), most)
