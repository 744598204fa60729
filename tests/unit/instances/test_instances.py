"""Masked instances: pairs and blocks as the papers have them, held to their contract."""

import dataclasses
import math
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rungwise.core.errors import DataError
from rungwise.core.stages.artifact import PerSplit
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.core.tokens import CLS_ID, MASK_ID, PAD_ID, SEP_ID, UNK_ID, SpecialIds
from rungwise.corpus.cleaning.text import segment
from rungwise.instances import shards
from rungwise.instances.building import build_instances
from rungwise.instances.kind import Built, ContractShare, Facts, check_shares
from rungwise.instances.pairs import (
    MaskedBlocksConfig,
    MaskedKind,
    MaskedPairsConfig,
    SentenceOrderConfig,
)
from rungwise.instances.shards import join_rows, pad_rows
from rungwise.tokenizer.token_stage import TokensSummary
from rungwise.tokenizer.token_text import TokenisedText
from tests.corpora import text_of
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


def words_of(lengths: list[list[int]]) -> TokenisedText:
    """Sentences of these lengths in which every token of document d is 10 + d."""
    text = text_of(lengths)
    sizes = np.diff(text.starts[text.first_sentence])
    return dataclasses.replace(
        text, ids=np.repeat(10 + np.arange(len(lengths)), sizes).astype("u2")
    )


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


CONFIGS: dict[str, MaskedKind] = {
    "pairs": MaskedPairsConfig(),
    "blocks": MaskedBlocksConfig(),
    "packed": MaskedBlocksConfig(packed=True),
    "ordered": SentenceOrderConfig(),
}


def make(
    kind: str,
    text: TokenisedText,
    length: int,
    short_rate: float = 0.1,
    seed: int = 0,
    planned: int | None = None,
) -> Built:
    keys = {"sequence_length": length, "short_rate": short_rate}
    return CONFIGS[kind].model_copy(update=keys).build(text, SPECIAL, rng(seed), planned)


def row_of(shard: shards.Shard, row: int) -> np.ndarray:
    return shard.ids[shard.offsets[row] : shard.offsets[row + 1]]


# Sentences from one token to three rows, a document of one sentence, many documents.
DOCUMENTS = st.lists(
    st.lists(st.integers(1, 60) | st.integers(1, 190), min_size=1, max_size=20),
    min_size=2,
    max_size=12,
)


@pytest.mark.parametrize("kind", ["pairs", "blocks", "ordered"])
@given(DOCUMENTS, st.integers(8, 64), st.floats(0, 1), st.integers(0, 99), st.integers(1, 12))
@settings(max_examples=50)
def test_every_token_of_what_is_planned_stands_in_one_row_and_in_order(
    kind: str,
    lengths: list[list[int]],
    sequence_length: int,
    short_rate: float,
    seed: int,
    planned: int,
) -> None:
    planned = min(planned, len(lengths))
    text = text_of(lengths)
    built = make(kind, text, sequence_length, short_rate, seed, planned)
    shard = built.shard
    begins = text.starts[text.first_sentence] + 10
    document_of = dict(zip(text.documents.tolist(), range(len(lengths)), strict=True))

    def document(segment: NDArray[np.int64]) -> int:
        """The document that a segment stands in, in one run."""
        assert len(segment) > 0
        assert (np.diff(segment) == 1).all()
        first, last = np.searchsorted(begins, [segment[0], segment[-1]], side="right") - 1
        assert first == last
        return int(first)

    used: list[int] = []
    for row in range(len(shard)):
        ids = row_of(shard, row).astype(np.int64)
        columns = {name: int(values[row]) for name, values in shard.columns.items()}
        assert len(ids) <= sequence_length
        assert (ids[0], ids[-1]) == (CLS_ID, SEP_ID)
        middle = columns.get("a_length", len(ids)) - 1
        assert ids[middle] == SEP_ID
        a, b = ids[1:middle], ids[middle + 1 : -1]
        if kind == "blocks":
            assert document(a) == document_of[columns["document"]]
            used += a.tolist()
        elif kind == "ordered":
            assert document(a) == document(b) == document_of[columns["document"]]
            used += [*a, *b] if columns["in_order"] else [*b, *a]
        else:
            assert document(a) == document_of[columns["document_a"]]
            assert document(b) == document_of[columns["document_b"]]
            assert (document(a) == document(b)) == bool(columns["is_next"])
            used += [*a, *b] if columns["is_next"] else [*a]
    all_of_them = range(10, int(begins[planned]))
    assert built.counts["text_tokens"] == len(all_of_them)
    assert built.counts["tokens_unused"] == len(all_of_them) - len(used)
    if kind == "ordered":
        # A token that is a document has no order, nor one behind a pair that fills its row.
        lost = set(all_of_them) - set(used)
        assert len(lost) <= planned
        assert lost <= {begin - 1 for begin in begins[1:].tolist()}
        assert used == sorted(set(used))
    else:
        assert used == list(all_of_them)


