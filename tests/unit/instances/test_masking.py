"""Masking: shares and units as the papers have them, the same for a row in any batch."""

import itertools
import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rungwise.core.randomness import bits, extend, uniform
from rungwise.core.tokens import SpecialIds
from rungwise.instances.masking import (
    Masked,
    MaskingConfig,
    Vocabulary,
    _span_shares,
    mask,
    span_lengths,
)
from rungwise.instances.shards import PaddedRows

PAD_ID, UNK_ID, CLS_ID, SEP_ID, MASK_ID = range(5)
VOCAB = 1000
OURS = Vocabulary(VOCAB, SpecialIds(mask=MASK_ID, pad=PAD_ID, ids=(0, 1, 2, 3, 4)))
BERT = Vocabulary(30_522, SpecialIds(mask=103, pad=0, ids=(0, 100, 101, 102, 103)))
UNITS = ("token", "whole_word", "span")
# Pieces of a word in English WordPiece text (Brown corpus, BERT's vocabulary): 1.07 on average.
WORD_SIZES = (0.955, 0.03, 0.011, 0.003, 0.001)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


def sample(
    rows: int,
    length: int,
    seed: int = 0,
    vocab: Vocabulary = OURS,
    frame: tuple[int, int] = (CLS_ID, SEP_ID),
    full: bool = False,
    sizes: tuple[float, ...] = WORD_SIZES,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs framed by `frame`, their lengths, and where words begin. Padding is an odd id."""
    generator = rng(seed)
    ordinary = np.setdiff1d(np.arange(vocab.size), vocab.special.ids)
    ids = generator.choice(ordinary, size=(rows, length))
    lengths = np.full(rows, length)
    if not full and generator.random() < 0.8:
        lengths = generator.integers(max(3, length // 2), length + 1, size=rows)
    ids[:, 0] = frame[0]
    ids[np.arange(rows), lengths - 1] = frame[1]
    ids[np.arange(rows), lengths // 2] = frame[1]
    words = generator.choice(np.arange(1, len(sizes) + 1), size=rows * length, p=sizes)
    starts = np.zeros(rows * length, dtype=bool)
    begins = np.cumsum(words) - words
    starts[begins[begins < starts.size]] = True
    return ids, lengths, starts.reshape(rows, length)


def masked(
    rows: tuple[np.ndarray, np.ndarray, np.ndarray],
    config: MaskingConfig,
    epoch: int = 0,
    seed: int = 0,
    vocab: Vocabulary = OURS,
    instances: np.ndarray | None = None,
) -> Masked:
    ids, lengths, starts = rows
    instances = np.arange(len(ids)) if instances is None else instances
    padded = PaddedRows(instances, ids, lengths, {}, starts)
    return mask(padded, np.full(len(ids), epoch), seed, vocab, config)


def selected(out: Masked) -> np.ndarray:
    """(B, T) True where a token is predicted."""
    picked = np.zeros(out.ids.shape, dtype=bool)
    used = out.weights > 0
    picked[np.nonzero(used)[0], out.positions[used]] = True
    return picked


def candidates_of(
    rows: tuple[np.ndarray, np.ndarray, np.ndarray], vocab: Vocabulary = OURS
) -> np.ndarray:
    ids, lengths, _ = rows
    return ~np.isin(ids, vocab.special.ids) & (np.arange(ids.shape[1]) < lengths[:, None])


def units_of(candidates: np.ndarray, starts: np.ndarray) -> list[list[tuple[int, int]]]:
    """For each row its units as [begin, end), found token by token."""
    found: list[list[tuple[int, int]]] = []
    for here, begins in zip(candidates, starts, strict=True):
        units: list[tuple[int, int]] = []
        for position in np.flatnonzero(here).tolist():
            new = begins[position] or position == 0 or not here[position - 1]
            if new:
                units.append((position, position + 1))
            else:
                units[-1] = (units[-1][0], position + 1)
        found.append(units)
    return found


def fates(out: Masked) -> tuple[np.ndarray, np.ndarray]:
    """The ids that predicted places hold now and those before."""
    used = out.weights > 0
    return np.take_along_axis(out.ids, out.positions, axis=1)[used], out.targets[used]


def published(
    ids: np.ndarray,
    instances: np.ndarray,
    epochs: np.ndarray,
    seed: int,
    vocab_size: int,
    config: MaskingConfig,
) -> Masked:
    """The first version of single-token masking, on which published figures rest."""
    row = np.arange(len(ids))[:, None]
    position = np.arange(ids.shape[1])[None, :]
    key = bits(seed, epochs, instances)
    maskable = (ids != PAD_ID) & (ids != CLS_ID) & (ids != SEP_ID)
    score = uniform(key[:, None], 1, position)
    score[~maskable] = 2.0
    candidates = maskable.sum(axis=1)
    wanted = np.floor(config.rate * candidates + uniform(key, 4)).astype(np.int64)
    wanted = np.minimum(np.clip(wanted, 1, config.max_predictions), candidates)
    size = min(config.max_predictions, ids.shape[1])
    ranked = np.argsort(score, axis=1)[:, :size]
    used = np.arange(size)[None, :] < wanted[:, None]
    positions = np.sort(np.where(used, ranked, ids.shape[1]), axis=1)
    positions[~used] = 0
    targets = np.where(used, ids[row, positions], 0)
    draw = uniform(key[:, None], 2, positions)
    random_ids = 5 + (bits(key[:, None], 3, positions) % np.uint64(vocab_size - 5)).astype(np.int64)
    replacement = np.where(
        draw < config.mask_share,
        MASK_ID,
        np.where(draw < config.mask_share + config.random_share, random_ids, targets),
    )
    corrupted = ids.copy()
    corrupted[np.broadcast_to(row, positions.shape)[used], positions[used]] = replacement[used]
    return Masked(corrupted, positions, targets, used.astype(np.float32))


@pytest.mark.parametrize(
    ("rows", "length", "most"), [(40, 128, 20), (9, 512, 77), (20, 5, 20), (3, 5000, 800)]
)
@pytest.mark.parametrize(("mask_share", "random_share"), [(0.8, 0.1), (0.1, 0.33), (1.0, 0.0)])
def test_single_tokens_are_masked_bit_for_bit_as_before_there_were_units(
    rows: int, length: int, most: int, mask_share: float, random_share: float
) -> None:
    ids, lengths, _ = sample(rows, length)
    ids[np.arange(length) >= lengths[:, None]] = PAD_ID
    config = MaskingConfig(max_predictions=most, mask_share=mask_share, random_share=random_share)
    instances = rng(1).integers(0, 10**10, rows)
    epochs = rng(2).integers(0, 50, rows)
    expected = published(ids, instances, epochs, 7, VOCAB, config)
    found = mask(PaddedRows(instances, ids, lengths, {}, None), epochs, 7, OURS, config)
    for field in fields(Masked):
        old, new = getattr(expected, field.name), getattr(found, field.name)
        assert old.dtype == new.dtype
        assert np.array_equal(old, new)


@pytest.mark.parametrize("unit", UNITS)
def test_mask_statistics_are_the_papers(unit: Any) -> None:
    """SPEC D20, over 360,000 tokens at length 128 with 20 predictions; its bounds."""
    rows = sample(3000, 128, full=True)
    config = MaskingConfig(unit=unit)
    out = masked(rows, config)
    now, before = fates(out)
    assert abs(len(now) / candidates_of(rows).sum() - 0.15) < 0.003
    assert abs((now == MASK_ID).mean() - 0.8) < 0.01
    assert abs((now == before).mean() - 0.1) < 0.01
    assert abs(((now != MASK_ID) & (now != before)).mean() - 0.1) < 0.01
    assert (out.weights > 0).sum(axis=1).max() <= 20


def test_random_replacements_are_uniform_over_ordinary_ids_whatever_ids_are_special() -> None:
    vocab = Vocabulary(300, SpecialIds(mask=103, pad=0, ids=(0, 100, 101, 102, 103, 299)))
    rows = sample(4000, 64, vocab=vocab, frame=(101, 102))
    config = MaskingConfig(mask_share=0, random_share=1, max_predictions=12)
    now, _ = fates(masked(rows, config, vocab=vocab))
    ordinary = np.setdiff1d(np.arange(300), vocab.special.ids)
    assert set(np.unique(now)) == set(ordinary)
    expected = len(now) / len(ordinary)
    chi_square = ((np.bincount(now, minlength=300)[ordinary] - expected) ** 2 / expected).sum()
    degrees = len(ordinary) - 1
    assert abs(chi_square - degrees) < 5 * math.sqrt(2 * degrees)


SMALL = st.builds(
    lambda seed, rows, length, spread, frame: sample(
        rows, length, seed, frame=frame, sizes=tuple(np.array(spread) / np.sum(spread))
    ),
    st.integers(0, 10**6),
    st.integers(1, 9),
    st.integers(3, 70),
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.sampled_from([(CLS_ID, SEP_ID), (9, 9)]),  # rows without special tokens touch each other
)


def configs(*units: str) -> st.SearchStrategy[MaskingConfig]:
    return st.builds(
        MaskingConfig,
        unit=st.sampled_from(units),
        rate=st.sampled_from([0.05, 0.15, 0.4, 0.9]),
        max_predictions=st.sampled_from([1, 2, 5, 20, 100]),
    )


@given(SMALL, configs(*UNITS), st.integers(0, 5))
@settings(max_examples=100)
def test_only_predicted_places_change_and_targets_say_what_was_there(
    rows: tuple[np.ndarray, np.ndarray, np.ndarray], config: MaskingConfig, epoch: int
) -> None:
    ids = rows[0].copy()
    out = masked(rows, config, epoch)
    assert np.array_equal(ids, rows[0])  # the input is left as it was
    picked = selected(out)
    assert np.array_equal(out.ids[~picked], ids[~picked])
    assert not picked[~candidates_of(rows)].any()
    used = out.weights > 0
    assert out.positions.shape == (len(ids), min(config.max_predictions, ids.shape[1]))
    assert np.array_equal(ids[np.nonzero(used)[0], out.positions[used]], out.targets[used])
    for positions, here in zip(out.positions, used, strict=True):
        assert (np.diff(positions[here]) > 0).all()
        assert here[: here.sum()].all()
        assert not positions[~here].any()
    # The number wanted is the rate, rounded up or down, one at least: never more is predicted.
    candidates = candidates_of(rows).sum(axis=1)
    most = np.maximum(np.floor(config.rate * candidates) + 1, 1)
    assert (picked.sum(axis=1) <= np.minimum(most, config.max_predictions)).all()


@given(SMALL, configs(*UNITS), st.data())
@settings(max_examples=60)
def test_a_row_is_masked_the_same_in_any_batch(
    rows: tuple[np.ndarray, np.ndarray, np.ndarray], config: MaskingConfig, data: st.DataObject
) -> None:
    whole = masked(rows, config)
    some = np.array(data.draw(st.lists(st.integers(0, len(rows[0]) - 1), min_size=1, max_size=6)))
    part = masked((rows[0][some], rows[1][some], rows[2][some]), config, instances=some)
    for field in fields(Masked):
        assert np.array_equal(getattr(part, field.name), getattr(whole, field.name)[some])


@pytest.mark.parametrize("unit", UNITS)
def test_masks_are_new_in_each_epoch_and_with_each_seed_unless_they_are_static(unit: Any) -> None:
    rows = sample(50, 64)
    config = MaskingConfig(unit=unit, max_predictions=12)
    first = masked(rows, config, epoch=0, seed=3)
    for other in (masked(rows, config, epoch=1, seed=3), masked(rows, config, epoch=0, seed=4)):
        assert (selected(other) != selected(first)).any(axis=1).mean() > 0.95
    static = config.model_copy(update={"dynamic": False})
    for epoch in (0, 1, 7):
        again = masked(rows, static, epoch, seed=3)
        assert np.array_equal(again.ids, first.ids)
        assert np.array_equal(again.positions, first.positions)


def wanted_of(key: np.ndarray, candidates: int, config: MaskingConfig) -> int:
    """The rate of a row, rounded by its coin."""
    wanted = int(np.floor(config.rate * candidates + uniform(key, 4)))
    return min(max(wanted, 1), config.max_predictions, candidates)


@given(SMALL, configs("whole_word"))
@settings(max_examples=80)
def test_whole_units_are_those_that_a_walk_unit_by_unit_takes(
    rows: tuple[np.ndarray, np.ndarray, np.ndarray], config: MaskingConfig
) -> None:
    """google-research/bert walks over shuffled words and skips one that is too long."""
    picked = selected(masked(rows, config))
    candidates = candidates_of(rows)
    for row, units in enumerate(units_of(candidates, rows[2])):
        key = bits(0, 0, row)
        wanted = wanted_of(key, int(candidates[row].sum()), config)
        expected = np.zeros(candidates.shape[1], dtype=bool)
        for begin, end in sorted(units, key=lambda unit: float(uniform(key, 1, unit[0]))):
            if expected.sum() + end - begin <= wanted:
                expected[begin:end] = True
        assert np.array_equal(picked[row], expected)


@given(SMALL, configs("span"), st.sampled_from([1, 3, 10]), st.sampled_from([0.2, 0.6]))
@settings(max_examples=80)
def test_spans_are_those_that_a_walk_word_by_word_takes(
    rows: tuple[np.ndarray, np.ndarray, np.ndarray],
    config: MaskingConfig,
    most_words: int,
    stop: float,
) -> None:
    config = config.model_copy(update={"span_max_words": most_words, "span_stop_probability": stop})
    picked = selected(masked(rows, config))
    candidates = candidates_of(rows)
    shares = np.array([(1 - stop) ** k * stop for k in range(most_words)])
    at_most = np.cumsum(shares / shares.sum())
    for row, units in enumerate(units_of(candidates, rows[2])):
        key = bits(0, 0, row)
        wanted = wanted_of(key, int(candidates[row].sum()), config)
        expected = np.zeros(candidates.shape[1], dtype=bool)
        next_of = dict(itertools.pairwise(units))
        for anchor in sorted(units, key=lambda unit: float(uniform(key, 1, unit[0]))):
            words = 1 + int((at_most[:-1] <= float(uniform(key, 5, anchor[0]))).sum())
            unit: tuple[int, int] | None = anchor
            while unit is not None and words:
                begin, end = unit
                if expected[begin:end].any() or expected.sum() + end - begin > wanted:
                    break
                expected[begin:end] = True
                words -= 1
                follower = next_of.get(unit)
                unit = follower if follower is not None and follower[0] == end else None
        assert np.array_equal(picked[row], expected)


@pytest.mark.parametrize(("unit", "together"), [("whole_word", False), ("span", True)])
def test_pieces_of_a_word_have_their_own_fates_of_a_span_one(unit: Any, together: bool) -> None:
    rows = sample(2000, 64, full=True, sizes=(0.0, 1.0))
    out = masked(rows, MaskingConfig(unit=unit, max_predictions=12, span_max_words=1))
    picked = selected(out)
    is_mask, kept = out.ids == MASK_ID, out.ids == rows[0]
    pairs = mixed = 0
    for row, units in enumerate(units_of(candidates_of(rows), rows[2])):
        for begin, end in units:
            if end - begin == 2 and picked[row, begin]:
                pairs += 1
                mixed += is_mask[row, begin] != is_mask[row, begin + 1]
    assert pairs > 5000
    # Two pieces that are decided alone differ in being [MASK] in 2 * 0.8 * 0.2 of all cases.
    expected = 0.0 if together else 0.32
    assert abs(mixed / pairs - expected) <= 5 * math.sqrt(expected * (1 - expected) / pairs)
    assert abs(kept[picked].mean() - 0.1) < 5 * math.sqrt(0.1 * 0.9 / pairs)


def test_span_lengths_are_the_geometric_draw_of_spanbert() -> None:
    """Joshi et al. 2020, section 3.1: Geo(0.2) up to 10, 3.8 words on average."""
    draws = span_lengths(
        extend(bits(0, 0, np.arange(2000))[:, None], np.arange(100)), _span_shares(MaskingConfig())
    ).ravel()
    shares = np.array([0.2 * 0.8**k for k in range(10)])
    shares /= shares.sum()
    expected = shares * len(draws)
    chi_square = ((np.bincount(draws, minlength=11)[1:] - expected) ** 2 / expected).sum()
    assert draws.min() == 1
    assert draws.max() == 10
    assert abs(chi_square - 9) < 5 * math.sqrt(2 * 9)
    assert abs((shares * np.arange(1, 11)).sum() - 3.8) < 0.005
    assert abs(draws.mean() - 3.797) < 0.02
