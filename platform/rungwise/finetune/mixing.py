"""A learned mean of layers (Peters et al. 2018, "Deep contextualized word representations",
arXiv:1802.05365, equation 1):

    mixed = gamma · sum over l of softmax(s)_l · layer_l

`s` starts at 0, so the mix starts as the plain mean, and gamma at 1. Weight decay pulls s back to
that start, as does the L2 term of their section 3.3. The weights show which layers a task reads.

Layers may be normalised first (their section 3.2), each vector to mean 0 and variance 1 (Ba et al.
2016, arXiv:1607.06450), so that a weight better shows how much of a layer is read.

Shapes: B batch, T sequence, E width, K layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


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