@given(DOCUMENTS, st.integers(8, 64), st.integers(0, 99), st.integers(1, 12))
@settings(max_examples=60)
def test_packed_rows_hold_the_text_in_order_and_end_before_the_piece_that_would_not_fit(
    lengths: list[list[int]], sequence_length: int, seed: int, planned: int
) -> None:
    planned = min(planned, len(lengths))
    text = text_of(lengths)
    built = make("packed", text, sequence_length, seed=seed, planned=planned)
    shard, room = built.shard, sequence_length - 2
    begins = text.starts[text.first_sentence] + 10
    ends = set((text.starts + 10).tolist())
    used: list[int] = []
    for row in range(len(shard)):
        ids = row_of(shard, row).astype(np.int64)
        assert len(ids) <= sequence_length
        assert (ids[0], ids[-1]) == (CLS_ID, SEP_ID)
        opens = np.flatnonzero(ids == CLS_ID)
        for begin, end in pairwise([*opens, len(ids)]):
            part = ids[begin + 1 : end - 1]
            assert ids[end - 1] == SEP_ID
            assert (np.diff(part) == 1).all()
            first, last = np.searchsorted(begins, [part[0], part[-1]], side="right")
            assert first == last, "a text is of one document"
            used += part.tolist()
        free, following = sequence_length - len(ids), used[-1] + 1
        sentence = min((end for end in ends if end > following), default=following) - following
        if row < len(shard) - 1 and sentence <= room // 2:  # longer ones may be cut
            opens_document = following in begins
            assert free < sentence + 2 * opens_document
    assert used == list(range(10, int(begins[planned])))
    assert built.counts["tokens_unused"] == 0


LINES = {
    "lower-cased": ("the cat sat on the mat . then it slept all day in the sun . " * 9).strip(),
    "unpunctuated": "so we went home and i said what now and nobody knew " * 12,
    "one line": "A report of many words without an end " * 200,
    "Chinese": "他们在河边走了很久。天黑了谁也不说话。" * 8,
    "code": "def add(a, b):\n    return a + b\n\nprint(add(1, 2))\n" * 12,
    "list": "\n".join(f"item {number}" for number in range(15)),
    "title": "a short title",
}


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("lines", LINES)
def test_no_text_of_any_make_is_lost_and_the_contract_holds(lines: str, kind: str) -> None:
    whole = [segment(LINES[lines])] * 100 + [segment(LINES[lines] + " more")] * 100
    lengths = [
        [len(re.findall(r"\w+|\S", s) if s.isascii() else s) for s in document]
        for document in whole
    ]
    text = words_of(lengths)
    built = make(kind, text, 64)
    assert built.counts["tokens_unused"] == 0
    config = CONFIGS[kind].model_copy(update={"sequence_length": 64})
    counts = config.check(built.shard, Facts("s", VOCAB, SPECIAL, 0))
    assert config.statistics(counts | built.counts)["unused_share"] == 0


def test_a_random_b_is_as_long_as_a_true_one() -> None:
    shard = make("pairs", words_of([[9, 12, 7, 25, 14] * 8 for _ in range(1500)]), 64, 0.1).shard
    is_next = shard.columns["is_next"].astype(bool)
    b = shard.lengths - shard.columns["a_length"] - 1
    error = math.sqrt(b.var() / is_next.sum() + b.var() / (~is_next).sum())
    # The ends of documents, which the two do not meet equally often, differ by a tenth of a token.
    assert abs(b[is_next].mean() - b[~is_next].mean()) < 5 * error + 0.5


def test_too_few_documents_for_pairs_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    documents = PerSplit(train=5, validation=1)
    tokens = TokensSummary.model_construct(files=(), documents=documents)
    inputs = {"tokens": standing("tokens", tmp_path / "t", tokens)}
    with pytest.raises(DataError, match=r"5 for training and 1 held out; set instances\.kind"):
        build_instances(MaskedPairsConfig(), inputs, Folder.at(tmp_path / "out"), Context())
    assert not (tmp_path / "out").exists()


