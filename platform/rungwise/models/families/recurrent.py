"""Recurrent language models, which read left to right with a state of fixed size.

    ids ──> embedding ──> dropout ──> cells ──> dropout ──> ... cells ──> dropout ──> logits

    rnn    h_t = tanh(W [x_t; h_t-1] + b)   Elman 1990; Mikolov et al. 2010, "Recurrent neural
                                            network based language model"
    lstm   three gates, an additive path    Hochreiter & Schmidhuber 1997; Sundermeyer et al. 2012,
                                            "LSTM Neural Networks for Language Modeling"

The output matrix is the embedding unless `tied` is false (Press & Wolf 2017, arXiv:1608.05859; Inan
et al. 2017, arXiv:1611.01462), with a bias. The state at the end of a block starts the next one:
truncated backpropagation through time over one block. It also crosses the ends of documents, which
the text marks.

Three dropouts keep the model from memorising a small corpus. Each is drawn once per block and used
at all positions (Gal & Ghahramani 2016, arXiv:1512.05287; Merity et al. 2018, "Regularizing and
Optimizing LSTM Language Models", arXiv:1708.02182):

    dropout             units, between layers and before the output, separately for each row
    word_dropout        words, in all rows alike
    recurrent_dropout   recurrent weights

Shapes: B batch, T sequence, D hidden, L layers, S parts of a state, V vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from rungwise.core.plural import counted
from rungwise.instances.causal_batch import CausalBatch
from rungwise.models.family import StatefulFamily
from rungwise.models.losses.objectives import CAUSAL, Objective
from rungwise.models.losses.output_layer import OutputConfig, SoftmaxOutput
from rungwise.models.trained.language_models import CarryingModel
from rungwise.models.transformer.attention import WHOLE, Boundaries
from rungwise.models.transformer.body import Body, NextWordModel

if TYPE_CHECKING:  # a bare machine with PyTorch has no tokenizers
    from rungwise.tokenizer.special import SpecialIds


class RecurrentFamily(StatefulFamily):
    """The keys of both. The dropouts are 0 unless asked for: see BertConfig. Small corpora, which
    are read many times, need them."""

    objectives: ClassVar = (CAUSAL,)
    gates: ClassVar[int]  # of a cell, each with a matrix for its input and one for its state

    num_layers: int = Field(default=2, ge=1)
    hidden_size: int = Field(default=650, ge=1)
    tied: bool = True  # use the embedding as the output matrix; a tree has none
    output: OutputConfig = SoftmaxOutput()
    # share of units dropped, between layers and before the output
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    # share of words dropped, at all their places in a block
    word_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    # share of the weights from token to token dropped
    recurrent_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    # weights are drawn uniformly from minus to plus this
    initializer_range: float = Field(default=0.05, gt=0.0)

    @property
    def starts_evenly(self) -> bool:
        return self.output.kind == "softmax"

    @property
    def depth(self) -> int:
        return self.num_layers

    @property
    def width(self) -> int:
        return self.hidden_size

    def describe(self) -> str:
        output = self.output.describe() + ("" if self.tied else ", output not tied")
        return f"{counted(self.num_layers, 'layer')}, hidden size {self.hidden_size}{output}"

    def build(self, vocab_size: int, objective: Objective, vocab_multiple: int = 1) -> nn.Module:
        return RecurrentForPretraining(self, self.layers(vocab_size, vocab_multiple))

    def body(self, vocab_size: int, objective: Objective) -> Body:
        # An encoder has only the dropout that fine-tuning sets.
        plain = self.model_copy(update={"word_dropout": 0.0, "recurrent_dropout": 0.0})
        return plain.layers(vocab_size)

    @abstractmethod
    def layers(self, vocab_size: int, vocab_multiple: int = 1) -> Recurrent:
        """Build the token table and the cells above it."""

    def trained(self, model: Any, objective: Objective, special: SpecialIds) -> CarryingModel:
        return CarryingModel(model, self.max_length, *special.require("end"))

    def flops_per_token(self, V: int, T: int, objective: Objective, M: float = 0.0) -> float:
        """Count the G gates of each layer (RNN: 1, LSTM: 4) over input and state, and the output:
        6·L·G·2·D² + 6·D·V; the rows that a token multiplies in place of V for classes or a tree."""
        L, D = self.num_layers, self.hidden_size
        return float(6 * L * self.gates * 2 * D * D + 6 * D * self.output.rows(V))


class LstmConfig(RecurrentFamily):
    """An LSTM language model; the defaults are the medium one of Zaremba et al. 2014,
    arXiv:1409.2329, with its output tied."""

    gates: ClassVar[int] = 4

    year: ClassVar[int] = 2012
    paper: ClassVar[str] = "Sundermeyer et al."
    idea: ClassVar[str] = "reads word by word with a memory that lasts"

    kind: Literal["lstm"] = "lstm"

    def page_name(self, objective: Objective) -> str:
        return "LSTM"

    def layers(self, vocab_size: int, vocab_multiple: int = 1) -> Recurrent:
        return Lstm(self, vocab_size, vocab_multiple)


class RnnConfig(RecurrentFamily):
    """A simple recurrent network; the defaults are near Mikolov's, with its output tied."""

    gates: ClassVar[int] = 1

    year: ClassVar[int] = 2010
    paper: ClassVar[str] = "Mikolov et al."
    idea: ClassVar[str] = "reads word by word with a short memory"

    kind: Literal["rnn"] = "rnn"
    num_layers: int = Field(default=1, ge=1)
    hidden_size: int = Field(default=200, ge=1)

    def page_name(self, objective: Objective) -> str:
        return "recurrent network"

    def layers(self, vocab_size: int, vocab_multiple: int = 1) -> Recurrent:
        return Rnn(self, vocab_size, vocab_multiple)


