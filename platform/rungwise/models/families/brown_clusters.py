"""Brown clusters: classes of words that keep the mutual information of neighbours, and their tree.

Brown et al. 1992, "Class-Based n-gram Models of Natural Language": with each word in one class, a
class bigram model has the highest likelihood where the average mutual information of adjacent
classes is highest. Clusters are merged greedily; the merges of the last `classes` are a binary
tree, in which the path of a class is a string of bits. The merges are in brown_kernel.py.

V vocabulary, C classes, N distinct pairs of adjacent words
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_SMALL = 1 << 16  # counts whose n ln n is looked up
Integers = NDArray[np.int64]


class Clusters(NamedTuple):
    """Words in classes; classes near in the tree have near numbers."""

    classes: Integers  # (V,) -1 for a word that is left out
    paths: tuple[str, ...]  # (C,) bits from the root to each class, none a prefix of another


def cluster_words(
    left_N: Integers, right_N: Integers, count_N: Integers, counts_V: Integers, classes: int
) -> Clusters:
    """Cluster words into `classes`, or as many as there are words, from the counts of adjacent
    pairs. Words enter by falling `counts_V`; one with 0 is left out with its pairs. The same counts
    give the same clusters."""
    from rungwise.models.families.brown_kernel import merge_words

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


def mutual_information(
    left_N: Integers, right_N: Integers, count_N: Integers, class_V: Integers
) -> float:
    """Return the average mutual information of the classes of adjacent words, in nats."""
    left, right = class_V[left_N], class_V[right_N]
    inside = (left >= 0) & (right >= 0)
    joint = np.zeros((class_V.max() + 1,) * 2)
    np.add.at(joint, (left[inside], right[inside]), count_N[inside])
    joint /= joint.sum()
    independent = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0)
    seen = joint > 0
    return float((joint[seen] * np.log(joint[seen] / independent[seen])).sum())
