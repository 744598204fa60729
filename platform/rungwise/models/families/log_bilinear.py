"""The log-bilinear language model (Mnih & Hinton 2007, "Three new graphical models for statistical
language modelling", ICML): a linear map of the n - 1 words before predicts the vector of the next.

    the n - 1 words before ──> r_1 ... r_n-1, a vector each ──> r = sum of C_i r_i
        ──> r · r_w + b_w,  one for each word; softmax

Nothing in it is nonlinear. The words' rows of the output are their input vectors unless `tied` is
false (Mnih & Teh 2012, arXiv:1206.6426). With a tree as output it is HLBL (Mnih & Hinton 2008),
whose C_i are diagonal: `diagonal`.

Contexts are those of the neural n-gram model (nnlm.py).

Shapes: B batch, T sequence, N order, M size of a word vector, V vocabulary.
"""

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from rungwise.models.families.nnlm import ContextBody, ContextFamily
from rungwise.models.losses.objectives import Objective
from rungwise.models.transformer.attention import WHOLE, Boundaries
from rungwise.models.transformer.block import draw_uniform
from rungwise.models.transformer.body import Body, NextWordModel


class LogBilinearConfig(ContextFamily):
    """The shape of a log-bilinear model; the defaults are the paper's."""

    year: ClassVar[int] = 2007
    paper: ClassVar[str] = "Mnih & Hinton"
    idea: ClassVar[str] = "adds up the words before it, each by its place, to guess the next"
    page: ClassVar[str] = "log-bilinear model"

    kind: Literal["log_bilinear"] = "log_bilinear"
    order: int = Field(default=6, ge=2)  # n: it reads the n - 1 words before
    embedding_size: int = Field(default=100, ge=1)
    diagonal: bool = False  # a weight for each unit of a place, in place of a matrix
    tied: bool = True  # use the input vectors as the output matrix; a tree has none

    @property
    def width(self) -> int:
        return self.embedding_size

    def describe(self) -> str:
        maps = "diagonal" if self.diagonal else "full"
        tied = "" if self.tied else ", output not tied"
        return (
            f"order {self.order}, vectors of {self.embedding_size}, {maps} maps"
            f"{self.output.describe()}{tied}"
        )

    def build(self, vocab_size: int, objective: Objective, vocab_multiple: int = 1) -> nn.Module:
        return LogBilinearForPretraining(self, vocab_size, vocab_multiple)

    def body(self, vocab_size: int, objective: Objective) -> Body:
        return LogBilinear(self, vocab_size)

    def flops_per_token(self, V: int, T: int, objective: Objective, M: float = 0.0) -> float:
        """Count the maps and the output: 6·((n-1)·M² + V·M), or (n-1)·M if diagonal; the rows that
        a token multiplies in place of V for classes or a tree."""
        maps = self.context_size * (1 if self.diagonal else self.embedding_size)
        return float(6 * (maps + self.output.rows(V) * self.embedding_size))


class LogBilinear(ContextBody):
    """The vectors of words and the maps C_i. It ignores segments: the delimiter ends a text."""

    name: ClassVar[str] = "log_bilinear"

    def __init__(self, config: LogBilinearConfig, vocab_size: int, vocab_multiple: int = 1) -> None:
        sizes = vocab_size, config.embedding_size, config.dropout, vocab_multiple
        super().__init__(*sizes, config.offsets)
        rows = 1 if config.diagonal else config.embedding_size
        self.maps = nn.Linear(config.context_size, rows, bias=False)
        self.diagonal = config.diagonal
        draw_uniform(self, config.initializer_range)
        self.clear_padding()

    def predict(self, ids_BT: Tensor, document_BT: Tensor | None = None) -> Tensor:
        """Return r (B, T, M) at each token."""
        x_BTX = self.context(ids_BT, document_BT)
        if not self.diagonal:
            return self.maps(x_BTX)
        return (x_BTX * self.maps.weight[0]).unflatten(-1, (len(self.offsets), -1)).sum(-2)

    def encode_layers(
        self, ids_BT: Tensor, segments_BT: Tensor | None = None, lengths_B: Tensor | None = None
    ) -> list[Tensor]:
        return [self.token_embedding(ids_BT), self.predict(ids_BT)]

    def levels(self) -> list[list[nn.Module]]:
        return [[self.token_embedding, self.missing_embedding], [self.maps]]


class LogBilinearForPretraining(NextWordModel):
    """The model with its output layer."""

    log_bilinear: LogBilinear
    graphs: ClassVar = ("states", "sums")  # see parallel.py

    def __init__(self, config: LogBilinearConfig, vocab_size: int, vocab_multiple: int = 1) -> None:
        body = LogBilinear(config, vocab_size, vocab_multiple)
        sizes = config.embedding_size, config.initializer_range
        super().__init__(body, config.output, *sizes, config.tied)

    def states(self, ids_BT: Tensor, where: Boundaries = WHOLE) -> Tensor:
        return self.log_bilinear.predict(ids_BT, where.document)
