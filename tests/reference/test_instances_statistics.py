"""The fast builders and the slow ones of slow_instances.py draw from the same distributions.

Pairs of one shard are not independent (a label owed is made up for later), so a shard is the unit:
each gives a vector of counts, and the mean vectors of many shards are compared by Hotelling's
two-sample T squared, which estimates the covariance instead of assuming it. Masks are compared one
by one, with a walk over units (tests/unit/instances/test_masking.py).

The level of the whole file is 1e-4, shared out evenly (Bonferroni). Its power is shown, not
assumed: each test is run again on a mistake made on purpose, and has to reject it. Seeds are fixed,
so the outcome changes only with the code.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from rungwise.core.tokens import SpecialIds
from rungwise.instances import pairs
from rungwise.instances.shards import Shard
from tests.corpora import text_of
from tests.reference import slow_instances as slow
from tests.reference.slow_instances import Pair, Wrong

COMPARISONS = 4  # of ours with the slow one in this file
LEVEL = 1e-4 / COMPARISONS
SHARDS = 600  # of each side of a comparison
HALF = SHARDS // 2  # what these show to be different, all would

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4, ids=(0, 1, 2, 3, 4))
FIRST_ID = 10
SHORT_RATE = 0.1


LENGTH = 32  # of a row
_rng_of_lengths = Random(7)
# Twelve documents of 1 to 14 sentences, some of a single one, some sentences too long.
LENGTHS = [
    [_rng_of_lengths.choice((2, 5, 8, 11, 20, 35)) for _ in range(count)]
    for count in (1, 14, 6, 3, 9, 1, 12, 2, 7, 4, 10, 5)
]
# Every token has its own id, so that an instance tells where it was taken.
_ids = iter(range(FIRST_ID, 1_000_000))
DOCUMENTS = [[[next(_ids) for _ in range(n)] for n in document] for document in LENGTHS]
TEXT = text_of(LENGTHS)


def our_pairs(seed: int) -> list[Pair]:
    config = pairs.MaskedPairsConfig(sequence_length=LENGTH, short_rate=SHORT_RATE)
    return _pairs_of(config.build(TEXT, SPECIAL, _rng(seed)).shard, "is_next")


def our_ordered_pairs(seed: int) -> list[Pair]:
    config = pairs.SentenceOrderConfig(sequence_length=LENGTH, short_rate=SHORT_RATE)
    return _pairs_of(config.build(TEXT, SPECIAL, _rng(seed)).shard, "in_order")


def _pairs_of(shard: Shard, label: str) -> list[Pair]:
    pairs = []
    for row in range(len(shard)):
        ids = shard.ids[shard.offsets[row] : shard.offsets[row + 1]].tolist()
        middle = int(shard.columns["a_length"][row])
        pairs.append(Pair(ids[1 : middle - 1], ids[middle:-1], int(shard.columns[label][row])))
    return pairs


def _rng(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


def slow_pairs(seed: int, wrong: Wrong = slow.RIGHT) -> list[Pair]:
    return slow.next_sentence_pairs(DOCUMENTS, LENGTH, SHORT_RATE, Random(seed), wrong)


class Places:
    """Where a token stands in its text, by its id."""

    def __init__(self, documents: list[list[list[int]]]) -> None:
        self.document: dict[int, int] = {}
        self.sentence: dict[int, int] = {}
        self.offset: dict[int, int] = {}  # from the front of its sentence
        self.left: dict[int, int] = {}  # to the back of it
        for d, document in enumerate(documents):
            for s, sentence in enumerate(document):
                for at, token in enumerate(sentence):
                    self.document[token] = d
                    self.sentence[token] = s
                    self.offset[token] = at
                    self.left[token] = len(sentence) - 1 - at

    def truncated(self, pair: Pair) -> bool:
        cuts = (self.offset[side[0]] + self.left[side[-1]] for side in (pair.a, pair.b))
        return sum(cuts) > 0


PLACES = Places(DOCUMENTS)


def joint(pair: Pair) -> tuple[int, ...]:
    """(label, length of A and of B in quarters of the room, class of their sum, truncated)."""
    a, b, room = len(pair.a), len(pair.b), LENGTH - 3
    length_class = 0 if a + b < room // 2 else 1 if a + b < room else 2
    quarters = 4 * a // (room + 1), 4 * b // (room + 1)
    return (pair.label, *quarters, length_class, int(PLACES.truncated(pair)))


def cuts(pair: Pair) -> tuple[int, ...]:
    """How many tokens each of the four ends lost (up to 4), if any did."""
    lost = (
        PLACES.offset[pair.a[0]],
        PLACES.left[pair.a[-1]],
        PLACES.offset[pair.b[0]],
        PLACES.left[pair.b[-1]],
    )
    return tuple(min(count, 4) // 2 for count in lost)


def origins(pair: Pair) -> tuple[int, ...]:
    """Where B was taken: its document and its sentence, and the label."""
    b = pair.b[0]
    return (pair.label, PLACES.document[b], min(PLACES.sentence[b], 5))


def balance(pair: Pair) -> tuple[int, ...]:
    """The label, and which side of a truncated pair is the longer."""
    difference = len(pair.a) - len(pair.b)
    return (pair.label, PLACES.truncated(pair), max(-2, min(2, difference)))


Runs = Sequence[Sequence[object]]  # what was found in each run


def hotelling(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> float:
    """The p value of equal mean vectors; a row is an independent observation."""
    n, m = len(ours), len(theirs)
    difference = ours.mean(axis=0) - theirs.mean(axis=0)
    pooled = ((n - 1) * np.cov(ours.T) + (m - 1) * np.cov(theirs.T)) / (n + m - 2)
    # Counts may add up to a constant: directions without variance are left out of the statistic,
    # and must not differ.
    values, vectors = np.linalg.eigh(pooled)
    free = values > 1e-9 * values.max()
    if np.abs(difference @ vectors[:, ~free]).max(initial=0) > 1e-6:
        return 0.0
    rank = int(free.sum())
    t_squared = n * m / (n + m) * ((difference @ vectors[:, free]) ** 2 / values[free]).sum()
    degrees = n + m - rank - 1
    return float(stats.f.sf(t_squared * degrees / (rank * (n + m - 2)), rank, degrees))


def counted(runs: Iterable[Sequence[object]], kinds: dict[object, int]) -> NDArray[np.float64]:
    """A row a run: how often each of `kinds` occurred; the last column is for all others."""
    table = []
    for run in runs:
        row = [0.0] * (len(kinds) + 1)
        for kind, count in Counter(run).items():
            row[kinds.get(kind, len(kinds))] += count
        table.append(row)
    return np.array(table)


def same_counts(ours: Runs, theirs: Runs) -> float:
    """Hotelling's test on the kinds that occur once in ten runs or more."""
    total = Counter(kind for runs in (ours, theirs) for run in runs for kind in run)
    common = [kind for kind, count in total.items() if count >= 0.2 * len(ours)]
    kinds = {kind: place for place, kind in enumerate(common)}
    return hotelling(counted(ours, kinds), counted(theirs, kinds))


