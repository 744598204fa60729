"""The fast builders and the slow ones of slow_instances.py draw from the same distributions.

Pairs of one shard are not independent (a label owed is made up for later), so a shard is the unit:
each gives a vector of counts, and the mean vectors of many shards are compared by Hotelling's
two-sample T squared, which estimates the covariance instead of assuming it. What is independent is
compared by a chi-square test of homogeneity.

The level of the whole file is 1e-4, shared out evenly (Bonferroni). Its power is shown, not
assumed: each test is run again on a mistake made on purpose, and has to reject it. Seeds are fixed,
so the outcome changes only with the code.
"""

import gzip
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from rungwise.corpus.cleaning.sentences import segment
from rungwise.instances import pairs, sentence_order
from rungwise.instances.masking import MaskingConfig, Vocabulary, mask
from rungwise.instances.shards import Shard
from rungwise.tokenizer import SpecialIds
from rungwise.tokens.text import TokenisedText
from tests.reference import slow_instances as slow
from tests.reference.slow_instances import Masked, Pair, Wrong

COMPARISONS = 21  # of ours with the slow one in this file
LEVEL = 1e-4 / COMPARISONS
SHARDS = 1200  # of each side of a comparison
ROWS = 12_000

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4, ids=(0, 1, 2, 3, 4))
FIRST_ID = 5
SHORT_RATE = 0.1


@dataclass(frozen=True)
class Fixture:
    """A text whose every token has its own id, so that an instance tells where it was taken."""

    lengths: tuple[tuple[int, ...], ...]  # of the sentences of each document
    sequence_length: int

    @property
    def documents(self) -> list[list[list[int]]]:
        ids = iter(range(FIRST_ID, 1_000_000))
        return [[[next(ids) for _ in range(n)] for n in document] for document in self.lengths]

    @property
    def text(self) -> TokenisedText:
        flat = [n for document in self.lengths for n in document]
        return TokenisedText(
            ids=np.arange(FIRST_ID, FIRST_ID + sum(flat), dtype=np.uint32),
            starts=np.concatenate([[0], np.cumsum(flat)]).astype(np.int64),
            first_sentence=np.concatenate([[0], np.cumsum([len(d) for d in self.lengths])]).astype(
                np.int64
            ),
            documents=np.arange(10, 10 + len(self.lengths), dtype=np.uint64),
        )


def synthetic() -> Fixture:
    """Twelve documents of 1 to 14 sentences, some of a single one, some sentences too long."""
    rng = Random(7)
    lengths = [
        tuple(rng.choice((2, 5, 8, 11, 20, 35)) for _ in range(count))
        for count in (1, 14, 6, 3, 9, 1, 12, 2, 7, 4, 10, 5)
    ]
    return Fixture(tuple(lengths), sequence_length=32)


def english(real_data: Path) -> Fixture:
    """The first nine news stories and the sentences they have, in words."""
    path = real_data / "corpora" / "en" / "reuters21578" / "reuters-000-018.txt.gz"
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        stories = stream.read(60_000).split("\n\n")[:9]
    lengths = [tuple(len(s.split()) for s in segment(story.strip())) for story in stories]
    return Fixture(tuple(lengths), sequence_length=64)


# Ours as the slow one's types


def our_pairs(fixture: Fixture, seed: int) -> list[Pair]:
    config = pairs.MaskedPairsConfig(sequence_length=fixture.sequence_length, short_rate=SHORT_RATE)
    return _pairs_of(config.build(fixture.text, SPECIAL, _rng(seed)).shard, "is_next")


def our_ordered_pairs(fixture: Fixture, seed: int) -> list[Pair]:
    config = sentence_order.SentenceOrderConfig(
        sequence_length=fixture.sequence_length, short_rate=SHORT_RATE
    )
    built = config.build(fixture.text, SPECIAL, _rng(seed))
    return _pairs_of(built.shard, "in_order")


def _pairs_of(shard: Shard, label: str) -> list[Pair]:
    pairs = []
    for row in range(len(shard)):
        ids = shard.ids[shard.offsets[row] : shard.offsets[row + 1]].tolist()
        middle = int(shard.columns["a_length"][row])
        pairs.append(Pair(ids[1 : middle - 1], ids[middle:-1], int(shard.columns[label][row])))
    return pairs


