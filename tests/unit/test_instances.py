"""Instances: pairs and mask statistics as the paper has them, the same rows for any worker."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rungwise.artifact import Artifact
from rungwise.config import validate
from rungwise.context import Context
from rungwise.errors import ConfigError, DataError
from rungwise.instances import masked, order, shards
from rungwise.instances.contract import check
from rungwise.instances.masking import MaskingConfig, mask
from rungwise.instances.randomness import bits, uniform
from rungwise.instances.reader import positions_of
from rungwise.instances.stage import InstancesConfig, entropy, run
from rungwise.storage import Folder
from rungwise.tokenizer import CLS_ID, MASK_ID, PAD_ID, SEP_ID

VOCAB = 1000


def text_of(lengths: list[list[int]]) -> masked.TokenisedText:
    """Documents with sentences of these lengths; every token of document d is 10 + d."""
    flat = [length for document in lengths for length in document]
    ids = [
        10 + d for d, document in enumerate(lengths) for length in document for _ in range(length)
    ]
    return masked.TokenisedText(
        ids=np.array(ids, dtype=np.uint16),
        starts=np.concatenate([[0], np.cumsum(flat)]).astype(np.int64),
        first_sentence=np.concatenate([[0], np.cumsum([len(d) for d in lengths])]).astype(np.int64),
        documents=[f"d{number}" for number in range(len(lengths))],
    )


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


DOCUMENTS = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=20), min_size=2, max_size=12)


@given(DOCUMENTS, st.integers(8, 64), st.floats(0, 1), st.integers(0, 99))
@settings(max_examples=200, deadline=None)
def test_every_pair_is_framed_fits_and_takes_b_from_where_its_label_says(
    lengths: list[list[int]], sequence_length: int, short_rate: float, seed: int
) -> None:
    built = masked.build(text_of(lengths), sequence_length, True, short_rate, rng(seed))
    shard = built.shard
    hashes = {shards.document_hash(f"d{number}"): 10 + number for number in range(len(lengths))}
    for row in range(len(shard)):
        ids = shard.ids[shard.offsets[row] : shard.offsets[row + 1]]
        a = ids[: shard.a_length[row]]
        b = ids[shard.a_length[row] :]
        assert len(ids) <= sequence_length
        assert (ids[0], a[-1], b[-1]) == (CLS_ID, SEP_ID, SEP_ID)
        assert len(a) > 2
        assert len(b) > 1
        assert set(a[1:-1]) == {hashes[shard.document_a[row]]}
        assert set(b[:-1]) == {hashes[shard.document_b[row]]}
        assert (shard.document_a[row] == shard.document_b[row]) == bool(shard.is_next[row])


def test_a_true_next_follows_in_its_document_word_for_word() -> None:
    text = text_of([[7] * 40, [5] * 40])
    text = dataclasses.replace(text, ids=np.arange(10, 10 + len(text.ids), dtype=np.uint16))
    shard = masked.build(text, 64, True, 0.1, rng()).shard
    for row in np.flatnonzero(shard.is_next):
        ids = shard.ids[shard.offsets[row] : shard.offsets[row + 1]].astype(int)
        a = ids[1 : shard.a_length[row] - 1]
        b = ids[shard.a_length[row] : -1]
        assert (np.diff(a) == 1).all()
        assert (np.diff(b) == 1).all()
        # Nothing lies between them but what truncation took away.
        assert b[0] > a[-1]
        assert b[0] - a[-1] <= 14


def test_labels_stay_even_where_documents_end_in_single_sentences() -> None:
    rows = [[20] for _ in range(3000)] + [[9] * 12 for _ in range(600)]
    built = masked.build(text_of(rows), 64, True, 0.1, rng())
    share = built.shard.is_next.mean()
    assert abs(share - 0.5) < 5 * math.sqrt(0.25 / len(built.shard))
    assert built.sentences_left_out > 0


def test_one_document_is_refused_where_b_must_come_from_another() -> None:
    with pytest.raises(DataError, match=r"instances\.next_sentence=false"):
        masked.build(text_of([[5] * 10]), 64, True, 0.1, rng())


def test_too_few_documents_for_pairs_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    rows = [
        {"file": f"{split}-00000.parquet", "split": split, "documents": count}
        for split, count in (("train", 5), ("validation", 1))
    ]
    inputs = {
        name: Artifact(name, "f" * 12, Folder.at(tmp_path / name), {"summary": summary})
        for name, summary in (("corpus", {"files": rows}), ("tokenizer", {"vocab_size": 100}))
    }
    with pytest.raises(DataError, match=r"5 for training and 1 held out; set instances\.next_sent"):
        run(InstancesConfig(), inputs, Folder.at(tmp_path / "out"), Context())
    assert not (tmp_path / "out").exists()


def test_without_pairs_every_token_is_used_once_in_order() -> None:
    text = text_of([[7, 9, 3, 30], [4] * 9, [1]])
    text = dataclasses.replace(text, ids=np.arange(10, 10 + len(text.ids), dtype=np.uint16))
    built = masked.build(text, 64, False, 0.0, rng())
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
    left, right, cut = masked._truncate((0, a), (100, 100 + b), room, masked._Draws(rng()))
    assert (left[1] - left[0], right[1] - right[0]) == expected
    assert cut == (a + b > room)


def sample_ids(rows: int, length: int, seed: int = 0) -> np.ndarray:
    generator = rng(seed)
    ids = generator.integers(5, VOCAB, size=(rows, length))
    lengths = generator.integers(length // 2, length + 1, size=rows)
    ids[:, 0] = CLS_ID
    ids[np.arange(rows), lengths - 1] = SEP_ID
    ids[np.arange(length)[None, :] >= lengths[:, None]] = PAD_ID
    return ids


def test_mask_statistics_are_the_papers() -> None:
    """SPEC D20, over 280,000 tokens; its bounds, inside which five standard errors lie."""
    ids = sample_ids(3000, 128)
    config = MaskingConfig()
    out = mask(ids, np.arange(3000), np.zeros(3000, int), 0, VOCAB, config)
    used = out.weights > 0
    now = np.take_along_axis(out.ids, out.positions, 1)[used]
    before = out.targets[used]
    candidates = (ids >= 5).sum()
    assert candidates > 100_000
    assert abs(used.sum() / candidates - 0.15) < 0.003
    assert abs((now == MASK_ID).mean() - 0.8) < 0.01
    assert abs((now == before).mean() - 0.1) < 0.01
    assert abs(((now != MASK_ID) & (now != before)).mean() - 0.1) < 0.01
    assert used.sum(axis=1).max() <= 20
    # Selection does not depend on where a token stands.
    picked = np.zeros(ids.shape)
    picked[np.nonzero(used)[0], out.positions[used]] = 1
    by_position = picked[:, 1:60].sum(0) / (ids[:, 1:60] >= 5).sum(0)
    assert np.abs(by_position - 0.15).max() < 5 * math.sqrt(0.15 * 0.85 / 3000)
    # Random replacements cover the vocabulary evenly and hold no special token.
    replaced = now[(now != MASK_ID) & (now != before)]
    assert replaced.min() >= 5
    assert replaced.max() < VOCAB
    expected = len(replaced) / (VOCAB - 5)
    chi_square = ((np.bincount(replaced, minlength=VOCAB)[5:] - expected) ** 2 / expected).sum()
    assert abs(chi_square - (VOCAB - 6)) < 5 * math.sqrt(2 * (VOCAB - 6))


def test_only_masked_positions_change_and_their_targets_are_the_originals() -> None:
    ids = sample_ids(200, 64)
    out = mask(ids, np.arange(200), np.zeros(200, int), 0, VOCAB, MaskingConfig(max_predictions=12))
    restored = out.ids.copy()
    rows = np.broadcast_to(np.arange(200)[:, None], out.positions.shape)
    used = out.weights > 0
    restored[rows[used], out.positions[used]] = out.targets[used]
    assert (restored == ids).all()
    assert (ids[rows[used], out.positions[used]] >= 5).all()


def test_a_row_is_masked_the_same_in_any_batch_and_anew_in_each_epoch() -> None:
    ids = sample_ids(50, 64)
    config = MaskingConfig(max_predictions=12)
    whole = mask(ids, np.arange(50), np.zeros(50, int), 3, VOCAB, config)
    some = np.array([7, 3, 31])
    part = mask(ids[some], some, np.zeros(3, int), 3, VOCAB, config)
    assert (part.ids == whole.ids[some]).all()
    assert (part.positions == whole.positions[some]).all()
    again = mask(ids, np.arange(50), np.ones(50, int), 3, VOCAB, config)
    assert (again.positions != whole.positions).any(axis=1).mean() > 0.95
    other_seed = mask(ids, np.arange(50), np.zeros(50, int), 4, VOCAB, config)
    assert (other_seed.positions != whole.positions).any(axis=1).mean() > 0.95


def test_rows_with_fewer_tokens_than_predictions_are_masked() -> None:
    ids = np.array([[CLS_ID, 9, SEP_ID] + [PAD_ID] * 29, [CLS_ID, SEP_ID] + [PAD_ID] * 30])
    out = mask(ids, np.arange(2), np.zeros(2, int), 0, VOCAB, MaskingConfig())
    assert out.weights.sum(axis=1).tolist() == [1, 0]
    assert out.positions[0, 0] == 1


@given(st.integers(1, 3000), st.integers(0, 5), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_every_epoch_is_a_permutation(count: int, epoch: int, seed: int) -> None:
    places = np.arange(count)
    found = order.permute(places, np.full(count, epoch), count, seed)
    assert np.array_equal(np.sort(found), places)


def test_epochs_are_reshuffled_and_positions_run_through_them() -> None:
    count = 1000
    first = order.indices(np.arange(count), count, 0)
    second = order.indices(np.arange(count, 2 * count), count, 0)
    assert np.array_equal(np.sort(second), np.arange(count))
    assert (first == second).mean() < 0.01
    assert order.epochs(np.array([999, 1000]), count).tolist() == [0, 1]
    # Neighbours in the file are no neighbours in the order: correlation within five sigma of none.
    assert abs(np.corrcoef(np.arange(count), first)[0, 1]) < 5 / math.sqrt(count)


def test_a_place_among_ten_billion_is_found_without_storing_them() -> None:
    places = np.array([0, 1, 9_999_999_999])
    found = order.permute(places, np.zeros(3, int), 10_000_000_000, 1)
    assert len(set(found.tolist())) == 3
    assert ((found >= 0) & (found < 10_000_000_000)).all()


@given(st.integers(1, 500), st.integers(1, 9), st.integers(0, 10_000))
def test_workers_share_a_step_without_gap_or_overlap(size: int, world: int, step: int) -> None:
    parts = [positions_of(step, size, rank, world) for rank in range(world)]
    assert np.concatenate(parts).tolist() == list(range(step * size, (step + 1) * size))
    lengths = [len(part) for part in parts]
    assert max(lengths) - min(lengths) <= 1


def test_the_generator_is_uniform_and_its_streams_are_unrelated() -> None:
    draws = uniform(1, np.arange(200_000))
    histogram = np.histogram(draws, bins=100, range=(0, 1))[0]
    assert abs(((histogram - 2000) ** 2 / 2000).sum() - 99) < 5 * math.sqrt(2 * 99)
    other = uniform(2, np.arange(200_000))
    assert abs(np.corrcoef(draws, other)[0, 1]) < 5 / math.sqrt(200_000)
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 5 / math.sqrt(200_000)


def test_splitmix64_gives_the_published_numbers() -> None:
    """The first output for state 0 is 16294208416658607535 (Vigna's reference, splitmix64.c)."""
    assert int(bits(0)) == 16294208416658607535


def good_shard() -> shards.Shard:
    documents = [[9, 12, 7, 15] * 10 for _ in range(400)]
    return masked.build(text_of(documents), 64, True, 0.1, rng()).shard


def examine(shard: shards.Shard) -> dict:
    return check(shard, "s", 64, VOCAB, True, MaskingConfig(), 0)


def test_the_contract_accepts_what_the_builder_makes() -> None:
    counts = examine(good_shard())
    assert counts["instances"] == len(good_shard())
    assert counts["kept"] + counts["to_mask"] + counts["to_random"] == counts["selected"]


def corrupted(field: str, value: object) -> shards.Shard:
    shard = good_shard()
    array = getattr(shard, field).copy()
    if callable(value):
        value(array)
    return dataclasses.replace(shard, **{field: array})


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        ("ids", lambda a: a.__setitem__(0, 50), r"begin with \[CLS\]"),
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
    shard = dataclasses.replace(
        shard, is_next=np.ones_like(shard.is_next), document_b=shard.document_a
    )
    with pytest.raises(DataError, match=r"share of IsNext pairs must be within 0\.5"):
        examine(shard)


def test_a_shard_file_gives_back_its_rows_and_the_same_bytes(tmp_path: Path) -> None:
    shard = good_shard()
    shards.write(shard, tmp_path / "a")
    shards.write(shard, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    again = shards.read(tmp_path / "a")
    for field in dataclasses.fields(shards.Shard):
        assert np.array_equal(getattr(again, field.name), getattr(shard, field.name))


def test_predictions_that_cannot_hold_the_rate_are_refused() -> None:
    with pytest.raises(ConfigError, match="raise max_predictions to 77"):
        validate(InstancesConfig, {"sequence_length": 512})


def test_entropy_of_a_fair_die_is_the_log_of_its_sides() -> None:
    assert entropy(np.array([4, 4, 4, 4, 4, 4, 0])) == pytest.approx(math.log(6))
