"""Static word vectors, one per token: what all families of vectors share. A token too rare to be
trained has a vector of zeros.

V vocabulary, D size of a vector, P the same in memory, N tokens or cells
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from rungwise.core.arrays import Ints, Singles
from rungwise.core.tokens import SpecialIds
from rungwise.models.family import LayeredFamily
from rungwise.models.fitting import Weights
from rungwise.models.losses.objectives import CAUSAL, Meaning, Objective, Part
from rungwise.models.ngram_model import merge_sums, split_sums
from rungwise.models.trained.encoders import LayeredEncoder
from rungwise.models.transformer.body import Body

_MULTIPLE = 16  # floats in the widest register; rows are padded with zeros to a multiple
_OUTPUT = "output.weight"


def vector_objective(name: str, part: str, unit: str) -> Objective:
    """Create the objective of a family whose loss is no probability of text."""
    return dataclasses.replace(
        CAUSAL, name=name, tokens=Part(name, part, "", unit), reads=(), meaning=Meaning.ANSWERS
    )


class Cells(NamedTuple):
    """The cells of a table that are not 0."""

    rows: NDArray[np.integer]  # (N,)
    columns: NDArray[np.integer]  # (N,)
    amounts: NDArray[Any]  # (N,)


class VectorFamily(LayeredFamily):
    """A family whose model is a table of vectors; `size` is that of the papers' comparisons."""

    rates_texts: ClassVar[bool] = False

    size: int = Field(default=100, ge=1)  # size of a vector

    def body(self, vocab_size: int, objective: Objective) -> Body:
        return WordTable(vocab_size, self.size)

    def encoder(
        self, objective: Objective, vocab_size: int, dropout: float, new_tokens: int = 0
    ) -> LayeredEncoder:
        body = WordTable(vocab_size + new_tokens, self.size, dropout)
        return LayeredEncoder(body, None, new_tokens)

    split = staticmethod(split_sums)
    merge = staticmethod(merge_sums)

    def document_vectors(self, weights: Weights) -> None:
        return None

    def from_tensors(self, tensors: Weights, special: SpecialIds) -> "TableModel":
        return WordVectorModel(tensors[TABLE], tensors[_OUTPUT])


class WordTable(Body):
    """A token table without layers."""

    name: ClassVar[str] = "table"

    def __init__(self, vocab_size: int, size: int, dropout: float = 0.0) -> None:
        super().__init__(vocab_size, size, dropout)
        nn.init.normal_(self.token_embedding.weight, std=size**-0.5)

    def read_layers(self, ids_BT: Tensor, lengths_B: Tensor | None) -> list[Tensor]:
        return [self.dropout(self.token_embedding(ids_BT))]


TABLE = f"{WordTable.name}.token_embedding.weight"


@dataclass(frozen=True, eq=False)
class TableModel:
    """A finished run with a vector for each token."""

    table: Singles  # (V, D)

    @property
    def vocab_size(self) -> int:
        return len(self.table)

    def vectors(self, ids: Sequence[int]) -> Singles:
        return self.table[list(ids)]


@dataclass(frozen=True, eq=False)
class WordVectorModel(TableModel):
    """The vectors of a finished run, and its output (word2vec) or context (GloVe) vectors."""

    output: Singles  # a row per token, or per node of the tree

    def to_tensors(self) -> dict[str, NDArray[Any]]:
        return {TABLE: self.table, _OUTPUT: self.output}


def mean(replicas: Sequence[Weights]) -> Weights:
    """Return the mean of each array, summed in the order of the replicas."""
    if len(replicas) == 1:
        return replicas[0]
    return {
        name: np.stack([weights[name] for weights in replicas]).mean(axis=0, dtype=np.float32)
        for name in replicas[0]
    }


def pad_rows(rows_VD: NDArray[Any]) -> Singles:
    """Pad rows with zeros to (V, P), so that vectorised loops have no remainder."""
    missing = -rows_VD.shape[1] % _MULTIPLE
    return np.pad(rows_VD, ((0, 0), (0, missing))).astype(np.float32)


def random_rows(rng: np.random.Generator, counts_V: Ints, size: int) -> Singles:
    """Draw vectors (V, P), uniform in ±1/(2D); tokens with a count of 0 get zeros."""
    rows_VD = (rng.random((len(counts_V), size), np.float32) - 0.5) / size
    return pad_rows(rows_VD * (counts_V > 0)[:, None])
