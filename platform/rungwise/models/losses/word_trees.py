"""Classes and trees of words, by which an output layer factors a word's probability.

    frequency   classes of as many occurrences each (Mikolov et al. 2011, "Extensions of recurrent
                neural network language model")
    brown       classes that keep the mutual information of neighbours (Brown et al. 1992); the tree
                of the last merges, and within each class the Huffman tree of its words
    balanced    halves of a mixture of two Gaussians, fitted to a point for each word (Mnih & Hinton
                2008, "A scalable hierarchical distributed language model")
    adaptive    its sides by responsibility; words near the border go to both, as leaves of either

A path is the nodes from the root to a leaf, counted from 1: n where it takes the first side, -n
where it takes the second.

V words, C classes, L leaves, K nodes of the longest path, N words below a node, D size of a point
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rungwise.models.ngram_model import SparseSums, merge_sums

Text = Callable[[], Iterable[NDArray[np.integer]]]  # the ids of the training text, in parts
Counts = NDArray[np.int64]
_SMALL = 1 << 16  # counts whose n ln n is looked up
_EM_STEPS = 10
_MOST_LEAVES = 8  # of a word: without a bound they double at every level


class Tree(NamedTuple):
    """The leaves of a binary tree, sorted by word; a word may have several."""

    paths: NDArray[np.int32]  # (L, K), padded with 0
    words: NDArray[np.int32]  # (L,)


def count_words(text: Text, vocab_size: int) -> Counts:
    """Count each word of the text, (V,)."""
    counts_V = np.zeros(vocab_size, np.int64)
    for ids in text():
        counts_V += np.bincount(ids, minlength=vocab_size)
    return counts_V


def frequency_classes(counts_V: Counts, classes: int) -> NDArray[np.int64]:
    """Return the class of each word, (V,): by falling count, a class is closed when it has its
    share of the occurrences that are left, and in time for each class to have a word."""
    class_V = np.empty(len(counts_V), np.int64)
    number, mass, remaining = 0, 0, int(counts_V.sum())
    for place, word in enumerate(np.argsort(-counts_V, kind="stable").tolist()):
        class_V[word] = number
        mass += int(counts_V[word])
        after = classes - number - 1
        full = mass * (after + 1) >= remaining or len(counts_V) - place - 1 == after
        if after and full:
            number, remaining, mass = number + 1, remaining - mass, 0
    return class_V


class Clusters(NamedTuple):
    """Words in classes; classes near in the tree have near numbers."""

    classes: Counts  # (V,) -1 for a word that is left out
    paths: tuple[str, ...]  # (C,) bits from the root to each class, none a prefix of another


def cluster_words(
    left_N: Counts, right_N: Counts, count_N: Counts, counts_V: Counts, classes: int
) -> Clusters:
    """Cluster words into `classes`, or as many as there are words, from the counts of adjacent
    pairs. Words enter by falling `counts_V`; one with 0 is left out with its pairs."""
    from rungwise.models.kernels import merge_words

    words = np.argsort(-counts_V, kind="stable")[: np.count_nonzero(counts_V)]
    classes = min(classes, len(words))
    if not classes:
        return Clusters(np.full(len(counts_V), -1), ())
    rank_V = np.full(len(counts_V), -1)
    rank_V[words] = np.arange(len(words))
    left, right = rank_V[left_N], rank_V[right_N]
    inside = (left >= 0) & (right >= 0)
    left, right, count = left[inside], right[inside], count_N[inside]
    starts, neighbours, count_2N = [], [], []
    for of, other in ((left, right), (right, left)):
        order = np.lexsort((other, of))
        starts.append(np.searchsorted(of[order], np.arange(len(words) + 1)))
        neighbours.append(other[order])
        count_2N.append(count[order])
    small = np.arange(_SMALL, dtype=np.float64)
    table = small * np.log(np.maximum(small, 1))
    slot_of, merges = merge_words(
        np.array(starts), np.array(neighbours), np.array(count_2N), classes, table
    )
    paths = {int(slot_of[0]) if classes == 1 else int(merges[-1, 0]): ""}
    for first, second in merges[::-1].tolist():
        paths[first], paths[second] = f"{paths[first]}0", f"{paths[first]}1"
    slots = sorted(paths, key=lambda slot: paths[slot])
    class_V = np.full(len(counts_V), -1)
    class_V[words] = np.argsort(slots)[np.searchsorted(np.sort(slots), slot_of)]
    return Clusters(class_V, tuple(paths[slot] for slot in slots))


def brown_clusters(text: Text, counts_V: Counts, classes: int) -> Clusters:
    """Return Brown clusters of all words; those that do not occur count once."""
    V = len(counts_V)
    parts: list[SparseSums] = []
    for ids in text():
        keys, counts = np.unique(ids[:-1].astype(np.int64) * V + ids[1:], return_counts=True)
        parts.append(SparseSums(keys, counts))
    table = merge_sums(parts)
    left_N, right_N = np.divmod(table.keys, V)
    return cluster_words(left_N, right_N, table.sums, np.maximum(counts_V, 1), classes)


def random_tree(vocab_size: int) -> Tree:
    """Return a tree of depth ceil(log2 V)."""
    return _tree(np.random.default_rng(0).permutation(vocab_size), _halves)


def huffman_tree(counts_V: Counts) -> Tree:
    """Return the Huffman tree; words that do not occur count once."""
    return _tree(_huffman(range(len(counts_V)), counts_V), lambda pair: pair)


def cluster_tree(clusters: Clusters, counts_V: Counts) -> Tree:
    """Return the tree of clusters, each with the Huffman tree of its words."""
    below = {
        path: _huffman(np.flatnonzero(clusters.classes == number).tolist(), counts_V)
        for number, path in enumerate(clusters.paths)
    }
    while len(below) > 1:
        parent = max(below, key=len)[:-1]
        below[parent] = below.pop(f"{parent}0"), below.pop(f"{parent}1")
    (root,) = below.values()
    return _tree(root, lambda pair: pair)


def learn_tree(points_VD: NDArray[np.float64], balanced: bool, overlap: float) -> Tree:
    """Return the tree of points: words go to the side that is responsible, or to both within
    `overlap` of one half; with `balanced`, each side takes a half."""
    leaves_V = np.ones(len(points_VD), np.int64)

    def divide(words: NDArray[np.int64]) -> tuple[Any, Any]:
        share_N = responsibilities(points_VD[words])
        if balanced:
            return _halves(words[np.argsort(share_N, kind="stable")])
        is_first = share_N >= 0.5
        is_near = (np.abs(share_N - 0.5) < overlap) & (leaves_V[words] < _MOST_LEAVES)
        for is_both in (is_near, np.zeros_like(is_near)):
            sides = words[is_first | is_both], words[~is_first | is_both]
            if min(map(len, sides)) > 0 and max(map(len, sides)) < len(words):
                leaves_V[words[is_both]] += 1
                return sides
        return _halves(words[np.argsort(share_N, kind="stable")])

    return _tree(np.arange(len(points_VD)), divide)


def responsibilities(points_ND: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fit a mixture of two Gaussians with one variance, beginning with halves along a random
    direction; return the share of the first in each point, (N,)."""
    direction_D = np.random.default_rng(len(points_ND)).standard_normal(points_ND.shape[1])
    along_N = (points_ND - points_ND.mean(0)) @ direction_D
    share_N = (along_N > np.median(along_N)).astype(np.float64)
    for _ in range(_EM_STEPS):
        weights_2N = np.stack([share_N, 1 - share_N])
        mass_2 = weights_2N.sum(1) + 1e-9
        means_2D = weights_2N @ points_ND / mass_2[:, None]
        squares_2N = ((points_ND - means_2D[:, None]) ** 2).sum(2)
        variance = (weights_2N * squares_2N).sum() / points_ND.size + 1e-9
        odds_N = np.log(mass_2[0] / mass_2[1]) - (squares_2N[0] - squares_2N[1]) / 2 / variance
        share_N = 1 / (1 + np.exp(-odds_N.clip(-500, 500)))
    return share_N


