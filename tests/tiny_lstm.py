"""A small recurrent model: what the platform asks of a family that carries a state.

Shapes: B batch, T sequence, D hidden, L layers, V vocabulary.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from rungwise.models.cross_entropy import MOST_LOGITS, token_sums
from rungwise.models.family import Family
from rungwise.models.objectives import CAUSAL


class TinyLstmConfig(Family):
    objectives: ClassVar = (CAUSAL,)
    kind: Literal["tiny_lstm"] = "tiny_lstm"
    carries_state: ClassVar[bool] = True
    num_layers: int = 2
    hidden_size: int = 16

    @property
    def depth(self) -> int:
        return self.num_layers

    @property
    def width(self) -> int:
        return self.hidden_size

    def build(self, vocab_size: int, *_: Any) -> TinyLstm:
        return TinyLstm(self, vocab_size)

    def flops_per_token(self, vocab_size: int, *_: Any) -> float:
        D = self.hidden_size
        return float(6 * (self.num_layers * 8 * D * D + D * vocab_size))


class TinyLstm(nn.Module):
    """Tied, without dropout. A state is (2, L, D): output and cell of each layer."""

    def __init__(self, config: TinyLstmConfig, vocab_size: int) -> None:
        super().__init__()
        D, L = config.hidden_size, config.num_layers
        self.state_shape = (2, L, D)
        self.vocab_size = vocab_size
        self.embedding = nn.Embedding(vocab_size, D)
        self.lstm = nn.LSTM(D, D, L, batch_first=True)
        nn.init.normal_(self.embedding.weight, std=0.2)

    def forward(
        self, ids_BT: Tensor, targets_BT: Tensor, weights_BT: Tensor, state_B2LD: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        output, cell = state_B2LD.permute(1, 2, 0, 3).contiguous()  # (B, 2, L, D) -> (2, L, B, D)
        hidden_BTD, after = self.lstm(self.embedding(ids_BT), (output, cell))
        total, correct = token_sums(
            hidden_BTD.flatten(0, 1),  # (B, T, D) -> (B·T, D)
            self.embedding.weight,
            None,
            targets_BT.flatten(),
            weights_BT.flatten(),
            self.vocab_size,
            MOST_LOGITS,
        )
        return total, correct, torch.stack(after).permute(2, 0, 1, 3)
