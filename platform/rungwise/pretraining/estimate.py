"""Estimates what a run takes before anything is spent: size, steps, memory, time and cost.

    dry_run(config, measures, compute) -> dict

All but the time follows from the config. The time follows from a known rate, or on request from one
measured by training on a few micro-batches of random tokens on this machine, which predicts the
cluster only if this machine is like its workers.

Memory per device is estimated by rule: 4 bytes each for the weight, gradient and two moments of a
parameter, and its average if there is one, the activations that backward needs (Korthikanti et al.
2022, arXiv:2205.05198: per layer, 34 bytes per token and hidden unit in 16 bits, without the
attention matrix, which the flash kernel never stores, and 4 more where the residual stream stays in
float32; benchmarks/simulated_step.py counts 34 and 38), and logits with their gradient.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch

from rungwise.core.configuration.compute import ComputeConfig
from rungwise.core.stages.artifact import Artifact
from rungwise.instances.kind import Kind
from rungwise.instances.kinds import config_of
from rungwise.instances.summary import InstancesSummary
from rungwise.models.family import StatefulFamily
from rungwise.models.losses.cross_entropy import MOST_LOGITS
from rungwise.models.losses.objectives import CarriesState
from rungwise.models.transformer.block import parameter_count, recompute_activations
from rungwise.training.config import GradientConfig, GradientFit
from rungwise.training.curriculum import rows_per_epoch, scale_micro_batch
from rungwise.training.loop import uses_bfloat16
from rungwise.training.optimizer import build_optimizers

_MEASURED_BATCHES = 4  # the first one warms up
_ENOUGH_SECONDS = 20.0  # of measuring; then no further batch is started
_BYTES_A_TOKEN_AND_UNIT = 34
_RECOMPUTED_BYTES = 2
_WIDE_STREAM_BYTES, _RECOMPUTED_WIDE_BYTES = 4, 2  # more of each


@dataclass(frozen=True)
class Measures:
    """Sizes of a run that follow from its instances. `instances` is None before they are built."""

    kind: Kind
    vocab_size: int
    tokens_per_row: float
    instances: int | None = None

    @property
    def sequence_length(self) -> int:
        return self.kind.length

    @property
    def masked_per_row(self) -> float:
        return self.kind.masked_per_row

    @classmethod
    def of(cls, artifact: Artifact) -> Measures:
        """The measures of instances that are built."""
        kind, summary = config_of(artifact), InstancesSummary.of(artifact)
        tokens = sum(row.tokens for row in summary.files) / summary.instances.total
        return cls(kind, summary.vocab_size, min(tokens, kind.length), summary.instances.train)

    @classmethod
    def planned(cls, kind: Kind, vocab_size: int) -> Measures:
        """The measures of instances still to be built, assuming full rows."""
        return cls(kind, vocab_size, kind.length)


@dataclass(frozen=True)
class Cost:
    """What a training takes on any machine. `flops_per_token` is the mean over its tokens."""

    tokens: float
    flops_per_token: float

    @property
    def flops(self) -> float:
        return self.flops_per_token * self.tokens


def training_cost(config: GradientFit, measures: Sequence[Measures]) -> Cost:
    """The tokens and floating-point operations of a training by gradient; `measures` are of the
    instances, and of the longer ones if there are any."""
    settings = config.pretrain
    tokens = [
        steps * settings.global_batch_size * each.tokens_per_row
        for each, steps in zip(measures, _phase_steps(settings, len(measures)), strict=True)
    ]
    flops = sum(
        count * _flops_per_token(config, each) for each, count in zip(measures, tokens, strict=True)
    )
    total = sum(tokens)
    most = math.inf if settings.max_tokens is None else settings.max_tokens
    return Cost(min(total, most), flops / total)


def dry_run(
    config: GradientFit,
    measures: Sequence[Measures],
    compute: ComputeConfig,
    tokens_per_second: float | None = None,
    measure: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Parameters, batch, devices, steps, tokens and memory; time and cost if known.

    `measures` are of the instances, and of the longer ones if there are any. `tokens_per_second`
    is of the whole run. Without it, `measure` asks to measure this machine's rate, which is
    multiplied by the workers; it is called with the batches done and the batches in all. Raises
    ConfigError if model and objective do not fit.
    """
    settings = config.pretrain
    first = measures[0]
    with torch.device("meta"):
        model = config.model.build(first.vocab_size, config.objective)
    parameters = parameter_count(model)
    parts = compute.parts_of_a_batch(compute.num_workers)
    largest = -(-settings.global_batch_size // parts)
    micro = min(compute.micro_batch_size, largest)
    phases: list[dict[str, Any]] = []
    for each, steps in zip(measures, _phase_steps(settings, len(measures)), strict=True):
        lengths = first.sequence_length, each.sequence_length
        rows = min(scale_micro_batch(compute.micro_batch_size, *lengths), largest)
        phases.append(_phase(config, settings.global_batch_size, each, rows, steps))
    cost = training_cost(config, measures)
    rate, source = tokens_per_second, "given"
    if rate is None and measure:
        source = "measured on this machine, times the workers"
        rates: list[float] = []
        for number, (each, phase) in enumerate(zip(measures, phases, strict=True)):
            seconds_a_batch: list[float] = []
            for seconds in _batches(config, each, compute, phase["micro_batch_size"]):
                seconds_a_batch.append(seconds)
                done = number * _MEASURED_BATCHES + len(seconds_a_batch)
                measure(done, len(phases) * _MEASURED_BATCHES)
                if sum(seconds_a_batch) > _ENOUGH_SECONDS:
                    break
            # Measured rows are full; the rate counts the tokens they would have in the run.
            tokens_a_batch = phase["micro_batch_size"] * each.tokens_per_row
            best = min(seconds_a_batch[1:] or seconds_a_batch)
            rates.append(compute.num_workers * tokens_a_batch / best)
        times = [phase["tokens"] / rate for phase, rate in zip(phases, rates, strict=True)]
        rate = sum(phase["tokens"] for phase in phases) / sum(times)
    seconds = None if rate is None else cost.tokens / rate
    if settings.max_seconds is not None:
        seconds = settings.max_seconds if seconds is None else min(seconds, settings.max_seconds)
    price = compute.price_per_hour
    gpus, cpus = compute.gpus_per_worker, compute.cpus_per_worker
    return {
        "parameters": parameters,
        "workers": compute.num_workers,
        "devices": f"{compute.num_workers} x " + (f"{gpus:g} GPU" if gpus else f"{cpus:g} CPU"),
        "parallel": compute.parallel if compute.num_workers > 1 else "one worker",
        "global_batch_size": settings.global_batch_size,
        "micro_batch_size": micro,
        "accumulation": math.ceil(largest / micro) * parts // compute.num_workers,
        "phases": phases,
        "steps": settings.steps,
        "tokens": cost.tokens,
        "flops_per_token": cost.flops_per_token,
        "total_flops": cost.flops,
        "memory_bytes_a_device": max(
            memory_estimate(config, each, compute, parameters, phase["micro_batch_size"])
            for each, phase in zip(measures, phases, strict=True)
        ),
        "tokens_per_second": rate,
        "tokens_per_second_is": source if rate is not None else None,
        "seconds": seconds,
        "cost": None if price is None or seconds is None else seconds / 3600 * price,
    }


def _phase(
    config: GradientFit,
    global_batch_size: int,
    measures: Measures,
    micro: int,
    steps: int,
) -> dict[str, Any]:
    rows = steps * global_batch_size
    epochs = None
    if measures.instances is not None:
        epochs = rows / rows_per_epoch(config.model, measures.instances, global_batch_size)
    return {
        "steps": steps,
        "sequence_length": measures.sequence_length,
        "micro_batch_size": micro,
        "tokens_a_step": global_batch_size * measures.tokens_per_row,
        "tokens": rows * measures.tokens_per_row,
        "epochs": epochs,
        "flops_per_token": _flops_per_token(config, measures),
    }


def _phase_steps(settings: GradientConfig, phases: int) -> list[int]:
    """The steps of each phase: one, or two where the last steps read longer rows."""
    starts = [0, settings.longer_from][:phases]
    return np.diff([*starts, settings.steps]).tolist()


def _flops_per_token(config: GradientFit, measures: Measures) -> float:
    return config.model.flops_per_token(
        measures.vocab_size, measures.sequence_length, config.objective, measures.masked_per_row
    )


def memory_estimate(
    config: GradientFit,
    measures: Measures,
    compute: ComputeConfig,
    parameters: int,
    micro: int,
) -> int:
    """Bytes per device, by the rule in the module docstring."""
    sharded_over = {
        "ddp": 1,
        "fsdp": compute.num_workers,
        "hybrid": compute.shard_workers,
    }[compute.parallel]
    settings = config.pretrain
    moments = 2 if settings.optimizer.kind == "adamw" else 1.5
    average = 0 if settings.average is None else 1
    fixed = 4 * (2 + moments + average) * parameters / sharded_over
    if sharded_over > 1:
        # A block is gathered while it is used, and the next one meanwhile.
        fixed += 2 * 4 * parameters / config.model.depth
    # A GPU of the plan need not be here; today's multiply bfloat16.
    on_gpu = compute.gpus_per_worker > 0 and settings.precision == "auto"
    words = 2 if on_gpu or uses_bfloat16(settings.precision, torch.device("cpu")) else 4
    rows_tokens = micro * measures.sequence_length
    again = compute.recompute_activations
    a_unit = (_RECOMPUTED_BYTES if again else _BYTES_A_TOKEN_AND_UNIT) * words / 2
    if words == 2 and not settings.bfloat16_stream:
        a_unit += _RECOMPUTED_WIDE_BYTES if again else _WIDE_STREAM_BYTES
    layers = config.model.depth + (1 if again else 0)
    activations = rows_tokens * config.model.width * a_unit * layers
    predicted = micro * measures.masked_per_row or rows_tokens
    logits = min(
        predicted * measures.vocab_size, MOST_LOGITS if not measures.masked_per_row else math.inf
    )
    return int(fixed + activations + 3 * 4 * logits)


def _batches(
    config: GradientFit, measures: Measures, compute: ComputeConfig, micro: int
) -> Iterator[float]:
    """Yield the seconds per batch of one worker: forward, backward and optimizer step."""
    device = torch.device(
        "cuda" if compute.gpus_per_worker and torch.cuda.is_available() else "cpu"
    )
    settings = config.pretrain
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(max(1, int(compute.cpus_per_worker)))
    try:
        model = config.model.build(measures.vocab_size, config.objective).to(device)
        recompute_activations(model, compute.recompute_activations)
        objective = config.objective
        bfloat16 = uses_bfloat16(settings.precision, device)
        optimizers = build_optimizers(model, settings.optimizer, bfloat16)
        batch = measures.kind.random_batch(micro, measures.vocab_size).to(device)
        if isinstance(config.model, StatefulFamily):
            state_shape = cast(CarriesState, model).state_shape
            state: Any = {"state": torch.zeros(micro, *state_shape, device=device)}
            batch = replace(batch, **state)
        for _ in range(_MEASURED_BATCHES):
            began = time.perf_counter()
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bfloat16):
                losses = objective(model, batch)
            losses.loss().backward()
            for optimizer in optimizers:
                optimizer.step()
            model.zero_grad(set_to_none=True)
            if device.type == "cuda":
                torch.cuda.synchronize()
            yield time.perf_counter() - began
    finally:
        torch.set_num_threads(threads)
