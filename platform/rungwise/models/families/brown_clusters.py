"""Brown clusters: classes of words that keep the mutual information of neighbours, and their tree.

Brown et al. 1992, "Class-Based n-gram Models of Natural Language": with each word in one class, a
class bigram model has the highest likelihood where the average mutual information of adjacent
classes is highest. Clusters are merged greedily; the merges of the last `classes` are a binary
tree, in which the path of a class is a string of bits. The merges are in brown_kernel.py.

As a vector, a word is where it stands in the tree: 1 for each prefix of its path of 4, 6, 10 and 20
bits, as in Turian, Ratinov & Bengio 2010 ("Word Representations").

V vocabulary, C clusters, N distinct pairs of adjacent words, D prefixes
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rungwise.models.families.ngram_model import NgramLanguageModel

_PREFIXES = (4, 6, 10, 20)  # bits
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


@dataclass(frozen=True, eq=False)
class ClassModel:
    """An exact language model: P(word | before) = P(class | classes before) P(word | class). The
    last three classes are those of rare words, of the start and of the end symbol."""

    is_exact: ClassVar[bool] = True

    ngrams: NgramLanguageModel  # of classes
    classes: Integers  # (V,) of each word
    log_words: NDArray[np.float64]  # (V,) of each word in its class
    paths: tuple[str, ...]  # (C,) bits of each cluster

    @property
    def vocab_size(self) -> int:
        return len(self.classes)

    def log_probabilities(self, texts: Sequence[Sequence[int]]) -> list[NDArray[np.float64]]:
        """Return the natural log-probability of each token; see `NgramLanguageModel`."""
        classes = [self.classes[np.asarray(text, np.int64)] for text in texts]
        scores = self.ngrams.log_probabilities(classes)  # pyright: ignore[reportArgumentType]
        return [
            row + self.log_words[np.asarray(text, np.int64)]
            for row, text in zip(scores, texts, strict=True)
        ]

    def vectors(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the prefixes (len(ids), D) of words; zeros for one in no cluster."""
        return self._prefixes[np.minimum(self.classes[list(ids)], len(self.paths))]

    @cached_property
    def _prefixes(self) -> NDArray[np.float32]:
        """The vector (C + 1, D) of each cluster, and zeros."""
        each = [[(bits, path[:bits]) for bits in _PREFIXES] for path in self.paths]
        column = {prefix: n for n, prefix in enumerate(dict.fromkeys(itertools.chain(*each)))}
        rows = np.zeros((len(each) + 1, len(column)), np.float32)
        for row, prefixes in zip(rows, each, strict=False):
            row[[column[prefix] for prefix in prefixes]] = 1.0
        return rows

    def to_tensors(self) -> dict[str, NDArray[Any]]:
        """Return the model as named arrays, for safetensors."""
        longest = max(map(len, self.paths))
        bits = [[int(bit) for bit in path.ljust(longest, "2")] for path in self.paths]
        own = {"classes": self.classes, "log_words": self.log_words}
        return self.ngrams.to_tensors() | own | {"paths": np.array(bits, np.int8)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]], end: int) -> "ClassModel":
        """Restore a model from `to_tensors`; `end` is the class of the end symbol."""
        ngrams = replace(NgramLanguageModel.from_tensors(tensors), end_id=end)
        bits = ("".join(map(str, row)).rstrip("2") for row in tensors["paths"].tolist())
        return cls(ngrams, tensors["classes"], tensors["log_words"], tuple(bits))
