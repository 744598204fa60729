"""A bidirectional LSTM between the states of an encoder and a head.

Devlin et al. 2019 (arXiv:1810.04805) add one with random weights to the left-to-right model (table
5, "+ BiLSTM") and to the fixed features of BERT (section 5.3).

Shapes: B batch, T sequence, E width of a state, H hidden size of one direction.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class BiLstm(nn.Module):
    """A BiLSTM. `dropout` applies between layers only: the head drops out its inputs itself."""

    def __init__(self, width: int, hidden_size: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(
            width,
            hidden_size,
            num_layers,
            batch_first=True,
            bidirectional=True,
            dropout=dropout if num_layers > 1 else 0.0,
        )

    def forward(self, states_BTE: Tensor, lengths_B: Tensor | None) -> Tensor:
        """Return (B, T, 2H), zeros at padding. `lengths_B` is None if no row is padded."""
        if lengths_B is None:
            return self.lstm(states_BTE)[0]
        # Pack, as the right-to-left direction would otherwise begin with the padding.
        packed = pack_padded_sequence(
            states_BTE, lengths_B.cpu(), batch_first=True, enforce_sorted=False
        )
        out_BTH, _ = pad_packed_sequence(
            self.lstm(packed)[0], batch_first=True, total_length=states_BTE.shape[1]
        )
        assert isinstance(out_BTH, torch.Tensor)
        return out_BTH
