"""LSTM language model: reads from left to right with a state of fixed size (Hochreiter &
Schmidhuber 1997; Sundermeyer et al. 2012, "LSTM Neural Networks for Language Modeling").

    ids ──> embedding ──> dropout ──> LSTM ──> dropout ──> ... LSTM ──> dropout ──> logits, tied

Dropout lies between the layers and never on the way from token to token (Zaremba et al. 2014,
arXiv:1409.2329). The output matrix is the embedding, with a bias (Press & Wolf 2017,
arXiv:1608.05859; Inan et al. 2017, arXiv:1611.01462), so both have the hidden size. The state at
the end of a block is where the next block of the text begins: truncated backpropagation through
time, as long as a block. It is carried over the ends of documents too, which the text marks.

Shapes: B batch, T sequence, D hidden, L layers, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from rungwise.models.body import Body, NextTokenModel
from rungwise.models.family import Family
from rungwise.models.language_models import CausalModel
from rungwise.models.objectives import CAUSAL, Objective

if TYPE_CHECKING:  # a bare machine with PyTorch has no tokenizers
    from rungwise.tokenizer.special import SpecialIds


class LstmConfig(Family):
    """The shape of an LSTM language model; the defaults are the medium one of Zaremba et al. 2014.

    `dropout` is 0 unless asked for, where the paper has 0.5: see BertConfig. Small corpora, which
    are read many times, need it.
    """

    year: ClassVar[int] = 2012
    paper: ClassVar[str] = "Sundermeyer et al."
    objectives: ClassVar = (CAUSAL,)
    carries_state: ClassVar[bool] = True

    kind: Literal["lstm"] = "lstm"
    num_layers: int = Field(default=2, ge=1)
    hidden_size: int = Field(default=650, ge=1)
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    initializer_range: float = Field(default=0.05, gt=0.0)  # of a uniform draw, to both sides of 0

    @property
    def depth(self) -> int:
        return self.num_layers

    @property
    def width(self) -> int:
        return self.hidden_size

    def describe(self) -> str:
        return f"{self.num_layers} layers, hidden size {self.hidden_size}"

    def page_name(self, objective: Objective) -> str:
        return "LSTM"

    def build(self, vocab_size: int, objective: Objective, vocab_multiple: int = 1) -> nn.Module:
        return LstmForPretraining(self, vocab_size, vocab_multiple)

    def body(self, vocab_size: int, objective: Objective) -> Body:
        return Lstm(self, vocab_size)

    def trained(self, model: Any, objective: Objective, special: SpecialIds) -> CausalModel:
        return CausalModel(model, self.max_length, *special.require("end"))

    def flops_per_token(self, V: int, T: int, objective: Objective, M: float = 0.0) -> float:
        """Four gates of each layer, from its input and from its state, and the output:

        6·L·8·D² + 6·D·V
        """
        L, D = self.num_layers, self.hidden_size
        return float(6 * L * 8 * D * D + 6 * D * V)


class Lstm(Body):
    """The layers without the output. Segments are not for it: the delimiter ends a text."""

    name: ClassVar[str] = "lstm"

    def __init__(self, config: LstmConfig, vocab_size: int, vocab_multiple: int = 1) -> None:
        D, bound = config.hidden_size, config.initializer_range
        super().__init__(vocab_size, D, config.dropout, vocab_multiple)
        self.layers = nn.ModuleList(
            nn.LSTM(D, D, batch_first=True) for _ in range(config.num_layers)
        )
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)
        self.clear_padding()

    def encode(self, ids_BT: Tensor, state_BL2D: Tensor | None) -> tuple[list[Tensor], Tensor]:
        """The embeddings and the output of each layer, (B, T, D) each, and the state after the last
        token. None for the state stands for zeros: a text begins."""
        outputs = [self.token_embedding(ids_BT)]
        after = []
        for number, layer in enumerate(self.layers):
            before = None
            if state_BL2D is not None:
                # (B, L, 2, D) -> two of (1, B, D), as PyTorch has them
                before = tuple(
                    part_BD[None].contiguous() for part_BD in state_BL2D[:, number].unbind(1)
                )
            x_BTD, state = layer(self.dropout(outputs[-1]), before)
            outputs.append(x_BTD)
            after.append(torch.cat(state).transpose(0, 1))  # two of (1, B, D) -> (B, 2, D)
        return outputs, torch.stack(after, dim=1)

    def encode_layers(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        lengths_B: Tensor | None = None,
    ) -> list[Tensor]:
        return self.encode(ids_BT, None)[0]

    def levels(self) -> list[list[nn.Module]]:
        return [[self.token_embedding], *([layer] for layer in self.layers)]


class LstmForPretraining(NextTokenModel):
    """The LSTM with its output: the token embedding and a bias."""

    lstm: Lstm

    def __init__(self, config: LstmConfig, vocab_size: int, vocab_multiple: int = 1) -> None:
        super().__init__(Lstm(config, vocab_size, vocab_multiple))
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        # Of one row: the output and the cell of each layer.
        self.state_shape = (config.num_layers, 2, config.hidden_size)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, ids_BT: Tensor, targets_BT: Tensor, weights_BT: Tensor, state_BL2D: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Cross entropy of the next tokens and right guesses, summed, and the state to go on."""
        outputs, after_BL2D = self.lstm.encode(ids_BT, state_BL2D)
        total, correct = self.sums(self.lstm.dropout(outputs[-1]), targets_BT, weights_BT)
        return total, correct, after_BL2D

    def states(
        self, ids_BT: Tensor, document_BT: Tensor | None, positions_BT: Tensor | None
    ) -> Tensor:
        """See `NextTokenModel`; from a state of zeros. Boundaries and positions say nothing to it:
        the end symbol in the text does."""
        return self.lstm.dropout(self.lstm.encode(ids_BT, None)[0][-1])

    def output_bias(self) -> Tensor:
        return self.bias
