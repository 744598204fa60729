"""The training loop: plain PyTorch, no Ray and no MLflow, read from top to bottom.

A run is a function of its config. Step s reads positions [s B, (s + 1) B) of the computed order,
its learning rate follows from s, and dropout is seeded by (seed, s, rank). So a run that was killed
goes on from its last checkpoint and ends with the bits it would have ended with.

A loss is a sum and a count until the last all-reduce: every micro-batch is divided by the counts of
the whole global batch, so splitting it over micro-batches and workers in any way gives the same
gradient.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from rungwise.config import Config
from rungwise.context import Reporter
from rungwise.errors import UserError
from rungwise.instances.order import OrderConfig
from rungwise.instances.randomness import bits
from rungwise.objectives import LossSum, Objective, ObjectiveConfig, PretrainingBatch
from rungwise.training.checkpoint import Checkpoints, Progress
from rungwise.training.feed import Prefetched, StepBatch
from rungwise.training.optimizer import (
    OptimizerConfig,
    build_optimizer,
    clip_gradients,
    learning_rate_at,
    set_learning_rate,
)
from rungwise.training.parallel import Group

# "auto" is bfloat16 where the processor multiplies it natively, else float32. Weights, moments and
# losses are float32 in each.
Precision = Literal["float32", "bfloat16", "auto"]

# How far a loss may be from its expected start, in nats, before it is named.
_START_TOLERANCE = {"mlm": 0.5, "nsp": 0.15}


class PretrainConfig(Config):
    """What is trained: these values decide the weights that come out."""

    objective: ObjectiveConfig = ObjectiveConfig()
    steps: int = Field(ge=1)
    global_batch_size: int = Field(default=256, ge=1)  # instances
    order: OrderConfig = OrderConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    precision: Precision = "float32"
    validation_every_steps: int = Field(default=1000, ge=1)
    validation_instances: int = Field(default=2048, ge=1)
    log_every_steps: int = Field(default=10, ge=1)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _whole_lanes(self) -> PretrainConfig:
        if self.global_batch_size % self.order.lanes:
            raise ValueError(
                f"order.lanes {self.order.lanes} does not divide global_batch_size "
                f"{self.global_batch_size}, so workers would change lanes at every step and fetch "
                "each other's shards; choose a divisor"
            )
        return self


@dataclass(frozen=True)
class Feeds:
    """Where batches come from: one step's, and the fixed ones of validation."""

    step: Callable[[int], StepBatch]
    validation: Callable[[], list[PretrainingBatch]]


def train(
    config: PretrainConfig,
    model: nn.Module,
    objective: Objective,
    feeds: Feeds,
    vocab_size: int,
    checkpoints: Checkpoints,
    checkpoint_every_steps: int,
    group: Group,
    report: Reporter,
) -> Progress:
    """Train `model` in place until `config.steps`, from the newest sound checkpoint if any.

    Raises UserError if the loss stops being a number.
    """
    model.to(group.device)
    optimizer = build_optimizer(model, config.optimizer)
    progress = _resume(model, optimizer, checkpoints, group)
    wrapped = group.wrap(model)
    pending = _Pending.of(progress, objective, group)
    if group.leads:
        _report_again(progress, report)
    if progress.step == 0:
        first = validate(model, objective, feeds, config, group)
        _record_validation(progress, first, report, group)
        _check_start(first, objective, vocab_size, report, group)
    clock = _Clock(progress)
    feed = Prefetched(feeds.step, progress.step, config.steps)
    try:
        while progress.step < config.steps:
            step = progress.step
            waited = time.perf_counter()
            batch = feed.next()
            clock.waited += time.perf_counter() - waited

            model.train()
            torch.manual_seed(int(bits(config.seed, step, group.rank)) >> 1)
            rate = learning_rate_at(step, config.steps, config.optimizer)
            set_learning_rate(optimizer, rate)
            micro_batches = [
                part.to(group.device, non_blocking=True) for part in batch.micro_batches
            ]
            counts = group.sum(
                torch.stack([objective.counts(part) for part in micro_batches]).sum(0)
            )
            for number, part in enumerate(micro_batches):
                last = number == len(micro_batches) - 1
                with group.exchange(wrapped, last), _precision(config, group):
                    sums = objective(wrapped, part)
                    # DDP takes the mean of the workers' gradients; their sum is wanted.
                    (sums.loss(counts) * group.world_size).backward()
                pending.sums += sums.packed()
            norm = clip_gradients(model, config.optimizer)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

            progress.step += 1
            pending.tokens += batch.tokens
            done = progress.step
            save = done % checkpoint_every_steps == 0 or done == config.steps
            log = done % config.log_every_steps == 0 or done == config.steps
            if save or log:
                pending.gather(progress, group)
            if log:
                if group.leads:
                    values = LossSum.unpacked(pending.sums, objective.parts).metrics()
                    _log(progress, values, rate, norm, clock, config, report)
                pending.sums.zero_()
            if done % config.validation_every_steps == 0 or done == config.steps:
                began = time.perf_counter()
                result = validate(model, objective, feeds, config, group)
                _record_validation(progress, result, report, group)
                clock.validated += time.perf_counter() - began
            if save:
                began = time.perf_counter()
                if group.leads:
                    progress.pending = pending.sums.tolist()
                    checkpoints.save(model, optimizer, progress)
                    seconds = time.perf_counter() - began
                    report.metrics({"checkpoint/save_seconds": seconds}, progress.step)
                clock.saved += time.perf_counter() - began
    finally:
        feed.close()
    return progress