class RowDropout(nn.Dropout):
    """Dropout with one mask for all positions of a row."""

    def forward(self, input: Tensor) -> Tensor:
        if not (self.training and self.p):
            return input
        kept_B1D = functional.dropout(torch.ones_like(input[:, :1]), self.p)
        return input * kept_B1D


class Recurrent(Body):
    """The layers without the output. It ignores segments: the delimiter ends a text."""

    cells: ClassVar[type[nn.LSTM | nn.RNN]]
    parts: ClassVar[int]  # of a layer's state

    def __init__(self, config: RecurrentFamily, vocab_size: int, vocab_multiple: int = 1) -> None:
        D, bound = config.hidden_size, config.initializer_range
        super().__init__(vocab_size, D, config.dropout, vocab_multiple)
        self.dropout = RowDropout(config.dropout)
        self.word_dropout = config.word_dropout
        self.recurrent_dropout = config.recurrent_dropout
        self.layers = nn.ModuleList(
            self.cells(D, D, batch_first=True) for _ in range(config.num_layers)
        )
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)
        self.clear_padding()

    def encode(self, ids_BT: Tensor, state_BLSD: Tensor | None) -> tuple[list[Tensor], Tensor]:
        """Return the embeddings and each layer's output, (B, T, D) each, and the state after the
        last token. A state of None stands for zeros."""
        outputs = [self._embed(ids_BT)]
        after = []
        for number, layer in enumerate(self.layers):
            state = None if state_BLSD is None else self._unpacked(state_BLSD[:, number])
            x_BTD, state = self._through(layer, self.dropout(outputs[-1]), state)
            outputs.append(x_BTD)
            after.append(torch.cat(state if self.parts > 1 else (state,)).transpose(0, 1))
        return outputs, torch.stack(after, dim=1)  # L of (B, S, D) -> (B, L, S, D)

    def encode_layers(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        lengths_B: Tensor | None = None,
    ) -> list[Tensor]:
        return self.encode(ids_BT, None)[0]

    def levels(self) -> list[list[nn.Module]]:
        return [[self.token_embedding], *([layer] for layer in self.layers)]

    def _embed(self, ids_BT: Tensor) -> Tensor:
        vector_BTD = self.token_embedding(ids_BT)
        if not (self.training and self.word_dropout):
            return vector_BTD
        rows = self.token_embedding.num_embeddings
        kept_P = functional.dropout(vector_BTD.new_ones(rows), self.word_dropout)
        return vector_BTD * kept_P[ids_BT][:, :, None]

    def _unpacked(self, state_BSD: Tensor) -> Any:
        """Return a layer's state in PyTorch's form: a tensor (1, B, D), or a tuple of them."""
        parts = tuple(part_BD[None].contiguous() for part_BD in state_BSD.unbind(1))
        return parts if self.parts > 1 else parts[0]

    def _through(self, layer: nn.Module, x_BTD: Tensor, state: Any) -> tuple[Tensor, Any]:
        if not (self.training and self.recurrent_dropout):
            return layer(x_BTD, state)
        weight = layer.get_parameter("weight_hh_l0")
        dropped = {"weight_hh_l0": functional.dropout(weight, self.recurrent_dropout)}
        return functional_call(layer, dropped, (x_BTD, state))


class Lstm(Recurrent):
    """An LSTM; its state is the output and the cell of each layer."""

    name: ClassVar[str] = "lstm"
    cells = nn.LSTM
    parts = 2


class Rnn(Recurrent):
    """A simple recurrent network; its state is the output of each layer."""

    name: ClassVar[str] = "rnn"
    cells = nn.RNN
    parts = 1


class RecurrentForPretraining(NextWordModel):
    """The layers with their output, tied or not, and a bias."""

    def __init__(self, config: RecurrentFamily, body: Recurrent) -> None:
        sizes = config.hidden_size, config.initializer_range
        super().__init__(body, config.output, *sizes, config.tied)
        self.state_shape = (config.num_layers, body.parts, config.hidden_size)  # of one row

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, rows: CausalBatch[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the summed loss and correct predictions, and the next state."""
        states_BTD, after_BLSD = self.read_block(rows.ids, rows.state)
        total, correct = self.sums(states_BTD, rows.targets, rows.weights)
        return total, correct, after_BLSD

    def read_block(self, ids_BT: Tensor, state_BLSD: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the input (B, T, D) of the output matrix, and the next state."""
        body = self.body
        assert isinstance(body, Recurrent)
        outputs, after_BLSD = body.encode(ids_BT, state_BLSD)
        return body.dropout(outputs[-1]), after_BLSD

    def states(self, ids_BT: Tensor, where: Boundaries = WHOLE) -> Tensor:
        """Start from a zero state; boundaries and positions are ignored."""
        return self.read_block(ids_BT, None)[0]