def good_shard() -> shards.Shard:
    documents = [[9, 12, 7, 15] * 10 for _ in range(400)]
    return make("pairs", words_of(documents), 64).shard


def examine(shard: shards.Shard) -> dict:
    config = MaskedPairsConfig(sequence_length=64)
    return config.check(shard, Facts("s", VOCAB, SPECIAL, 0))


def test_small_shards_do_not_share_the_luck_of_their_masks() -> None:
    """Shards of three rows are checked by their sums, which must scatter as so many draws do."""
    config, kind = MaskedPairsConfig(sequence_length=64), "pairs"
    shard = make(kind, words_of([[9, 12, 7, 15]] * 4), 64).shard
    sums: Counter[str] = Counter()
    drawn = set()
    for number in range(300):
        counts = config.check(shard, Facts(f"shard-{number}", VOCAB, SPECIAL, 0))
        sums.update(counts)
        drawn.add((counts["to_mask"], counts["to_random"]))
    assert len(drawn) > 5
    shares = [share for share in config.shares(sums) if "selected" in share.figure]
    assert check_shares("all shards", shares) == []


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
def test_a_corrupted_builder_is_caught(field: str, change: object, message: str) -> None:
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


def test_shares_that_too_few_draws_decide_are_named_and_the_impossible_is_still_an_error() -> None:
    def labels(part: int, whole: int) -> ContractShare:
        return ContractShare("share of IsNext pairs", part, whole, 0.5, 0.01)

    assert check_shares("s", [labels(12, 40)]) == ["share of IsNext pairs"]
    assert check_shares("s", [labels(5040, 10_000)]) == []
    for part, whole in ((0, 20), (40, 40), (4_000, 10_000), (511_000, 1_000_000)):
        with pytest.raises(DataError, match=r"^s: share of IsNext pairs must be within 0\.5"):
            check_shares("s", [labels(part, whole)])


def test_all_shards_together_are_checked_where_one_is_too_small() -> None:
    config = MaskedPairsConfig(sequence_length=64)
    shard = make("pairs", words_of([[9, 12, 7, 15]] * 12), 64).shard
    counts = examine(shard)
    assert counts["too_small_to_say"] == 1
    assert "share of IsNext pairs" in check_shares("all", config.shares(counts))
    thousand = {name: 1000 * n for name, n in counts.items() if isinstance(n, int)}
    balanced = thousand | {
        "is_next": thousand["instances"] // 2,
        "selected": thousand["expected"],
        "to_mask": thousand["expected"] * 8 // 10,
        "to_random": thousand["expected"] // 10,
    }
    assert check_shares("all", config.shares(balanced)) == []
    with pytest.raises(DataError, match=r"^all shards: share of IsNext pairs must be within"):
        config.headline(balanced | {"is_next": thousand["instances"] * 45 // 100}, {})


def test_a_shard_file_gives_back_its_rows_and_the_same_bytes(tmp_path: Path) -> None:
    shard = good_shard()
    shards.write_shard(shard, tmp_path / "a")
    shards.write_shard(shard, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    again = shards.read_shard(tmp_path / "a")
    assert np.array_equal(again.ids, shard.ids)
    assert np.array_equal(again.offsets, shard.offsets)
    assert again.columns.keys() == shard.columns.keys()
    for name, values in shard.columns.items():
        assert np.array_equal(again.columns[name], values)
        assert again.columns[name].dtype == values.dtype


def test_a_damaged_shard_file_is_refused(tmp_path: Path) -> None:
    shards.write_shard(good_shard(), tmp_path / "s")
    whole = (tmp_path / "s").read_bytes()
    (tmp_path / "s").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="not a whole shard"):
        shards.read_shard(tmp_path / "s")


@given(DOCUMENTS, st.integers(8, 40), st.integers(0, 99), st.booleans())
@settings(max_examples=30)
def test_rows_come_back_whole(lengths: list[list[int]], width: int, seed: int, units: bool) -> None:
    """Any rows, in any order, of a shard as short as it may be; bits begin anywhere in a byte."""
    shard = make("blocks", text_of(lengths, units=units), width, seed=seed).shard
    local = rng(seed).integers(0, len(shard), size=9)
    rows = pad_rows(shard, local, local, width, 0)
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
    parts = [pad_rows(shard, local[half], local[half], width, 0) for half in halves]
    again = join_rows(parts, halves)
    assert np.array_equal(again.ids, rows.ids)
    assert np.array_equal(again.instances, rows.instances)
    assert np.array_equal(again.lengths, rows.lengths)
