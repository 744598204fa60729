"""AWD-LSTM, the language model of ULMFiT (Merity et al. 2018, "Regularizing and Optimizing LSTM
Language Models", arXiv:1708.02182; Howard & Ruder 2018, arXiv:1801.06146).

    ids ──> embedding ──> LSTM ──> ... LSTM ──> LSTM of the embedding's size ──> tied output

It is an LSTM (recurrent.py) with a dropout of units for each place: the input, between layers, the
output. `recurrent_dropout` is its weight drop, `word_dropout` its embedding dropout. Two terms join
the loss in training, but not its reported value:

    alpha · mean of h²                  activation regularisation, h the dropped output
    beta · mean of (h_t - h_t-1)²       temporal activation regularisation, h the whole output

Gradients go back about `gradient_length` tokens, drawn anew for each span: from N(length, 5), once
in twenty from N(length / 2, 5). So they do not end at the same places in every epoch. The paper
gives each such span a step and scales its learning rate by its length; here a step is a block of
`instances.sequence_length` tokens, cut into spans, and a token weighs as much as any other.

The paper's optimizer, averaged SGD, is left out; Howard & Ruder take Adam.

Shapes: B batch, T sequence, D width of the last layer.
"""

import itertools
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from rungwise.instances.batch import CausalBatch
from rungwise.models.families.recurrent import (
    Lstm,
    Recurrent,
    RecurrentFamily,
    RecurrentForPretraining,
    RowDropout,
)
from rungwise.models.losses.objectives import CAUSAL, Objective
from rungwise.models.transformer.body import Body

_SPREAD, _HALVED = 5.0, 0.05  # of the lengths of spans; how often half the length is drawn


class AwdLstmConfig(RecurrentFamily):
    """An AWD-LSTM; the defaults are those of the paper for the Penn Treebank, 24.2 M parameters for
    10,000 words."""

    gates: ClassVar[int] = 4

    year: ClassVar[int] = 2018
    paper: ClassVar[str] = "Merity et al.; Howard & Ruder"
    idea: ClassVar[str] = "an LSTM that forgets at random while it learns, so that it learns rules"
    page: ClassVar[str] = "AWD-LSTM"
    objectives: ClassVar = (CAUSAL,)

    kind: Literal["awd_lstm"] = "awd_lstm"
    num_layers: int = Field(default=3, ge=1)
    hidden_size: int = Field(default=1150, ge=1)  # of all layers but the last
    embedding_size: int = Field(default=400, ge=1)  # also of the last layer
    dropout: float = Field(default=0.4, ge=0.0, lt=1.0)  # share of units dropped from the output
    # share of units dropped between layers
    hidden_dropout: float = Field(default=0.25, ge=0.0, lt=1.0)
    # share of units dropped from the input
    input_dropout: float = Field(default=0.4, ge=0.0, lt=1.0)
    word_dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    recurrent_dropout: float = Field(default=0.5, ge=0.0, lt=1.0)
    alpha: float = Field(default=2.0, ge=0.0)  # weight of activation regularisation
    beta: float = Field(default=1.0, ge=0.0)  # weight of temporal activation regularisation
    # tokens that gradients go back, on average; null: to the beginning of the block
    gradient_length: int | None = Field(default=70, ge=1)
    initializer_range: float = Field(default=0.1, gt=0.0)

    @property
    def sizes(self) -> list[int]:
        outer = self.embedding_size
        return [outer, *[self.hidden_size] * (self.num_layers - 1), outer]

    def describe(self) -> str:
        return f"{super().describe()}, embedding size {self.embedding_size}"

    def build(self, vocab_size: int, objective: Objective, vocab_multiple: int = 1) -> nn.Module:
        return AwdLstmForPretraining(self, self.layers(vocab_size, vocab_multiple))

    def body(self, vocab_size: int, objective: Objective) -> Body:
        """Fine-tuning keeps the dropouts inside; it has word dropout and truncation of its own."""
        config = self.model_copy(update={"word_dropout": 0.0, "gradient_length": None})
        return config.layers(vocab_size)

    def layers(self, vocab_size: int, vocab_multiple: int = 1) -> Recurrent:
        return AwdLstm(self, vocab_size, vocab_multiple)


class AwdLstm(Lstm):
    """The layers without the output."""

    name: ClassVar[str] = "awd_lstm"

    def __init__(self, config: AwdLstmConfig, vocab_size: int, vocab_multiple: int = 1) -> None:
        super().__init__(config, vocab_size, vocab_multiple)
        self.input_dropout = RowDropout(config.input_dropout)
        self.hidden_dropout = RowDropout(config.hidden_dropout)
        self.gradient_length = config.gradient_length
        self.alpha, self.beta = config.alpha, config.beta

    def drop_input(self, input_BTD: Tensor, number: int) -> Tensor:
        return (self.hidden_dropout if number else self.input_dropout)(input_BTD)

    def span_lengths(self, sequence_length: int) -> list[int]:
        if not self.training or self.gradient_length is None:
            return super().span_lengths(sequence_length)
        ends = [0]
        while ends[-1] < sequence_length:
            mean = self.gradient_length / (2 if torch.rand(()) < _HALVED else 1)
            span = max(1, round(mean + _SPREAD * torch.randn(()).item()))
            ends.append(min(ends[-1] + span, sequence_length))
        return [end - begin for begin, end in itertools.pairwise(ends)]

    def penalty(self, output_BTD: Tensor, dropped_BTD: Tensor, weights_BT: Tensor) -> Tensor:
        """Return the two terms () times the sum of weights, the count that a loss is divided by."""
        active = (dropped_BTD.square().mean(-1) * weights_BT).sum()
        changed_BT = (output_BTD[:, 1:] - output_BTD[:, :-1]).square().mean(-1)
        real_BT = weights_BT[:, 1:]
        changed = (changed_BT * real_BT).sum() / real_BT.sum().clamp(min=1) * weights_BT.sum()
        return self.alpha * active + self.beta * changed


class AwdLstmForPretraining(RecurrentForPretraining):
    """The layers with their output, and the two terms in the gradient."""

    def forward(self, rows: CausalBatch[Tensor]) -> Any:
        body = self.body
        assert isinstance(body, AwdLstm)
        outputs, after_BLSD = body.encode(rows.ids, rows.state)
        dropped_BTD = body.dropout(outputs[-1])
        total, correct = self.sums(dropped_BTD, rows.targets, rows.weights)
        if self.training:
            penalty = body.penalty(outputs[-1], dropped_BTD, rows.weights)
            total = total + penalty - penalty.detach()
        return total, correct, after_BLSD