def _rng(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


def slow_pairs(fixture: Fixture, seed: int, wrong: Wrong = slow.RIGHT) -> list[Pair]:
    return slow.next_sentence_pairs(
        fixture.documents, fixture.sequence_length, SHORT_RATE, Random(seed), wrong
    )


# What is counted of a pair


class Places:
    """Where a token stands in its text, by its id."""

    def __init__(self, fixture: Fixture) -> None:
        self.room = fixture.sequence_length - 3
        self.document: dict[int, int] = {}
        self.sentence: dict[int, int] = {}
        self.offset: dict[int, int] = {}  # from the front of its sentence
        self.left: dict[int, int] = {}  # to the back of it
        for d, document in enumerate(fixture.documents):
            for s, sentence in enumerate(document):
                for at, token in enumerate(sentence):
                    self.document[token] = d
                    self.sentence[token] = s
                    self.offset[token] = at
                    self.left[token] = len(sentence) - 1 - at

    def truncated(self, pair: Pair) -> bool:
        cuts = (self.offset[side[0]] + self.left[side[-1]] for side in (pair.a, pair.b))
        return sum(cuts) > 0


def joint(pair: Pair, places: Places) -> tuple[int, ...]:
    """(label, length of A and of B in quarters of the room, class of their sum, truncated)."""
    a, b, room = len(pair.a), len(pair.b), places.room
    length_class = 0 if a + b < room // 2 else 1 if a + b < room else 2
    quarters = 4 * a // (room + 1), 4 * b // (room + 1)
    return (pair.label, *quarters, length_class, int(places.truncated(pair)))


def cuts(pair: Pair, places: Places) -> tuple[int, ...]:
    """How many tokens each of the four ends lost (up to 4), if any did."""
    lost = (
        places.offset[pair.a[0]],
        places.left[pair.a[-1]],
        places.offset[pair.b[0]],
        places.left[pair.b[-1]],
    )
    return tuple(min(count, 4) // 2 for count in lost)


def origins(pair: Pair, places: Places) -> tuple[int, ...]:
    """Where B was taken: its document and its sentence, and the label."""
    b = pair.b[0]
    return (pair.label, places.document[b], min(places.sentence[b], 5))


def balance(pair: Pair, places: Places) -> tuple[int, ...]:
    """The label, and which side of a truncated pair is the longer."""
    difference = len(pair.a) - len(pair.b)
    return (pair.label, places.truncated(pair), max(-2, min(2, difference)))


# The tests of two samples

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


def homogeneous(ours: Iterable[object], theirs: Iterable[object]) -> float:
    """The p value of a chi-square test; kinds expected less than ten times are taken together."""
    left, right = Counter(ours), Counter(theirs)
    kinds = set(left) | set(right)
    rare = {kind for kind in kinds if left[kind] + right[kind] < 20}
    table = [[count[kind] for kind in kinds - rare] for count in (left, right)]
    if rare:
        for row, count in zip(table, (left, right), strict=True):
            row.append(sum(count[kind] for kind in rare))
    return float(stats.chi2_contingency(np.array(table))[1])  # pyright: ignore[reportArgumentType]


# Next-sentence pairs

Feature = Callable[[Pair, Places], tuple[int, ...]]


@cache
def _features(
    fixture: Fixture, side: str, feature: Feature, wrong: Wrong = slow.RIGHT
) -> list[list[object]]:
    places = Places(fixture)
    make: dict[str, Callable[[int], list[Pair]]] = {
        "ours": lambda seed: our_pairs(fixture, seed),
        "slow": lambda seed: slow_pairs(fixture, 10_000 + seed, wrong),
        "ours in order": lambda seed: our_ordered_pairs(fixture, seed),
    }
    return [[feature(pair, places) for pair in make[side](seed)] for seed in range(SHARDS)]


@pytest.mark.parametrize("feature", [joint, cuts, origins])
def test_pairs_of_synthetic_documents_are_distributed_as_the_slow_ones(feature: Feature) -> None:
    fixture = synthetic()
    ours, theirs = _features(fixture, "ours", feature), _features(fixture, "slow", feature)
    assert same_counts(ours, theirs) > LEVEL


@pytest.mark.parametrize("feature", [joint, cuts, origins])
def test_pairs_of_real_english_are_distributed_as_the_slow_ones(
    real_data: Path, feature: Feature
) -> None:
    fixture = english(real_data)
    ours, theirs = _features(fixture, "ours", feature), _features(fixture, "slow", feature)
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
    fixture = synthetic()
    ours, theirs = _features(fixture, "ours", feature), _features(fixture, "slow", feature, wrong)
    assert same_counts(ours, theirs) < LEVEL


# Sentence order


def _slow_ordered(fixture: Fixture, swapped_share: float = 0.5) -> list[list[object]]:
    places = Places(fixture)
    return [
        [
            (joint(pair, places), balance(pair, places))
            for pair in slow.sentence_order_pairs(
                fixture.documents,
                fixture.sequence_length,
                SHORT_RATE,
                Random(10_000 + seed),
                swapped_share,
            )
        ]
        for seed in range(SHARDS)
    ]


def _order_features(pair: Pair, places: Places) -> tuple[object, ...]:
    return (joint(pair, places), balance(pair, places))


def test_ordered_pairs_are_distributed_as_the_slow_ones() -> None:
    fixture = synthetic()
    ours = _features(fixture, "ours in order", _order_features)
    assert same_counts(ours, _slow_ordered(fixture)) > LEVEL


def test_no_difference_of_lengths_occurs_with_one_label_only() -> None:
    features = _features(synthetic(), "ours in order", balance)
    seen: Counter[Any] = Counter(feature for run in features for feature in run)
    for truncated, difference in {key[1:] for key in seen}:
        swapped, in_order = (seen[label, truncated, difference] for label in (0, 1))
        if swapped + in_order > 400:
            assert min(swapped, in_order) > 0.25 * (swapped + in_order)


def test_swapping_too_rarely_is_seen() -> None:
    fixture = synthetic()
    ours = _features(fixture, "ours in order", _order_features)
    assert same_counts(ours, _slow_ordered(fixture, swapped_share=0.45)) < LEVEL


# Masks

VOCAB_SIZE = 48
ORDINARY = range(FIRST_ID, VOCAB_SIZE)
LONGEST = 40


@cache
def _rows() -> list[tuple[list[int], list[list[int]]]]:
    """`[CLS] A [SEP] B [SEP]` of 9 to 40 tokens, and where the tokens of each word stand."""
    rng = Random(3)
    rows = []
    for _ in range(ROWS):
        ids, words = [2], []
        for size in (rng.randint(3, 20), rng.randint(3, 17)):
            end = len(ids) + size
            while len(ids) < end:
                pieces = min(rng.choice((1, 1, 1, 2, 3)), end - len(ids))
                words.append(list(range(len(ids), len(ids) + pieces)))
                ids += [rng.choice(ORDINARY) for _ in range(pieces)]
            ids.append(3)
        rows.append((ids, words))
    return rows


CONFIGS = {
    "token": MaskingConfig(max_predictions=6),
    "whole_word": MaskingConfig(unit="whole_word", max_predictions=6),
    "span": MaskingConfig(unit="span", rate=0.3, max_predictions=12, span_max_words=5),
}


@cache
def our_masks(unit: str, epoch: int = 0) -> list[Masked]:
    lengths = np.array([len(row) for row, _ in _rows()])
    ids = np.zeros((ROWS, LONGEST), dtype=np.int64)
    starts = np.ones((ROWS, LONGEST), dtype=bool)
    for number, (row, words) in enumerate(_rows()):
        ids[number, : len(row)] = row
        for word in words:
            starts[number, word[1:]] = False
    vocabulary = Vocabulary(VOCAB_SIZE, SPECIAL)
    epochs = np.full(ROWS, epoch)
    masked = mask(ids, lengths, starts, np.arange(ROWS), epochs, 11, vocabulary, CONFIGS[unit])
    found = []
    for row, length in enumerate(lengths):
        used = masked.weights[row] > 0
        found.append(
            Masked(
                masked.ids[row, :length].tolist(),
                masked.positions[row, used].tolist(),
                masked.targets[row, used].tolist(),
            )
        )
    return found


@cache
def slow_masks(seed: int = 0, last_id: int = VOCAB_SIZE, **changes: float) -> list[Masked]:
    rng, special, ordinary = Random(seed), set(SPECIAL.ids), range(FIRST_ID, last_id)
    return [
        slow.mask_tokens(row, special, 4, ordinary, rng, max_predictions=6, **changes)
        for row, _ in _rows()
    ]


@cache
def slow_words(**changes: bool) -> list[Masked]:
    rng = Random(0)
    return [
        slow.mask_words(row, words, 4, ORDINARY, rng, max_predictions=6, **changes)
        for row, words in _rows()
    ]


@cache
def slow_spans(**changes: bool) -> list[Masked]:
    rng = Random(0)
    return [
        slow.mask_spans(
            row, words, 4, ORDINARY, rng, rate=0.3, max_predictions=12, longest=5, **changes
        )
        for row, words in _rows()
    ]


def how_many(masks: list[Masked]) -> list[object]:
    """(length of the instance, tokens selected)"""
    return [(len(masked.tokens), len(masked.positions)) for masked in masks]


def what_instead(masks: list[Masked]) -> list[object]:
    """Of every selected token: its id if it was replaced by an ordinary one, or kept."""
    found: list[object] = []
    for masked in masks:
        for at, target in zip(masked.positions, masked.targets, strict=True):
            now = masked.tokens[at]
            found.append("kept" if now == target else now)
    return found


def how_near(masks: list[Masked]) -> list[object]:
    """The least distance between two selected tokens of an instance."""
    return [
        min((b - a for a, b in zip(m.positions, m.positions[1:], strict=False)), default=0)
        for m in masks
    ]


def where(masks: list[Masked]) -> list[list[object]]:
    """The positions selected in an instance, as a share of its length, in twelfths."""
    return [[12 * at // len(m.tokens) for at in m.positions] for m in masks]


def runs(masks: list[Masked]) -> list[object]:
    """The numbers of words in the stretches of words that are selected whole, and the rest."""
    found: list[object] = []
    for masked, (_, words) in zip(masks, _rows(), strict=True):
        chosen, lengths, whole = set(masked.positions), [], 0
        before = -1
        for word in words:
            if chosen.issuperset(word):
                whole += len(word)
                if lengths and word[0] == before + 1:
                    lengths[-1] += 1
                else:
                    lengths.append(1)
                before = word[-1]
        found.append((*sorted(lengths), len(chosen) - whole))
    return found


def sizes(masks: list[Masked]) -> list[object]:
    """The numbers of tokens in the words that are selected whole, and the rest."""
    found: list[object] = []
    for masked, (_, words) in zip(masks, _rows(), strict=True):
        chosen = set(masked.positions)
        taken = sorted(len(word) for word in words if chosen.issuperset(word))
        found.append((*taken, len(chosen) - sum(taken)))
    return found


def fates(masks: list[Masked]) -> list[object]:
    """What became of the first three selected tokens of an instance."""
    return [
        tuple(
            "mask" if m.tokens[at] == 4 else "kept" if m.tokens[at] == target else "random"
            for at, target in zip(m.positions[:3], m.targets[:3], strict=True)
        )
        for m in masks
    ]


Count = Callable[[list[Masked]], list[object]]


@pytest.mark.parametrize("count", [how_many, what_instead, how_near, fates])
def test_masks_are_distributed_as_the_slow_ones(count: Count) -> None:
    assert homogeneous(count(our_masks("token")), count(slow_masks())) > LEVEL


def test_masks_fall_everywhere_alike() -> None:
    assert same_counts(where(our_masks("token")), where(slow_masks())) > LEVEL


@pytest.mark.parametrize(
    ("count", "changes"),
    [
        (how_many, {"rate": 0.14}),
        (what_instead, {"mask_share": 0.78, "random_share": 0.12}),
        (what_instead, {"last_id": VOCAB_SIZE - 1}),
    ],
)
def test_each_mistake_in_masks_is_seen(count: Count, changes: dict[str, float]) -> None:
    assert homogeneous(count(our_masks("token")), count(slow_masks(**changes))) < LEVEL


def test_neighbours_selected_together_and_a_shift_are_seen() -> None:
    together = [m._replace(positions=[p - p % 2 for p in m.positions]) for m in slow_masks()]
    assert homogeneous(how_near(our_masks("token")), how_near(together)) < LEVEL
    shifted = [m._replace(positions=[max(1, p - 1) for p in m.positions]) for m in slow_masks()]
    assert same_counts(where(our_masks("token")), where(shifted)) < LEVEL


def _overlaps(first: list[Masked], second: list[Masked]) -> list[object]:
    return [
        (len(one.tokens), len(set(one.positions) & set(other.positions)))
        for one, other in zip(first, second, strict=True)
    ]


def test_masks_of_two_epochs_overlap_as_independent_ones_and_a_repeated_epoch_is_seen() -> None:
    independent = _overlaps(slow_masks(1), slow_masks(2))
    assert homogeneous(_overlaps(our_masks("token", 0), our_masks("token", 1)), independent) > LEVEL
    assert homogeneous(_overlaps(our_masks("token", 0), our_masks("token", 0)), independent) < LEVEL


@pytest.mark.parametrize("count", [how_many, sizes, runs, fates])
def test_whole_words_are_distributed_as_the_slow_ones(count: Count) -> None:
    assert homogeneous(count(our_masks("whole_word")), count(slow_words())) > LEVEL


def test_stopping_at_the_first_word_that_is_too_long_is_seen() -> None:
    stopping = slow_words(stop_at_the_first_too_long=True)
    assert homogeneous(how_many(our_masks("whole_word")), how_many(stopping)) < LEVEL


@pytest.mark.parametrize("count", [how_many, runs, fates])
def test_spans_are_distributed_as_the_slow_ones(count: Count) -> None:
    assert homogeneous(count(our_masks("span")), count(slow_spans())) > LEVEL


@pytest.mark.parametrize(
    ("count", "changes"),
    [
        (runs, {"one_more": True}),  # the geometric draw off by one
        (runs, {"clipped": True}),  # long spans cut to five words instead of drawn again
        (fates, {"one_fate": False}),
    ],
)
def test_each_mistake_in_spans_is_seen(count: Count, changes: dict[str, bool]) -> None:
    assert homogeneous(count(our_masks("span")), count(slow_spans(**changes))) < LEVEL
