"""Brown clusters as a family: a language model over classes of words, fitted by counting (Brown
et al. 1992, "Class-Based n-gram Models of Natural Language").

    documents ──> n-grams ──> clusters of words ──> P(class | classes before) P(word | class)

Words too rare to be clustered, special and unseen tokens share a class, in which a word has the
share of its count plus 1; the start and the end symbol have a class each. As a vector, a word is 1
for each prefix of its path in the tree of 4, 6, 10 and 20 bits (Turian, Ratinov & Bengio 2010).

V vocabulary, C clusters, D prefixes
"""

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rungwise.core.errors import DataError
from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.models import ngram_model
from rungwise.models.families.kneser_ney import Smoothing, estimate_model
from rungwise.models.family import Family
from rungwise.models.fitting import (
    Create,
    Parts,
    Tasks,
    TextFile,
    Weights,
    fill_arrays,
    merge_parts,
)
from rungwise.models.losses.objectives import CAUSAL
from rungwise.models.losses.word_trees import cluster_words
from rungwise.models.ngram_model import NgramLanguageModel, Table

_PREFIXES = (4, 6, 10, 20)  # bits
_SMOOTHING = Smoothing((0.5, 1.0, 1.5))  # as kenlm, where the counts of few classes give none


class BrownConfig(Family):
    """A class n-gram model; the paper has 1,000 classes for a vocabulary of 260,741 words."""

    year: ClassVar[int] = 1992
    paper: ClassVar[str] = "Brown et al."
    idea: ClassVar[str] = "groups words that are used alike, and counts which group follows which"
    page: ClassVar[str] = "Brown class model"
    objectives: ClassVar = (dataclasses.replace(CAUSAL, reads=()),)  # counts need no instances

    kind: Literal["brown"] = "brown"
    classes: int = Field(default=256, ge=2)  # clusters of words
    minimum_count: int = Field(default=5, ge=1)  # words that occur less often share one more class
    class_order: int = Field(default=2, ge=2, le=16)  # 2: a class is predicted from the one before

    def describe(self) -> str:
        return f"{self.classes} classes of words, order {self.class_order}"

    def count(self, text: TokenisedText, special: SpecialIds) -> Table:
        return ngram_model.count_documents(text, special, self.class_order)

    def estimate(
        self, parts: Parts, tasks: Tasks, create: Create, vocab_size: int, special: SpecialIds
    ) -> Weights:
        table = merge_parts(parts, tasks, self.merge)
        return fill_arrays(create, self.estimate_model(table, vocab_size, special).to_tensors())

    def estimate_model(self, table: Table, vocab_size: int, special: SpecialIds) -> "ClassModel":
        """Cluster the words, and estimate the model of classes. Raises DataError for too few."""
        start, end = special.require("cls", "end")
        left, right = table.ngrams[:, -2].astype(np.int64), table.ngrams[:, -1].astype(np.int64)
        occurrences_V = np.bincount(right, table.counts, vocab_size).astype(np.int64)
        counts_V = np.where(occurrences_V < self.minimum_count, 0, occurrences_V)
        counts_V[list(special.ids)] = 0
        if (words := np.count_nonzero(counts_V)) < self.classes:
            raise DataError(
                f"expected at least model.classes {self.classes} tokens that the training split "
                f"has {self.minimum_count} times, found {words}; lower model.classes or "
                "model.minimum_count, or add text"
            )
        clusters = cluster_words(left, right, table.counts, counts_V, self.classes)
        rare, first, last = (self.classes + n for n in range(3))
        class_V = np.where(clusters.classes < 0, rare, clusters.classes)
        class_V[[start, end]] = first, last
        weight_V = np.where(class_V == rare, occurrences_V + 1, occurrences_V)
        weight_V[[start, end]] = 1
        totals = np.bincount(class_V, weight_V)
        classes = ngram_model.merge_tables(
            [Table(class_V.astype(np.uint32)[table.ngrams], table.counts)]
        )
        model = estimate_model(classes, len(totals), first, _SMOOTHING)
        return ClassModel(
            dataclasses.replace(model, end_id=last),
            class_V,
            np.log(weight_V / totals[class_V]),
            clusters.paths,
        )

    def from_tensors(self, tensors: Weights, special: SpecialIds) -> "ClassModel":
        ngrams = NgramLanguageModel.from_tensors(tensors)
        bits = ("".join(map(str, row)).rstrip("2") for row in tensors["paths"].tolist())
        return ClassModel(
            dataclasses.replace(ngrams, end_id=self.classes + 2),
            tensors["classes"],
            tensors["log_words"],
            tuple(bits),
        )

    def text_file(self, model: "ClassModel", words: Sequence[str], special: SpecialIds) -> TextFile:
        """Return the bits of each word's path in the tree of classes, a tab and the word; in the
        order of the tree, words by falling probability."""
        order = np.lexsort((-model.log_words, model.classes))
        lines = (
            f"{model.paths[model.classes[index]]}\t{words[index]}"
            for index in order
            if model.classes[index] < len(model.paths)
        )
        return TextFile("paths.txt", "any program that reads the paths of Brown clusters", lines)

    split = staticmethod(ngram_model.split_table)
    merge = staticmethod(ngram_model.merge_tables)


@dataclass(frozen=True, eq=False)
class ClassModel:
    """An exact language model: P(word | before) = P(class | classes before) P(word | class). The
    last three classes are those of rare words, of the start and of the end symbol."""

    is_exact: ClassVar[bool] = True

    ngrams: NgramLanguageModel  # of classes
    classes: NDArray[np.int64]  # (V,) of each word
    log_words: NDArray[np.float64]  # (V,) of each word in its class
    paths: tuple[str, ...]  # (C,) bits of each cluster

    @property
    def vocab_size(self) -> int:
        return len(self.classes)

    def log_probabilities(self, texts: Sequence[Sequence[int]]) -> list[NDArray[np.float64]]:
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
        each = [[(bits, path[:bits]) for bits in _PREFIXES] for path in self.paths]
        column = {prefix: n for n, prefix in enumerate(dict.fromkeys(itertools.chain(*each)))}
        rows = np.zeros((len(each) + 1, len(column)), np.float32)
        for row, prefixes in zip(rows, each, strict=False):
            row[[column[prefix] for prefix in prefixes]] = 1.0
        return rows

    def to_tensors(self) -> dict[str, NDArray[Any]]:
        longest = max(map(len, self.paths))
        bits = [[int(bit) for bit in path.ljust(longest, "2")] for path in self.paths]
        own = {"classes": self.classes, "log_words": self.log_words}
        return self.ngrams.to_tensors() | own | {"paths": np.array(bits, np.int8)}
