"""Static word vectors: a vector for each token, whatever stands around it, as families and models.

    counts of tokens ──> start ──> weights ──> learnt, whole or in shares ──> WordVectorModel

What the families share: their size, their encoder, which is a table without layers, and the model
of a finished run. A token that was met too seldom to be learnt has a vector of zeros.

V vocabulary, D size of a vector, P the same in memory, N tokens
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from rungwise.models.body import Body
from rungwise.models.encoders import LayeredEncoder
from rungwise.models.family import Family
from rungwise.models.objectives import CAUSAL, Objective, Part

if TYPE_CHECKING:  # a bare machine with PyTorch has no tokenizers
    from rungwise.tokenizer.special import SpecialIds

Weights = dict[str, NDArray[Any]]
_LANES = 16  # numbers in the widest register: rows in memory are filled up with zeros to these


class Stretch(NamedTuple):
    """Sentences of a text: `first` to `last`, sentence s being `ids[starts[s]:starts[s + 1]]`."""

    ids: NDArray[np.int32]
    starts: NDArray[np.int64]
    first: int
    last: int


def objective_of(name: str, part: str, unit: str) -> Objective:
    """The objective of a family whose loss is no probability of text."""
    return dataclasses.replace(
        CAUSAL,
        name=name,
        tokens=Part(name, part, "", unit),
        reads=(),
        is_code_length=False,
        predicts_text=False,
    )


class VectorFamily(Family):
    """A family whose model is a table of vectors; `size` is that of the papers' comparisons."""

    size: int = Field(default=100, ge=1)  # size of a vector

    def body(self, vocab_size: int, objective: Objective) -> Body:
        return WordTable(vocab_size, self.size)

    def encoder(
        self, objective: Objective, vocab_size: int, dropout: float, new_tokens: int = 0
    ) -> LayeredEncoder:
        """The table to fine-tune; see `Family.encoder`."""
        body = WordTable(vocab_size + new_tokens, self.size, dropout)
        return LayeredEncoder(body, None, new_tokens, None)

    @staticmethod
    def from_tensors(tensors: Mapping[str, NDArray[Any]], special: SpecialIds) -> WordVectorModel:
        """The model whose `to_tensors` these are."""
        return WordVectorModel(tensors[_TABLE], tensors[_OUTPUT])


class WordTable(Body):
    """A table of tokens and no layer above it."""

    name: ClassVar[str] = "table"

    def __init__(self, vocab_size: int, size: int, dropout: float = 0.0) -> None:
        super().__init__(vocab_size, size, dropout, 1)
        nn.init.normal_(self.token_embedding.weight, std=size**-0.5)

    def encode_layers(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        lengths_B: Tensor | None = None,
    ) -> list[Tensor]:
        return [self.dropout(self.token_embedding(ids_BT))]

    def levels(self) -> list[list[nn.Module]]:
        return [[self.token_embedding]]


_TABLE = f"{WordTable.name}.token_embedding.weight"
_OUTPUT = "output.weight"


@dataclass(frozen=True, eq=False)
class WordVectorModel:
    """The vectors of a finished run, and those of the other side: what predicts, or the context."""

    table: NDArray[np.float32]  # (V, D)
    output: NDArray[np.float32]  # a row a token, or a row a node of a tree

    def to_tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays by the names that the encoder has for them."""
        return {_TABLE: self.table, _OUTPUT: self.output}

    @property
    def vocab_size(self) -> int:
        return len(self.table)

    def vectors(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """The vectors (N, D) of these tokens."""
        return self.table[list(ids)]


def padded(rows_VD: NDArray[Any]) -> NDArray[np.float32]:
    """The rows (V, P) filled up with zeros, so that loops over them have no rest."""
    missing = -rows_VD.shape[1] % _LANES
    return np.pad(rows_VD, ((0, 0), (0, missing))).astype(np.float32)


def drawn(rng: np.random.Generator, counts_V: NDArray[np.int64], size: int) -> NDArray[np.float32]:
    """Vectors (V, P) uniform in ±1/2D for tokens that are counted, zeros for the rest."""
    rows_VD = (rng.random((len(counts_V), size), np.float32) - 0.5) / size
    return padded(rows_VD * (counts_V > 0)[:, None])