@torch.no_grad()
def validate(
    model: nn.Module, objective: Objective, feeds: Feeds, config: PretrainConfig, group: Group
) -> dict[str, float]:
    """Losses and accuracies over the validation instances, the same ones with the same masks."""
    model.eval()
    total = torch.zeros(3, len(objective.parts), dtype=torch.float64, device=group.device)
    for batch in feeds.validation():
        with _precision(config, group):
            total += objective(model, batch.to(group.device)).packed()
    values = LossSum.unpacked(group.sum(total), objective.parts).metrics()
    return values | {"perplexity": math.exp(min(values["mlm_loss"], 700.0))}


def _resume(
    model: nn.Module, optimizer: torch.optim.Optimizer, checkpoints: Checkpoints, group: Group
) -> Progress:
    # On every worker: if the leader alone raised, the others would wait for it for ever.
    checkpoints.refuse_foreign()
    # The leader decides, so that workers cannot disagree about a checkpoint that is being removed.
    newest = checkpoints.newest_sound() if group.leads else None
    step = group.from_leader(-1 if newest is None else newest)
    return Progress() if step < 0 else checkpoints.load(step, model, optimizer)


@dataclass
class _Pending:
    """What was summed since the last logged step: by this worker, or by all if it leads."""

    sums: Tensor  # (3, P) the objective's
    tokens: Tensor  # () real tokens, not yet in the progress

    @classmethod
    def of(cls, progress: Progress, objective: Objective, group: Group) -> _Pending:
        # On the device: a copy to the host in every micro-batch would wait for it.
        sums = torch.zeros(3, len(objective.parts), dtype=torch.float64, device=group.device)
        if progress.pending and group.leads:
            sums = torch.tensor(progress.pending, dtype=torch.float64, device=group.device)
        return cls(sums, torch.zeros((), dtype=torch.int64, device=group.device))

    def gather(self, progress: Progress, group: Group) -> None:
        """Bring the sums of all workers to the leader; count the tokens."""
        progress.tokens += int(group.sum(self.tokens))
        self.tokens.zero_()
        sums = group.sum(self.sums)
        if not bool(sums.isfinite().all()):
            raise UserError(
                f"the loss is not finite at step {progress.step}; lower "
                "pretrain.optimizer.learning_rate or raise its schedule.warmup_fraction"
            )
        self.sums = sums if group.leads else torch.zeros_like(sums)


class _Clock:
    """Wall time since the last logged step."""

    def __init__(self, progress: Progress) -> None:
        self.restart(progress)

    def restart(self, progress: Progress) -> None:
        self.began = time.perf_counter()
        self.tokens = progress.tokens
        self.waited = 0.0  # for data
        self.saved = 0.0  # checkpoints
        self.validated = 0.0

    def seconds(self) -> float:
        """Of training: validation is left out."""
        return time.perf_counter() - self.began - self.validated


def _log(
    progress: Progress,
    values: dict[str, float],
    rate: float,
    norm: Tensor,
    clock: _Clock,
    config: PretrainConfig,
    report: Reporter,
) -> None:
    seconds = clock.seconds()
    row = {
        "step": progress.step,
        "tokens": progress.tokens,
        "learning_rate": rate,
        "gradient_norm": float(norm),
        **values,
    }
    timing = {
        "step": progress.step,
        "seconds": seconds,
        "tokens_per_second": (progress.tokens - clock.tokens) / seconds,
        "data_wait_share": clock.waited / seconds,
        "checkpoint_stall_share": clock.saved / seconds,
    }
    progress.history.append(row)
    progress.timings.append(timing)
    _report_row(report, "train", row)
    _report_row(report, "throughput", timing)
    report.progress(
        progress.step,
        config.steps,
        loss=values["loss"],
        **{"tokens/s": timing["tokens_per_second"]},
    )
    clock.restart(progress)


def _record_validation(
    progress: Progress, values: dict[str, float], report: Reporter, group: Group
) -> None:
    row = {"step": progress.step, "tokens": progress.tokens, **values}
    progress.validation.append(row)
    if group.leads:
        _report_row(report, "validation", row)


def _report_row(report: Reporter, prefix: str, row: dict[str, float]) -> None:
    values = {f"{prefix}/{name}": value for name, value in row.items() if name != "step"}
    report.metrics(values, int(row["step"]))


def _report_again(progress: Progress, report: Reporter) -> None:
    """Tell all that a checkpoint remembers: workers outlive a killed driver by some steps, and what
    they reported then reached nobody. Points that arrived before are dropped (tracking.py)."""
    for prefix, rows in (
        ("train", progress.history),
        ("throughput", progress.timings),
        ("validation", progress.validation),
    ):
        for row in rows:
            _report_row(report, prefix, row)


def _check_start(
    values: dict[str, float],
    objective: Objective,
    vocab_size: int,
    report: Reporter,
    group: Group,
) -> None:
    if not group.leads:
        return
    for part, expected in objective.expected_initial_losses(vocab_size).items():
        found = values[f"{part}_loss"]
        if abs(found - expected) > _START_TOLERANCE[part]:
            report.note(
                f"{part} loss before the first step is {found:.3f}, expected about {expected:.3f} "
                f"({'ln V' if part == 'mlm' else 'ln 2'}): look at model.initializer_range, the "
                "labels, and the vocabulary size"
            )


def _precision(config: PretrainConfig, group: Group) -> torch.autocast:
    return torch.autocast(
        group.device.type,
        dtype=torch.bfloat16,
        enabled=uses_bfloat16(config.precision, group.device),
    )


def uses_bfloat16(precision: Precision, device: torch.device) -> bool:
    """Whether matrix products are taken in bfloat16 on `device`."""
    if precision != "auto":
        return precision == "bfloat16"
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # Without these instructions oneDNN emulates the products, several times slower than float32.
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