Feature = Callable[[Pair], tuple[object, ...]]


@cache
def _pairs(side: str) -> list[list[Pair]]:
    make: dict[str, Callable[[int], list[Pair]]] = {
        "ours": our_pairs,
        "slow": lambda seed: slow_pairs(10_000 + seed),
        "ours in order": our_ordered_pairs,
    }
    return [make[side](seed) for seed in range(SHARDS)]


def _features(runs: Iterable[Sequence[Pair]], feature: Feature) -> list[list[object]]:
    return [[feature(pair) for pair in run] for run in runs]


@pytest.mark.parametrize("feature", [joint, cuts, origins])
def test_pairs_of_synthetic_documents_are_distributed_as_the_slow_ones(feature: Feature) -> None:
    ours, theirs = _features(_pairs("ours"), feature), _features(_pairs("slow"), feature)
    assert same_counts(ours, theirs) > LEVEL


@pytest.mark.parametrize(
    ("feature", "wrong"),
    [
        (joint, Wrong(random_share=0.45)),
        (joint, Wrong(cut_in_the_middle=True)),
        (joint, Wrong(short_rate=0.16)),
        (cuts, Wrong(even_pieces=True)),
        (joint, Wrong(b_fills_the_row=True)),
        (origins, Wrong(b_from_its_first_sentence=True)),
    ],
)
def test_each_mistake_in_pairs_is_seen(feature: Feature, wrong: Wrong) -> None:
    theirs = (slow_pairs(10_000 + seed, wrong) for seed in range(HALF))
    ours = _features(_pairs("ours")[:HALF], feature)
    assert same_counts(ours, _features(theirs, feature)) < LEVEL


def _order_features(pair: Pair) -> tuple[object, ...]:
    return (joint(pair), balance(pair))


def _slow_ordered(swapped_share: float) -> Iterable[list[Pair]]:
    for seed in range(SHARDS):
        rng = Random(10_000 + seed)
        yield slow.sentence_order_pairs(DOCUMENTS, LENGTH, SHORT_RATE, rng, swapped_share)


def _p_in_order(swapped_share: float) -> float:
    sides = _pairs("ours in order"), _slow_ordered(swapped_share)
    return same_counts(*(_features(side, _order_features) for side in sides))


def test_ordered_pairs_are_distributed_as_the_slow_ones() -> None:
    assert _p_in_order(swapped_share=0.5) > LEVEL


def test_swapping_too_rarely_is_seen() -> None:
    assert _p_in_order(swapped_share=0.45) < LEVEL


def test_no_difference_of_lengths_occurs_with_one_label_only() -> None:
    features = _features(_pairs("ours in order"), balance)
    seen: Counter[Any] = Counter(feature for run in features for feature in run)
    for truncated, difference in {key[1:] for key in seen}:
        swapped, in_order = (seen[label, truncated, difference] for label in (0, 1))
        if swapped + in_order > 400:
            assert min(swapped, in_order) > 0.25 * (swapped + in_order)
