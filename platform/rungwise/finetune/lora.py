"""Low-rank adaptation (Hu et al. 2021, arXiv:2106.09685, section 4.1): each weight W (n, m) of the
encoder's linear layers becomes W + (alpha / r) · B A, with B (n, r) initially zero and A (r, m)
random. Only A and B learn; after training they are merged into W, so that a plain model remains.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from rungwise.core.errors import ConfigError
from rungwise.finetune.config import LoraAdaptation


class LowRank(nn.Module):
    """W plus its low-rank change; a parametrization of the weight of a linear layer."""

    def __init__(self, weight: Tensor, rank: int, alpha: float) -> None:
        super().__init__()
        self.down = nn.Parameter(weight.new_empty(rank, weight.shape[1]))
        self.up = nn.Parameter(weight.new_zeros(weight.shape[0], rank))
        self.share = alpha / rank
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.share * (self.up @ self.down)


def adapt(encoder: nn.Module, adaptation: LoraAdaptation) -> None:
    """Freeze `encoder` and add trainable low-rank changes to its linear layers.

    Raises ConfigError if it has no linear layers.
    """
    encoder.requires_grad_(False)
    linear = [module for module in encoder.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ConfigError(
            "finetune.adaptation.kind: lora changes linear layers, and this encoder has none; use "
            "full"
        )
    for module in linear:
        change = LowRank(module.weight, adaptation.rank, adaptation.alpha)
        parametrize.register_parametrization(module, "weight", change)


@torch.no_grad()
def merge(encoder: nn.Module) -> None:
    """Add the changes to the weights and remove the parametrizations."""
    for module in encoder.modules():
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
