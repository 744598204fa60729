"""Brown clusters against merging by brute force and the mutual information of another program."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rungwise.models.families.brown_clusters import (
    Clusters,
    Integers,
    cluster_words,
    mutual_information,
)

Pairs = tuple[Integers, Integers, Integers]


def adjacent(ids: list[int]) -> Pairs:
    """The distinct pairs of neighbours, and the count of each."""
    pairs = Counter(itertools.pairwise(ids))
    columns = np.array([(*pair, count) for pair, count in pairs.items()], np.int64)
    return columns[:, 0], columns[:, 1], columns[:, 2]


def by_brute_force(pairs: Pairs, counts_V: Integers, classes: int) -> list[tuple[int, ...]]:
    """The classes by trying every merge; rejects an example in which two are equally good."""
    order = np.argsort(-counts_V, kind="stable")[: np.count_nonzero(counts_V)]
    left, right, count = pairs
    inside = (counts_V[left] > 0) & (counts_V[right] > 0)
    table = np.zeros((len(counts_V),) * 2)
    table[left[inside], right[inside]] = count[inside] / count[inside].sum()

    def information(groups: list[tuple[int, ...]]) -> float:
        """The sum over pairs of groups, by their sizes in the whole text."""
        total = 0.0
        for one, other in itertools.product(groups, repeat=2):
            if joint := table[np.ix_(one, other)].sum():
                alone = table[list(one)].sum() * table[:, list(other)].sum()
                total += joint * np.log(joint / alone)
        return total

    groups: list[tuple[int, ...]] = []
    for word in order.tolist():
        groups.append((word,))
        if len(groups) > classes:
            tries = [
                [*(each for each in groups if each not in pair), pair[0] + pair[1]]
                for pair in itertools.combinations(groups, 2)
            ]
            tries.sort(key=information)
            assume(information(tries[-1]) - information(tries[-2]) > 1e-9)
            groups = tries[-1]
    return sorted(tuple(sorted(group)) for group in groups)


def groups_of(clusters: Clusters) -> list[tuple[int, ...]]:
    members = (np.flatnonzero(clusters.classes == each) for each in range(len(clusters.paths)))
    return sorted(tuple(each.tolist()) for each in members)


@given(st.integers(0, 1 << 32), st.integers(2, 6), st.integers(4, 9))
def test_the_classes_are_those_of_merging_by_brute_force(
    seed: int, classes: int, words: int
) -> None:
    ids = (np.random.default_rng(seed).random(200) ** 2 * words).astype(int)
    counts_V = np.bincount(ids, minlength=words)
    counts_V[counts_V < 3] = 0
    pairs = adjacent(ids.tolist())
    clusters = cluster_words(*pairs, counts_V, classes)
    assert (clusters.classes < 0).tolist() == (counts_V == 0).tolist()
    shuffled = [each[::-1] for each in pairs]
    assert (cluster_words(*shuffled, counts_V, classes).classes == clusters.classes).all()
    assert groups_of(clusters) == by_brute_force(pairs, counts_V, classes)


def test_paths_are_a_binary_tree_and_classes_in_its_order() -> None:
    ids = np.random.default_rng(0).integers(0, 40, 3000)
    clusters = cluster_words(*adjacent(ids.tolist()), np.bincount(ids), 11)
    assert list(clusters.paths) == sorted(clusters.paths)
    assert sum(0.5 ** len(path) for path in clusters.paths) == 1  # Kraft: no leaf is missing
    assert np.unique(clusters.classes).tolist() == list(range(11))
    every = cluster_words(*adjacent(ids.tolist()), np.bincount(ids), 100)
    assert len(every.paths) == 40
    assert cluster_words(*adjacent(ids.tolist()), np.zeros(40, int), 5).paths == ()


def test_words_of_one_habit_share_a_class_and_near_ones_a_branch() -> None:
    """Determiners, nouns and verbs in turn, of four words each."""
    rng = np.random.default_rng(1)
    ids = [4 * (place % 3) + int(rng.integers(4)) for place in range(3000)]
    clusters = cluster_words(*adjacent(ids), np.bincount(ids), 3)
    assert groups_of(clusters) == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)]
    assert mutual_information(*adjacent(ids), clusters.classes) == pytest.approx(np.log(3), 1e-3)


def test_the_treebank_gives_the_information_of_the_program_in_cpp(real_data: Path) -> None:
    """percyliang/brown-cluster with `--c 32 --min-occur 5`: 1,883 words, 56,050 pairs and .68304
    nats."""
    words = (real_data / "corpora" / "en" / "ptb" / "ptb.valid.txt").read_text("utf-8").split()
    number = {word: place for place, word in enumerate(dict.fromkeys(words))}
    ids = [number[word] for word in words]
    counts_V = np.bincount(ids)
    counts_V[counts_V < 5] = 0
    pairs = adjacent(ids)
    left, right, count = pairs
    kept = count[(counts_V[left] > 0) & (counts_V[right] > 0)]
    assert (np.count_nonzero(counts_V), kept.sum()) == (1883, 56050)
    clusters = cluster_words(*pairs, counts_V, 32)
    assert mutual_information(*pairs, clusters.classes) == pytest.approx(0.68304, rel=0.02)
