"""Context windows, skip-gram and CBOW: worked by hand, against loops, and by word2vec's formula."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rungwise.core.errors import DataError
from rungwise.instances import contexts, shards, windows
from rungwise.instances.contexts import ContextsConfig
from rungwise.instances.contract import Facts
from rungwise.instances.rows import PaddedRows, padded
from rungwise.instances.text import TokenisedText
from rungwise.instances.windows import WindowsConfig
from rungwise.tokenizer import SpecialIds

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4, end=3, ids=(0, 1, 2, 3, 4))
FACTS = Facts("s", 1000, SPECIAL, 0)
RNG = np.random.default_rng(0)
SENTENCES = st.lists(st.integers(1, 30), min_size=1, max_size=12)


def text_of(lengths: list[int]) -> TokenisedText:
    """One document with sentences of these lengths; all tokens differ."""
    return TokenisedText(
        ids=np.arange(10, 10 + sum(lengths), dtype=np.uint16),
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        first_sentence=np.array([0, len(lengths)]),
        documents=["d"],
    )


def test_context_windows_worked_by_hand() -> None:
    """Two sentences, 10 11 and 12: every token and both end symbols are predicted."""
    config = ContextsConfig(context_size=2)
    shard = contexts.build(text_of([2, 1]), config, SPECIAL, RNG).shard
    assert contexts.instances_of(shard) == 5
    before, targets = contexts.windows(shard, np.arange(5), 2, 2)
    assert before.tolist() == [[2, 2], [2, 10], [10, 11], [2, 2], [2, 12]]
    assert targets.tolist() == [10, 11, 3, 12, 3]


@given(SENTENCES, st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_context_windows_are_those_of_a_plain_loop(lengths: list[int], size: int) -> None:
    config = ContextsConfig(context_size=size)
    shard = contexts.build(text_of(lengths), config, SPECIAL, RNG).shard
    expected, token = [], 10
    for length in lengths:
        sentence = [2] * size + list(range(token, token + length)) + [3]
        token += length
        expected += [(sentence[at - size : at], sentence[at]) for at in range(size, len(sentence))]
    before, targets = contexts.windows(shard, np.arange(len(expected)), size, 2)
    assert before.tolist() == [context for context, _ in expected]
    assert targets.tolist() == [target for _, target in expected]
    counts = contexts.check(shard, FACTS, config)
    assert counts["instances"] == len(expected)


def test_an_end_symbol_inside_a_sentence_is_caught() -> None:
    config = ContextsConfig()
    shard = contexts.build(text_of([5, 5]), config, SPECIAL, RNG).shard
    ids = shard.ids.copy()
    ids[2] = 3
    with pytest.raises(DataError, match=r"tokens \[SEP\] must be exactly 2, found 3"):
        contexts.check(shards.Shard(ids, shard.offsets), FACTS, config)


def rows_of(lengths: list[int]) -> PaddedRows:
    config = WindowsConfig(sequence_length=40)
    shard = windows.build(text_of(lengths), config, SPECIAL, RNG).shard
    everything = np.arange(len(shard))
    return padded(shard, everything, everything, 40, 0)


ALL = np.ones(1000)


def test_skip_gram_pairs_worked_by_hand() -> None:
    """With a window of one every word pairs with its neighbours, and never across sentences."""
    rows = rows_of([3, 2])
    batch = windows.skip_gram(rows, np.zeros(2, int), 0, 1, ALL)
    pairs = list(zip(batch.centres.tolist(), batch.contexts.tolist(), strict=True))
    assert pairs == [(10, 11), (11, 10), (11, 12), (12, 11), (13, 14), (14, 13)]
    bags = windows.cbow(rows, np.zeros(2, int), 0, 1, ALL)
    assert bags.centres.tolist() == [10, 11, 12, 13, 14]
    found = [
        context[weight > 0].tolist()
        for context, weight in zip(bags.contexts, bags.weights, strict=True)
    ]
    assert found == [[11], [10, 12], [11], [14], [13]]


@given(SENTENCES, st.integers(1, 6), st.floats(0.2, 1), st.integers(0, 50))
@settings(max_examples=100, deadline=None)
def test_windows_reach_over_dropped_words_and_are_the_same_in_any_batch(
    lengths: list[int], window: int, keep: float, seed: int
) -> None:
    rows = rows_of([2, *lengths])
    share = np.full(1000, keep)
    epochs = np.zeros(len(rows.ids), int)
    batch = windows.skip_gram(rows, epochs, seed, window, share)
    stays = windows.stays(rows, epochs, seed, share)
    place = {}
    for row in range(len(rows.ids)):
        for index, token in enumerate(rows.ids[row][stays[row]].tolist()):
            place[token] = (row, index)
    reaches: dict[int, set[int]] = {}
    for centre, context in zip(batch.centres.tolist(), batch.contexts.tolist(), strict=True):
        assert place[centre][0] == place[context][0]
        distance = abs(place[centre][1] - place[context][1])
        assert 1 <= distance <= window
        reaches.setdefault(centre, set()).add(distance)
    # A centre sees everything up to its reach: distances have no gap.
    for seen in reaches.values():
        assert seen == set(range(1, max(seen) + 1))
    alone = PaddedRows(rows.instances[-1:], rows.ids[-1:], rows.lengths[-1:], {}, None)
    part = windows.skip_gram(alone, epochs[-1:], seed, window, share)
    whole = np.isin(batch.centres, alone.ids)
    assert part.centres.tolist() == batch.centres[whole].tolist()
    assert part.contexts.tolist() == batch.contexts[whole].tolist()
    bags = windows.cbow(rows, epochs, seed, window, share)
    assert bags.weights.sum() == len(batch.centres)


def test_reaches_are_uniform_and_epochs_differ() -> None:
    rows = rows_of([40] * 800)
    epochs = np.zeros(800, int)
    everything = np.ones(10 + 800 * 40)
    batch = windows.skip_gram(rows, epochs, 0, 5, everything)
    # Of a centre in the middle, reach r gives 2 r pairs; a uniform r over 1..5 gives 6 on average.
    counts = np.bincount(batch.centres, minlength=10 + 800 * 40)[10:].reshape(800, 40)[:, 5:35]
    histogram = np.bincount(counts.ravel() // 2, minlength=6)[1:]
    expected = counts.size / 5
    assert ((histogram - expected) ** 2 / expected).sum() < 4 + 5 * math.sqrt(8)
    other = windows.skip_gram(rows, epochs + 1, 0, 5, everything)
    assert len(other.centres) != len(batch.centres)


def test_subsampling_keeps_words_as_word2vec_does() -> None:
    """word2vec.c: (sqrt(f / t) + 1) t / f. With t = 1e-3, f = 0.1: (10 + 1) / 100 = 0.11."""
    counts = np.zeros(1000, dtype=np.int64)
    counts[10], counts[11], counts[12] = 1_000, 100, 8_900
    keep = windows.keep_probability(counts, 1e-3)
    assert keep[10] == pytest.approx(0.11)
    assert keep[11] == pytest.approx((math.sqrt(10) + 1) / 10)
    assert keep[5] == 1
    assert (windows.keep_probability(counts, 0) == 1).all()
    rows = PaddedRows(np.arange(2000), np.full((2000, 40), 10), np.full(2000, 40), {}, None)
    stays = windows.stays(rows, np.zeros(2000, int), 0, keep)
    assert abs(stays.mean() - 0.11) < 5 * math.sqrt(0.11 * 0.89 / 80_000)


def test_long_sentences_are_cut_and_lone_words_left_out(tmp_path: Path) -> None:
    built = windows.build(text_of([95, 1, 41, 7]), WindowsConfig(sequence_length=40), SPECIAL, RNG)
    assert built.shard.lengths.tolist() == [40, 40, 15, 40, 7]
    assert built.counts == {"left_out": 2, "truncated": 2}
    shards.write(built.shard, tmp_path / "s")
    assert np.array_equal(shards.read(tmp_path / "s").ids, built.shard.ids)
    assert windows.check(built.shard, FACTS, WindowsConfig(sequence_length=40))["tokens"] == 142
