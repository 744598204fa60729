"""How the encoder learns: rates per layer, low-rank adaptation, and settings as measured.

Low-rank adaptation (Hu et al. 2021, arXiv:2106.09685, section 4.1): each weight W (n, m) of the
encoder's linear layers becomes W + (alpha / r) · B A, with B (n, r) initially zero and A (r, m)
random. Only A and B learn; after training they are merged into W, so that a plain model remains.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from rungwise.core.errors import ConfigError
from rungwise.finetune.config import DiscriminativeAdaptation, FinetuneConfig, LoraAdaptation
from rungwise.finetune.data import TaskData
from rungwise.finetune.model import TaskModel
from rungwise.models.device import multiplies_bfloat16
from rungwise.tasks.interface import task_kind


def learning_rate_shares(model: TaskModel, config: FinetuneConfig) -> dict[str, float]:
    """Return the factor on `learning_rate` of each parameter, by name.

    Of L layers, layer l has decay^(L - l); the embeddings are layer 0.
    """
    adaptation = config.adaptation
    decay = adaptation.decay if isinstance(adaptation, DiscriminativeAdaptation) else 1.0
    of_head = (config.head_learning_rate or config.learning_rate) / config.learning_rate
    levels = model.encoder.depth()
    shares = {
        id(parameter): decay ** (len(levels) - 1 - number)
        for number, level in enumerate(levels)
        for parameter in level
    }
    return {name: shares.get(id(value), of_head) for name, value in model.named_parameters()}


def thaw(model: TaskModel, config: FinetuneConfig, epoch: int) -> None:
    """Unfreeze the layers whose turn has come in `epoch`, counted from 0, and freeze the others."""
    every = config.unfreeze_every_epochs
    if every is None:
        return
    levels = model.encoder.depth()
    waiting = max(0, len(levels) - epoch // every)
    for number, level in enumerate(levels):
        for parameter in level:
            parameter.requires_grad_(number >= waiting)


def measure_rates(model: TaskModel, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return the highest learning rates in the optimizer now, by config key.

    For a fixed encoder `learning_rate` is the head's, as nothing else learns.
    """
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    of_encoder = [rates.pop(id(p)) for p in model.encoder.parameters() if id(p) in rates]
    return {
        "learning_rate": max(of_encoder or rates.values()),
        "head_learning_rate": max(rates.values()),
    }


def measure_settings(
    config: FinetuneConfig,
    data: TaskData,
    weights: torch.Tensor | None,
    parts: int,
    device: torch.device,
) -> dict[str, float]:
    """Return the measured effect of these keys where they differ from their default; 0: none.

    `weights` are the class weights, `parts` is the number of parts of the first batch, and `device`
    is the model's.
    """
    kind = task_kind(data.info, config.reading)
    windows = kind.has_windows and any(
        len(split.items) > len(split.examples) for split in data.splits.values()
    )
    values = {
        "accumulation": parts,
        "auxiliary_language_model": config.auxiliary_language_model,
        "best_epoch": config.epochs > 1,
        "bfloat16": multiplies_bfloat16(device),
        "class_weights": weights is not None and bool((weights != 1).any()),
        "max_answer_tokens": kind.longest_answer,
        "pooling": kind.pools,
        "windows": windows,
        # No window begins more than half a window after the one before.
        "stride": min(config.stride, (config.sequence_length - kind.marks) // 2) if windows else 0,
    }
    usual = FinetuneConfig()
    return {k: float(v) for k, v in values.items() if getattr(config, k) != getattr(usual, k)}


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
