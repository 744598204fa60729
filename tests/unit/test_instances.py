"""Masked instances: pairs and blocks as the papers have them, held to their contract."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rungwise.core.config import validate
from rungwise.core.context import Context
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.storage import Folder
from rungwise.core.summary import PerSplit
from rungwise.instances import frame, masked_blocks, masked_pairs, sentence_order, shards
from rungwise.instances.contract import Facts
from rungwise.instances.masked_blocks import MaskedBlocksConfig
from rungwise.instances.masked_pairs import MaskedPairsConfig
from rungwise.instances.rows import joined, padded
from rungwise.instances.sentence_order import SentenceOrderConfig
from rungwise.instances.stage import build_instances
from rungwise.instances.text import Built, Draws, ranges
from rungwise.tokenizer import CLS_ID, MASK_ID, PAD_ID, SEP_ID, UNK_ID, SpecialIds
from rungwise.tokens.stage import entropy
from rungwise.tokens.summary import TokensSummary
from rungwise.tokens.text import TokenisedText
from tests.summaries import standing

VOCAB = 1000
SPECIAL = SpecialIds(
    pad=PAD_ID,
    unk=UNK_ID,
    cls=CLS_ID,
    sep=SEP_ID,
    mask=MASK_ID,
    end=SEP_ID,
    ids=(PAD_ID, UNK_ID, CLS_ID, SEP_ID, MASK_ID),
)


def text_of(lengths: list[list[int]], units: bool = False) -> TokenisedText:
    """Documents with sentences of these lengths; every token of document d is 10 + d."""
    flat = [length for document in lengths for length in document]
    ids = [
        10 + d for d, document in enumerate(lengths) for length in document for _ in range(length)
    ]
    return TokenisedText(
        ids=np.array(ids, dtype=np.uint16),
        starts=np.concatenate([[0], np.cumsum(flat)]).astype(np.int64),
        first_sentence=np.concatenate([[0], np.cumsum([len(d) for d in lengths])]).astype(np.int64),
        documents=np.arange(10, 10 + len(lengths), dtype=np.uint64),
        unit_starts=np.arange(len(ids)) % 3 == 0 if units else None,
    )


def numbered(text: TokenisedText) -> TokenisedText:
    """The same with every token different: 10, 11, 12, ..."""
    return dataclasses.replace(text, ids=np.arange(10, 10 + len(text.ids), dtype=np.uint16))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


def pairs(text: TokenisedText, length: int, short_rate: float = 0.1, seed: int = 0) -> Built:
    config = MaskedPairsConfig.model_construct(sequence_length=length, short_rate=short_rate)
    return masked_pairs.build(text, config, SPECIAL, rng(seed))


def blocks(text: TokenisedText, length: int, short_rate: float = 0.1, seed: int = 0) -> Built:
    config = MaskedBlocksConfig.model_construct(sequence_length=length, short_rate=short_rate)
    return masked_blocks.build(text, config, SPECIAL, rng(seed))


def ordered(text: TokenisedText, length: int, short_rate: float = 0.1, seed: int = 0) -> Built:
    config = SentenceOrderConfig.model_construct(sequence_length=length, short_rate=short_rate)
    return sentence_order.build(text, config, SPECIAL, rng(seed))


def row_of(shard: shards.Shard, row: int) -> np.ndarray:
    return shard.ids[shard.offsets[row] : shard.offsets[row + 1]]


DOCUMENTS = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=20), min_size=2, max_size=12)


@given(DOCUMENTS, st.integers(8, 64), st.floats(0, 1), st.integers(0, 99))
@settings(max_examples=200, deadline=None)
def test_every_pair_is_framed_fits_and_takes_b_from_where_its_label_says(
    lengths: list[list[int]], sequence_length: int, short_rate: float, seed: int
) -> None:
    built = pairs(text_of(lengths), sequence_length, short_rate, seed)
    shard = built.shard
    hashes = {10 + number: 10 + number for number in range(len(lengths))}
    for row in range(len(shard)):
        ids = row_of(shard, row)
        columns = {name: values[row] for name, values in shard.columns.items()}
        a = ids[: columns["a_length"]]
        b = ids[columns["a_length"] :]
        assert len(ids) <= sequence_length
        assert (ids[0], a[-1], b[-1]) == (CLS_ID, SEP_ID, SEP_ID)
        assert len(a) > 2
        assert len(b) > 1
        assert set(a[1:-1]) == {hashes[columns["document_a"]]}
        assert set(b[:-1]) == {hashes[columns["document_b"]]}
        assert (columns["document_a"] == columns["document_b"]) == bool(columns["is_next"])


def test_a_true_next_follows_in_its_document_word_for_word() -> None:
    shard = pairs(numbered(text_of([[7] * 40, [5] * 40])), 64).shard
    for row in np.flatnonzero(shard.columns["is_next"]):
        ids = row_of(shard, row).astype(int)
        a = ids[1 : shard.columns["a_length"][row] - 1]
        b = ids[shard.columns["a_length"][row] : -1]
        assert (np.diff(a) == 1).all()
        assert (np.diff(b) == 1).all()
        # Nothing lies between them but what truncation took away.
        assert b[0] > a[-1]
        assert b[0] - a[-1] <= 14


def test_labels_stay_even_where_documents_end_in_single_sentences() -> None:
    rows = [[20] for _ in range(3000)] + [[9] * 12 for _ in range(600)]
    built = pairs(text_of(rows), 64)
    share = built.shard.columns["is_next"].mean()
    assert abs(share - 0.5) < 5 * math.sqrt(0.25 / len(built.shard))
    assert built.counts["left_out"] > 0


def test_one_document_is_refused_where_b_must_come_from_another() -> None:
    with pytest.raises(DataError, match=r"instances\.kind=masked_blocks"):
        pairs(text_of([[5] * 10]), 64)


def test_too_few_documents_for_pairs_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    documents = PerSplit(train=5, validation=1)
    tokens = TokensSummary.model_construct(files=(), documents=documents)
    inputs = {"tokens": standing("tokens", tmp_path / "t", tokens)}
    with pytest.raises(DataError, match=r"5 for training and 1 held out; set instances\.kind"):
        build_instances(MaskedPairsConfig(), inputs, Folder.at(tmp_path / "out"), Context())
    assert not (tmp_path / "out").exists()


def test_without_pairs_every_token_is_used_once_in_order() -> None:
    text = numbered(text_of([[7, 9, 3, 30], [4] * 9, [1]]))
    built = blocks(text, 64, 0.0)
    body = built.shard.ids[(built.shard.ids != CLS_ID) & (built.shard.ids != SEP_ID)]
    assert body.tolist() == text.ids.tolist()


@pytest.mark.parametrize(
    ("a", "b", "room", "expected"),
    [
        # (length of A, length of B, room) -> lengths left: google-research/bert takes one token at
        # a time from the longer side, from B when they are equal; worked by hand.
        (10, 10, 20, (10, 10)),
        (15, 5, 18, (13, 5)),
        (15, 5, 8, (4, 4)),
        (10, 10, 15, (8, 7)),
        (5, 15, 9, (5, 4)),
    ],
)
def test_truncation_takes_from_the_longer_side(
    a: int, b: int, room: int, expected: tuple[int, int]
) -> None:
    left, right, cut = frame.truncate((0, a), (100, 100 + b), room, Draws(rng()))
    assert (left[1] - left[0], right[1] - right[0]) == expected
    assert cut == (a + b > room)


def good_shard() -> shards.Shard:
    documents = [[9, 12, 7, 15] * 10 for _ in range(400)]
    return pairs(text_of(documents), 64).shard


def examine(shard: shards.Shard) -> dict:
    config = MaskedPairsConfig(sequence_length=64)
    return masked_pairs.check(shard, Facts("s", VOCAB, SPECIAL, 0), config)


def test_the_contract_accepts_what_the_builder_makes() -> None:
    counts = examine(good_shard())
    assert counts["instances"] == len(good_shard())
    assert counts["kept"] + counts["to_mask"] + counts["to_random"] == counts["selected"]


def corrupted(field: str, value: object) -> shards.Shard:
    shard = good_shard()
    array = (shard.ids if field == "ids" else shard.columns[field]).copy()
    if callable(value):
        value(array)
    if field == "ids":
        return dataclasses.replace(shard, ids=array)
    return dataclasses.replace(shard, columns={**shard.columns, field: array})


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        ("ids", lambda a: a.__setitem__([0, 5], [50, CLS_ID]), r"begin with \[CLS\]"),
        ("ids", lambda a: a.__setitem__(0, 50), r"\[CLS\] must be exactly"),
        ("ids", lambda a: a.__setitem__(3, MASK_ID), r"\[MASK\] must be exactly 0"),
        ("ids", lambda a: a.__setitem__(3, VOCAB), "largest id must be below 1000"),
        ("ids", lambda a: a.__setitem__(3, SEP_ID), r"\[SEP\] must be exactly"),
        ("a_length", lambda a: a.__setitem__(0, a[0] + 1), r"end with \[SEP\]"),
        ("is_next", lambda a: a.__setitem__(slice(None), 1), "B from another document"),
        ("is_next", lambda a: a.__setitem__(slice(None), 0), "B from the document of A"),
    ],
)
def test_a_corrupted_builder_is_caught_with_shard_figure_and_bound(
    field: str, change: object, message: str
) -> None:
    with pytest.raises(DataError, match=f"^s: .*{message}.*found"):
        examine(corrupted(field, change))


def test_unbalanced_labels_are_caught() -> None:
    shard = good_shard()
    changed = {
        "is_next": np.ones_like(shard.columns["is_next"]),
        "document_b": shard.columns["document_a"],
    }
    shard = dataclasses.replace(shard, columns={**shard.columns, **changed})
    with pytest.raises(DataError, match=r"share of IsNext pairs must be within 0\.5"):
        examine(shard)


def test_a_shard_file_gives_back_its_rows_and_the_same_bytes(tmp_path: Path) -> None:
    shard = good_shard()
    shards.write(shard, tmp_path / "a")
    shards.write(shard, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    again = shards.read(tmp_path / "a")
    assert np.array_equal(again.ids, shard.ids)
    assert np.array_equal(again.offsets, shard.offsets)
    assert again.columns.keys() == shard.columns.keys()
    for name, values in shard.columns.items():
        assert np.array_equal(again.columns[name], values)
        assert again.columns[name].dtype == values.dtype


def test_predictions_that_cannot_hold_the_rate_are_refused() -> None:
    with pytest.raises(ConfigError, match="raise max_predictions to 77"):
        validate(MaskedPairsConfig, {"sequence_length": 512})


def test_entropy_of_a_fair_die_is_the_log_of_its_sides() -> None:
    assert entropy(np.array([4, 4, 4, 4, 4, 4, 0])) == pytest.approx(math.log(6))


def test_a_pair_out_of_order_is_the_same_text_turned_round() -> None:
    text = numbered(text_of([[7] * 60, [5] * 60, [11, 3] * 30]))
    built = ordered(text, 64)
    shard = built.shard
    for row in range(len(shard)):
        ids = row_of(shard, row).astype(int)
        a = ids[1 : shard.columns["a_length"][row] - 1]
        b = ids[shard.columns["a_length"][row] : -1]
        first, second = (a, b) if shard.columns["in_order"][row] else (b, a)
        assert (np.diff(first) == 1).all()
        assert (np.diff(second) == 1).all()
        assert second[0] > first[-1]
    share = shard.columns["in_order"].mean()
    assert abs(share - 0.5) < 5 * math.sqrt(0.25 / len(shard))
    config = SentenceOrderConfig(sequence_length=64)
    large = dataclasses.replace(text, ids=(text.ids % 900 + 10).astype(np.uint16))
    counts = sentence_order.check(ordered(large, 64).shard, Facts("s", VOCAB, SPECIAL, 0), config)
    assert counts["in_order"] == shard.columns["in_order"].sum()


@given(DOCUMENTS, st.integers(8, 64), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_every_ordered_pair_is_of_one_document_and_fits(
    lengths: list[list[int]], sequence_length: int, seed: int
) -> None:
    shard = ordered(text_of(lengths), sequence_length, seed=seed).shard
    for row in range(len(shard)):
        ids = row_of(shard, row)
        assert len(ids) <= sequence_length
        assert len(set(ids.tolist()) - {CLS_ID, SEP_ID}) == 1
        middle = shard.columns["a_length"][row] - 1
        assert (ids[0], ids[middle], ids[-1]) == (CLS_ID, SEP_ID, SEP_ID)
        assert 0 < middle - 1 < len(ids) - 3


def test_a_lone_last_sentence_has_no_order_and_is_counted() -> None:
    built = ordered(text_of([[9], [20, 20, 20], [4]]), 32, 0.0)
    assert built.counts["left_out"] >= 2


def test_unit_bits_travel_with_their_tokens_through_the_file(tmp_path: Path) -> None:
    text = numbered(text_of([[9, 12, 7, 15] * 10 for _ in range(9)], units=True))
    for build in (pairs, blocks, ordered):
        shards.write(build(text, 64).shard, tmp_path / "s")
        shard = shards.read(tmp_path / "s")
        assert shard.unit_bits is not None
        bits = np.unpackbits(shard.unit_bits, count=len(shard.ids), bitorder="little")
        begins = bits.astype(bool)
        special = shard.ids < 10
        assert begins[special].all()
        assert (begins[~special] == ((shard.ids[~special] - 10) % 3 == 0)).all()


def test_other_dupes_of_a_text_give_other_pairs() -> None:
    text = numbered(text_of([[9, 12, 7, 15] * 10 for _ in range(40)]))
    one, other = pairs(text, 64, seed=0).shard, pairs(text, 64, seed=1).shard
    assert not np.array_equal(one.ids[: 5 * 64], other.ids[: 5 * 64])


def test_special_ids_of_another_vocabulary_frame_the_rows() -> None:
    """bert-base-uncased: [PAD] [UNK] [CLS] [SEP] [MASK] are 0, 100, 101, 102, 103."""
    special = SpecialIds(0, 100, 101, 102, 103, 102, ids=(0, 100, 101, 102, 103))
    text = numbered(text_of([[9, 12, 7, 15] * 10 for _ in range(400)]))
    text = dataclasses.replace(text, ids=(200 + text.ids % 700).astype(np.uint16))
    config = MaskedPairsConfig(sequence_length=64)
    shard = masked_pairs.build(text, config, special, rng()).shard
    assert (shard.ids[shard.offsets[:-1]] == 101).all()
    counts = masked_pairs.check(shard, Facts("s", VOCAB, special, 0), config)
    assert counts["candidates"] == (shard.ids >= 200).sum()


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 6)), max_size=20))
def test_ranges_are_the_ranges_behind_one_another(spans: list[tuple[int, int]]) -> None:
    begins = np.array([begin for begin, _ in spans], dtype=np.int64)
    lengths = np.array([length for _, length in spans], dtype=np.int64)
    expected = [index for begin, length in spans for index in range(begin, begin + length)]
    assert ranges(begins, lengths).tolist() == expected


def test_a_damaged_shard_file_is_refused(tmp_path: Path) -> None:
    shards.write(good_shard(), tmp_path / "s")
    whole = (tmp_path / "s").read_bytes()
    (tmp_path / "s").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="not a whole shard"):
        shards.read(tmp_path / "s")


@given(DOCUMENTS, st.integers(8, 40), st.integers(0, 99), st.booleans())
@settings(max_examples=60, deadline=None)
def test_rows_are_read_as_they_were_written(
    lengths: list[list[int]], width: int, seed: int, units: bool
) -> None:
    """Any rows, in any order, of a shard as short as it may be; bits begin anywhere in a byte."""
    shard = blocks(numbered(text_of(lengths, units=units)), width, seed=seed).shard
    local = rng(seed).integers(0, len(shard), size=9)
    rows = padded(shard, local, local, width, 0)
    for at, row in enumerate(local.tolist()):
        expected = row_of(shard, row)
        assert rows.ids[at, : len(expected)].tolist() == expected.tolist()
        assert (rows.ids[at, len(expected) :] == 0).all()
        if units:
            assert rows.unit_starts is not None
            begins = (expected < 10) | ((expected - 10) % 3 == 0)
            assert rows.unit_starts[at, : len(expected)].tolist() == begins.tolist()
            assert not rows.unit_starts[at, len(expected) :].any()
    halves = [np.arange(0, 9, 2), np.arange(1, 9, 2)]
    parts = [padded(shard, local[half], local[half], width, 0) for half in halves]
    again = joined(parts, halves)
    assert np.array_equal(again.ids, rows.ids)
    assert np.array_equal(again.instances, rows.instances)
    assert np.array_equal(again.lengths, rows.lengths)
