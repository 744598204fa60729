"""GloVe as a family: vectors whose dot products fit the logarithms of co-occurrence counts.

Pennington, Socher & Manning 2014, "GloVe: Global Vectors for Word Representation". Two words at
distance d add 1/d to their cell, as an integer in units of 1 / lcm(1 .. window), so that sums do
not depend on their order.

V vocabulary, D size of a vector, N cells
"""

import math
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rungwise.core.tokens import TokenisedText
from rungwise.models.family import Size, suggest_passes
from rungwise.models.fitting import Weights
from rungwise.models.ngram_model import SparseSums, count_neighbours
from rungwise.models.word_vectors.vector_family import (
    Cells,
    VectorFamily,
    WordVectorModel,
    random_rows,
    vector_objective,
)

_PARAMETERS = ("words", "contexts", "word_bias", "context_bias")
_SQUARES = "_squares"  # suffix of the sums of squared gradients


class GloveConfig(VectorFamily):
    """The model of the paper: it reads both sides of a word, and nearer words count more. A vector
    is the sum of the word's vectors as a word and as a context."""

    objectives: ClassVar = (vector_objective("log_counts", "Weighted squared", "cell"),)

    year: ClassVar[int] = 2014
    paper: ClassVar[str] = "Pennington et al."
    idea: ClassVar[str] = "a list of numbers for every word, from counts of the words around it"
    page: ClassVar[str] = "GloVe model"

    kind: Literal["glove"] = "glove"
    window: int = Field(default=10, ge=1, le=20)  # words on each side
    # co-occurrences from which a pair of words has its full weight
    x_max: float = Field(default=100.0, gt=0)
    alpha: float = Field(default=0.75, ge=0)  # below x_max the weight is (x / x_max) to this power

    def describe(self) -> str:
        return f"vectors of {self.size}, window {self.window}"

    def suggest(self, size: Size) -> dict[str, Any]:
        """The paper's `x_max` is for billions of words, where such a pair occurs 100 times."""
        return {
            "model.x_max": min(100.0, max(1.0, round(size.tokens / 7e5, 1))),
            "pretrain.epochs": suggest_passes(size, 250_000, 25),
        }

    def count(self, text: TokenisedText, counts_V: NDArray[np.int64]) -> SparseSums:
        """Count the co-occurrences within the sentences of one shard, in units of 1 / `_unit`."""
        amounts = [self._unit // distance for distance in range(1, self.window + 1)]
        return count_neighbours(text, text.starts, counts_V, amounts)

    def cells(self, table: SparseSums, vocab_size: int) -> Cells:
        """Return the cells on and above the diagonal of the symmetric table of all counts; a word
        near itself counts for both positions."""
        rows, columns = np.divmod(table.keys, vocab_size)
        amounts = table.sums / self._unit * (1 + (rows == columns))
        return Cells(rows.astype(np.int32), columns.astype(np.int32), amounts.astype(np.float32))

    def start(self, counts_V: NDArray[np.int64], documents: int, seed: int) -> Weights:
        """Draw the initial weights; the sums of squared gradients start at 1."""
        rng = np.random.default_rng(seed)
        rows = [random_rows(rng, counts_V, self.size) for _ in _PARAMETERS]
        biases = [row[:, 0].copy() for row in rows[2:]]
        weights: Weights = dict(zip(_PARAMETERS, [*rows[:2], *biases], strict=True))
        return weights | {f"{name}{_SQUARES}": np.ones_like(weights[name]) for name in _PARAMETERS}

    def read(
        self, weights: Weights, cells: Cells, order: NDArray[np.int64], rate: float
    ) -> tuple[float, int]:
        from rungwise.models import kernels

        arrays = (weights[f"{name}{of}"] for of in ("", _SQUARES) for name in _PARAMETERS)
        arguments = [order, *cells, *arrays, self.x_max, self.alpha, rate]
        return kernels.read_cells(*arguments)

    def model(self, weights: Weights, counts_V: NDArray[np.int64]) -> WordVectorModel:
        words, contexts = (weights[name][:, : self.size] for name in ("words", "contexts"))
        return WordVectorModel(words + contexts, contexts.copy())

    @property
    def _unit(self) -> int:
        """The weight that two neighbouring words add to their cell."""
        return math.lcm(*range(1, self.window + 1))