def _halves(words: NDArray[np.int64]) -> tuple[Any, Any]:
    return words[: len(words) // 2], words[len(words) // 2 :]


def huffman_merges(counts_N: Sequence[int]) -> list[tuple[int, int]]:
    """Return the merges that build the Huffman tree (1952), each of the rarer side and the other,
    as the number of a leaf, or N + k for merge k. Of equal counts the lower number comes first."""
    heap = [(count, number) for number, count in enumerate(counts_N)]
    heapq.heapify(heap)
    merges: list[tuple[int, int]] = []
    for number in range(len(heap), 2 * len(heap) - 1):
        (one, rarer), (two, other) = heapq.heappop(heap), heapq.heappop(heap)
        heapq.heappush(heap, (one + two, number))
        merges.append((rarer, other))
    return merges


def _huffman(words: Iterable[int], counts_V: Counts) -> Any:
    """Return nested pairs of words."""
    nodes: list[Any] = [*words]
    for rarer, other in huffman_merges([max(1, int(counts_V[word])) for word in nodes]):
        nodes.append((nodes[rarer], nodes[other]))
    return nodes[-1]


def _tree(root: Any, divide: Callable[[Any], tuple[Any, Any]]) -> Tree:
    """Divide `root` until only single words are left."""
    leaves: list[tuple[int, list[int]]] = []
    nodes, rest = 0, [(root, [])]
    while rest:
        below, path = rest.pop()
        if isinstance(below, int) or len(below) == 1:
            leaves.append((below if isinstance(below, int) else int(below[0]), path))
            continue
        nodes += 1
        for side, part in zip((nodes, -nodes), divide(below), strict=True):
            rest.append((part, [*path, side]))
    leaves.sort(key=lambda leaf: leaf[0])
    paths = np.zeros((len(leaves), max(len(path) for _, path in leaves)), np.int32)
    for row, (_, path) in zip(paths, leaves, strict=True):
        row[: len(path)] = path
    return Tree(paths, np.array([word for word, _ in leaves], np.int32))
