"""Layers between an encoder and its head: a BiLSTM, a learned mean of the encoder's layers.

The BiLSTM is that of Devlin et al. 2019 (arXiv:1810.04805, table 5 and section 5.3); with token
vectors of its own it is TagLM's tagger (Peters et al. 2017, arXiv:1705.00108). The mean is that of
Peters et al. 2018 ("Deep contextualized word representations", arXiv:1802.05365, equation 1):

    mixed = gamma · sum over l of softmax(s)_l · layer_l

`s` starts at 0, so the mix starts as the plain mean, and gamma at 1. Weight decay pulls s back to
that start, as does the L2 term of their section 3.3. The weights show which layers a task reads.
Layers may be normalised first (their section 3.2), each vector to mean 0 and variance 1 (Ba et al.
2016, arXiv:1607.06450), so that a weight better shows how much of a layer is read.

Shapes: B batch, T sequence, E width of a state, H hidden size of one direction, K layers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from rungwise.models.transformer.rows import run_cells


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

    def forward(
        self, states_BTE: Tensor, lengths_B: Tensor | None, ids_BT: Tensor | None = None
    ) -> Tensor:
        """Return (B, T, 2H), zeros at padding. `lengths_B` is None if no row is padded; the ids are
        not read."""
        return run_cells(self.lstm, states_BTE, lengths_B)[0]


class Tagger(nn.Module):
    """Token vectors and a BiLSTM; the states (B, T, `width`) of an encoder join the output of layer
    `after`, 0 the vectors, or none. `out` is the width of what it returns."""

    def __init__(
        self,
        width: int,
        vocab_size: int,
        embedding_size: int,
        hidden_size: int,
        num_layers: int,
        after: int | None,
        dropout: float,
    ) -> None:
        super().__init__()
        extra, below = (0, num_layers) if after is None else (width, after)
        self.embedding = nn.Embedding(vocab_size, embedding_size)
        self.dropout = nn.Dropout(dropout)
        self.below = BiLstm(embedding_size, hidden_size, below, dropout) if below else None
        self.out = (2 * hidden_size if below else embedding_size) + extra
        self.joins = after is not None
        self.above = None
        if below < num_layers:
            self.above = BiLstm(self.out, hidden_size, num_layers - below, dropout)
            self.out = 2 * hidden_size

    def forward(self, states_BTE: Tensor, lengths_B: Tensor | None, ids_BT: Tensor) -> Tensor:
        """Return (B, T, `out`)."""
        x_BTD = self.dropout(self.embedding(ids_BT))
        if self.below is not None:
            x_BTD = self.below(x_BTD, lengths_B)
        if self.joins:
            x_BTD = torch.cat((x_BTD, self.dropout(states_BTE)), dim=-1)
        return x_BTD if self.above is None else self.above(x_BTD, lengths_B)


class ScalarMix(nn.Module):
    """The mix of `num_layers` tensors of one shape; the embeddings count as a layer."""

    def __init__(self, num_layers: int, layer_norm: bool = False) -> None:
        super().__init__()
        self.layer_norm = layer_norm
        self.scores = nn.Parameter(torch.zeros(num_layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """Return (B, T, E) from K tensors (B, T, E)."""
        shares_K = self.scores.softmax(dim=0)
        mixed = torch.zeros_like(layers[0])
        for share, layer in zip(shares_K, layers, strict=True):
            if self.layer_norm:
                layer = functional.layer_norm(layer, layer.shape[-1:])
            mixed = mixed + share * layer
        return self.gamma * mixed

    def shares(self) -> tuple[float, ...]:
        """Return the current weights of the layers; they sum to 1."""
        return tuple(self.scores.softmax(dim=0).tolist())
