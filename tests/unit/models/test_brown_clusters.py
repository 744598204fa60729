"""Brown clusters against merging by brute force and another program; their model by its formula."""

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rungwise.core.arrays import Ints
from rungwise.models.families.ngram import BrownConfig
from rungwise.models.losses.output_layer import Clusters, cluster_words
from rungwise.tokenizer.token_text import TokenisedText
from tests.conftest import SPECIAL_IDS, text_of_words

Pairs = tuple[Ints, Ints, Ints]


def adjacent(ids: list[int]) -> Pairs:
    """The distinct pairs of neighbours, and the count of each."""
    pairs = Counter(itertools.pairwise(ids))
    columns = np.array([(*pair, count) for pair, count in pairs.items()], np.int64)
    return columns[:, 0], columns[:, 1], columns[:, 2]


def mutual_information(left_N: Ints, right_N: Ints, count_N: Ints, class_V: Ints) -> float:
    """The average mutual information of the classes of adjacent words, in nats."""
    left, right = class_V[left_N], class_V[right_N]
    inside = (left >= 0) & (right >= 0)
    joint = np.zeros((class_V.max() + 1,) * 2)
    np.add.at(joint, (left[inside], right[inside]), count_N[inside])
    joint /= joint.sum()
    independent = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0)
    positive = joint > 0
    return float((joint[positive] * np.log(joint[positive] / independent[positive])).sum())


def by_brute_force(pairs: Pairs, counts_V: Ints, classes: int) -> list[tuple[int, ...]]:
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
    left, right, count = (each[::-1] for each in pairs)
    again = cluster_words(left, right, count, counts_V, classes)
    assert (again.classes == clusters.classes).all()
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


def test_the_treebank_gives_the_information_of_the_program_in_cpp(real_data: Path) -> None:
    """percyliang/brown-cluster with `--c 32 --min-occur 5`: .68304 nats."""
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


START, END, V = 2, 3, 30


def text_of(seed: int, documents: int = 60) -> TokenisedText:
    """Documents in which words of three habits follow each other, most of the time."""
    rng = np.random.default_rng(seed)
    texts = []
    for length in rng.integers(3, 15, documents):
        habit = (np.arange(length) + rng.integers(0, 3, length) * (rng.random(length) < 0.2)) % 3
        texts.append(5 + 8 * habit + (8 * rng.random(length) ** 2).astype(int))
    return text_of_words([[words.tolist()] for words in texts])


@pytest.mark.parametrize("order", [2, 3])
def test_the_model_is_the_product_of_two_probabilities_and_sums_to_one(order: int) -> None:
    config, text = BrownConfig(classes=3, minimum_count=4, class_order=order), text_of(0)
    model = config.estimate_model(config.count(text, SPECIAL_IDS), V, SPECIAL_IDS)
    assert groups_of(Clusters(np.where(model.classes < 3, model.classes, -1), model.paths)) == [
        tuple(np.flatnonzero((np.bincount(text.ids) >= 4)[first : first + 8]) + first)
        for first in (5, 13, 21)
    ]
    counts_V = np.bincount(text.ids, minlength=V)
    rare = np.setdiff1d(np.flatnonzero(counts_V < 4), [START, END])
    assert np.array_equal(np.flatnonzero(model.classes == 3), rare)
    before = [5, 14, 22]
    words = [word for word in range(V) if word != START]
    scores = [row[-1] for row in model.log_probabilities([[*before, word] for word in words])]
    assert np.exp(scores).sum() == pytest.approx(1.0)
    for word, score in zip(words, scores, strict=True):
        number = model.classes[word]
        classes = model.ngrams.log_probabilities([[*model.classes[before].tolist(), number]])[0][-1]
        members = np.flatnonzero(model.classes == number)
        shares = counts_V + (number == 3) if word != END else np.ones(V)
        assert score == pytest.approx(classes + np.log(shares[word] / shares[members].sum()))
    # An end symbol within a text begins another document.
    both = model.log_probabilities([[5, END, 14, END]])[0]
    assert both.tolist() == np.concatenate(model.log_probabilities([[5, END], [14, END]])).tolist()


def test_tables_of_shards_give_the_same_model_and_it_survives_as_tensors() -> None:
    config, texts = BrownConfig(classes=5, minimum_count=3), [text_of(seed) for seed in range(3)]
    tables = [config.count(text, SPECIAL_IDS) for text in texts]
    grouped = config.merge([tables[2], config.merge([tables[1], tables[0]])])
    parts = zip(*(config.split(table, 4) for table in tables), strict=True)
    split = config.merge([config.merge(part) for part in parts])
    first, second = (config.estimate_model(each, V, SPECIAL_IDS) for each in (grouped, split))
    restored = config.from_tensors(first.to_tensors(), SPECIAL_IDS)
    asked = [[5, 6, 14, END], [29, 0, 7]]
    for other in (second, restored):
        assert other.paths == first.paths
        assert np.array_equal(other.classes, first.classes)
        for one, two in zip(
            other.log_probabilities(asked), first.log_probabilities(asked), strict=True
        ):
            assert np.array_equal(one, two)
    vectors = first.vectors(range(V))
    clustered = first.classes < 5
    assert (vectors.sum(axis=1) == 4 * clustered).all()  # prefixes of 4, 6, 10 and 20 bits
    shared = vectors[clustered] @ vectors[clustered].T
    assert ((shared == 4) == (first.classes[clustered][:, None] == first.classes[clustered])).all()
