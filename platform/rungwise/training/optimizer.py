"""AdamW and the learning rate of each step, as functions of numbers: no scheduler object.

    optimizer = build_optimizer(model, config)
    set_learning_rate(optimizer, learning_rate_at(step, total_steps, config))
    norm = clip_gradients(model, config)
    optimizer.step()

AdamW: Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization", arXiv:1711.05101. The
defaults are BERT's (Devlin et al. 2019, arXiv:1810.04805, appendix A.2; google-research/bert,
optimization.py): betas 0.9 and 0.999, epsilon 1e-6, decay 0.01 but none on biases and LayerNorm,
gradients cut to a global norm of 1. Unlike google-research/bert, Adam's bias correction is kept:
without it the first updates are too large (Zhang et al. 2021, arXiv:2006.05987).

The learning rate is a pure function of the step, so that resuming needs the step and nothing else:

    linear    peak ──warm-up──> 1 ──straight line──> final_fraction
    cosine    peak ──warm-up──> 1 ──half a cosine──> final_fraction
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from rungwise.config import Config


class ScheduleConfig(Config):
    """How the learning rate goes up and down; fractions, so that a longer run keeps its shape.

    The paper warms up for 10,000 of 1,000,000 steps and goes down on a line to 0.
    """

    kind: Literal["linear", "cosine"] = "linear"
    warmup_fraction: float = Field(default=0.01, ge=0.0, lt=1.0)
    final_fraction: float = Field(default=0.0, ge=0.0, le=1.0)


class OptimizerConfig(Config):
    """AdamW with a schedule. `clip_norm: null` leaves gradients as they are."""

    kind: Literal["adamw"] = "adamw"
    learning_rate: float = Field(default=1e-4, gt=0.0)
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    beta2: float = Field(default=0.999, ge=0.0, lt=1.0)
    epsilon: float = Field(default=1e-6, gt=0.0)
    weight_decay: float = Field(default=0.01, ge=0.0)
    clip_norm: float | None = Field(default=1.0, gt=0.0)
    schedule: ScheduleConfig = ScheduleConfig()


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """Fused AdamW over the trainable parameters in two groups, with and without decay."""
    decayed, undecayed = decay_groups(model)
    return torch.optim.AdamW(
        [
            {"params": list(decayed.values()), "weight_decay": config.weight_decay},
            {"params": list(undecayed.values()), "weight_decay": 0.0},
        ],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=True,
    )


def decay_groups(
    model: nn.Module,
) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """Trainable parameters by name: those with weight decay, those without.

    Without are the biases and all of LayerNorm, as `exclude_from_weight_decay` of google-research.
    """
    decayed: dict[str, nn.Parameter] = {}
    undecayed: dict[str, nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        owner, _, leaf = name.rpartition(".")
        is_norm = isinstance(model.get_submodule(owner), nn.LayerNorm)
        (undecayed if is_norm or "bias" in leaf else decayed)[name] = parameter
    return decayed, undecayed


def learning_rate_at(step: int, total_steps: int, config: OptimizerConfig) -> float:
    """The learning rate of update number `step`, counted from 0, of `total_steps`.

    Warm-up of W steps gives step s the share (s+1)/(W+1) of the peak, which step W is the first to
    have. google-research/bert and transformers give s/W, so that their first update is one of 0 and
    its batch is wasted. From W on the way is that of transformers: down over total_steps - W steps,
    at `final_fraction` one step after the last, so that no step is without effect. (google-research
    draws its line from step 0 and drops by W/total_steps where the warm-up ends.)
    """
    schedule = config.schedule
    warmup_steps = round(schedule.warmup_fraction * total_steps)
    if step < warmup_steps:
        return config.learning_rate * (step + 1) / (warmup_steps + 1)
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    match schedule.kind:
        case "linear":
            remaining = 1.0 - progress
        case "cosine":
            remaining = 0.5 * (1.0 + math.cos(math.pi * progress))
    fraction = schedule.final_fraction + (1.0 - schedule.final_fraction) * remaining
    return config.learning_rate * fraction


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Use `learning_rate` from the next step on, for every group."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def clip_gradients(model: nn.Module, config: OptimizerConfig) -> Tensor:
    """Scale all gradients so that their joint norm is at most `clip_norm`; the norm before that.

    The norm stays on the device: reading it waits. Call this when the gradients of all
    micro-batches and workers are summed.
    """
    bound = math.inf if config.clip_norm is None else config.clip_norm
    return nn.utils.clip_grad_norm_(model.parameters(), bound)
