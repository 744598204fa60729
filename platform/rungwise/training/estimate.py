"""Estimates what a run takes before anything is spent: size, steps, memory, time and cost. The time
follows from a known rate, or from one measured on some micro-batches on this machine."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psutil
import torch

from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.stages.artifact import Artifact
from rungwise.instances.kind import Kind
from rungwise.instances.summary import InstancesSummary, read_kind
from rungwise.models.device import shapes_only
from rungwise.models.losses.cross_entropy import MOST_LOGITS
from rungwise.models.transformer.block import parameter_count, recompute_activations
from rungwise.training.config import GradientConfig, GradientFit
from rungwise.training.feed import rows_per_epoch, scale_micro_batch
from rungwise.training.loop import uses_bfloat16
from rungwise.training.optimizer import build_optimizers
from rungwise.training.parallel import Group, distribute
from rungwise.training.step import Step

_MEASURED_BATCHES = 4  # the first one warms up
_ENOUGH_SECONDS = 20.0  # of measuring; then no further batch is started
_SHORT_FLOPS, _GPU_SPEEDUP = 1e11, 100  # some seconds of the slowest core
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

    @classmethod
    def of(cls, artifact: Artifact) -> "Measures":
        """The measures of instances that are built."""
        kind, summary = read_kind(artifact), InstancesSummary.of(artifact)
        tokens = sum(row.tokens for row in summary.files) / summary.instances.total
        return cls(kind, summary.vocab_size, min(tokens, kind.length), summary.instances.train)

    @classmethod
    def planned(cls, kind: Kind, vocab_size: int) -> "Measures":
        """The measures of instances still to be built, assuming full rows."""
        return cls(kind, vocab_size, kind.length)


@dataclass(frozen=True)
class Cost:
    """The cost of a training on any machine. `flops_per_token` is the mean over its tokens."""

    tokens: float
    flops_per_token: float

    @property
    def flops(self) -> float:
        return self.flops_per_token * self.tokens


def training_cost(config: GradientFit, measures: Sequence[Measures]) -> Cost:
    """The tokens and operations of a training by gradient on all its instances."""
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


@dataclass(frozen=True)
class PhaseEstimate:
    """The steps that read one set of instances. `epochs` is None before they are built."""

    steps: int
    sequence_length: int
    micro_batch_size: int
    tokens_a_step: float
    tokens: float
    epochs: float | None


@dataclass(frozen=True)
class RunEstimate:
    """Time, memory and cost of a run; None where nothing is known."""

    parameters: int
    workers: int
    devices: str
    parallel: str
    global_batch_size: int
    micro_batch_size: int
    accumulation: int
    phases: list[PhaseEstimate]
    steps: int
    training: Cost
    memory_bytes_a_device: int
    tokens_per_second: float | None
    measured: bool  # on this machine, times the workers
    seconds: float | None
    cost: float | None


def estimate_run(
    config: GradientFit,
    measures: Sequence[Measures],
    compute: ComputeConfig,
    tokens_per_second: float | None = None,
    measure: bool = False,
) -> RunEstimate:
    """Estimate parameters, batch, devices, steps, tokens and memory; time and cost if known.
    `measures` are of the instances, and of the longer ones if there are any. `tokens_per_second` is
    of the whole run. Without it, `measure` asks for this machine's rate, times the workers. Raises
    ConfigError if model and objective do not fit."""
    settings, first, price = config.pretrain, measures[0], compute.price_per_hour
    with shapes_only():
        parameters = parameter_count(config.model.build(first.vocab_size, config.objective))
    parts = compute.parts_of_a_batch(compute.num_workers)
    largest = -(-settings.global_batch_size // parts)
    micro = min(compute.micro_batch_size, largest)
    phases: list[PhaseEstimate] = []
    for each, steps in zip(measures, _phase_steps(settings, len(measures)), strict=True):
        lengths = first.kind.length, each.kind.length
        rows = min(scale_micro_batch(compute.micro_batch_size, *lengths), largest)
        size, epochs = settings.global_batch_size, None
        if each.instances is not None:
            epochs = steps * size / rows_per_epoch(config, each.instances, size)
        tokens = size * each.tokens_per_row
        phases.append(PhaseEstimate(steps, each.kind.length, rows, tokens, steps * tokens, epochs))
    training = training_cost(config, measures)
    rate = tokens_per_second
    if rate is None and measure:
        seconds = 0.0
        for each, phase in zip(measures, phases, strict=True):
            samples: list[float] = []
            for sample in _time_batches(config, each, compute, phase.micro_batch_size):
                samples.append(sample)
                if sum(samples) > _ENOUGH_SECONDS:
                    break
            # Measured rows are full; the rate counts the tokens they would have in the run.
            tokens_a_batch = phase.micro_batch_size * each.tokens_per_row
            best = min(samples[1:] or samples)
            seconds += phase.tokens * best / tokens_a_batch / compute.num_workers
        rate = sum(phase.tokens for phase in phases) / seconds
    limits = [settings.max_seconds, None if rate is None else training.tokens / rate]
    seconds = min((limit for limit in limits if limit is not None), default=None)
    gpus, cpus = compute.gpus_per_worker, compute.cpus_per_worker
    return RunEstimate(
        parameters=parameters,
        workers=compute.num_workers,
        devices=f"{compute.num_workers} x " + (f"{gpus:g} GPU" if gpus else f"{cpus:g} CPU"),
        parallel=compute.parallel if compute.num_workers > 1 else "one worker",
        global_batch_size=settings.global_batch_size,
        micro_batch_size=micro,
        accumulation=math.ceil(largest / micro) * parts // compute.num_workers,
        phases=phases,
        steps=settings.steps,
        training=training,
        memory_bytes_a_device=max(
            memory_estimate(config, each, compute, parameters, phase.micro_batch_size)
            for each, phase in zip(measures, phases, strict=True)
        ),
        tokens_per_second=rate,
        measured=tokens_per_second is None,
        seconds=seconds,
        cost=None if price is None or seconds is None else seconds / 3600 * price,
    )


def _phase_steps(settings: GradientConfig, phases: int) -> list[int]:
    """The steps of each phase: one, or two where the last steps read longer rows."""
    starts = [0, settings.first_longer_step][:phases]
    return np.diff([*starts, settings.steps]).tolist()


def _flops_per_token(config: GradientFit, measures: Measures) -> float:
    return config.model.flops_per_token(
        measures.vocab_size, measures.kind.length, config.objective, measures.kind.masked_per_row
    )


def memory_estimate(
    config: GradientFit, measures: Measures, compute: ComputeConfig, parameters: int, micro: int
) -> int:
    """Bytes per device, by rule: 4 bytes each for the weight, gradient and two moments of a
    parameter, and its average if there is one; the activations that backward needs (Korthikanti et
    al. 2022, arXiv:2205.05198: per layer, 34 bytes per token and hidden unit in 16 bits, and 4 more
    where the residual stream stays in float32); logits with their gradient."""
    sharded_over = compute.num_workers if compute.parallel == "fsdp" else 1
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
    rows_tokens = micro * measures.kind.length
    again = compute.recompute_activations
    a_unit = (_RECOMPUTED_BYTES if again else _BYTES_A_TOKEN_AND_UNIT) * words / 2
    if words == 2:
        a_unit += _RECOMPUTED_WIDE_BYTES if again else _WIDE_STREAM_BYTES
    layers = config.model.depth + (1 if again else 0)
    activations = rows_tokens * config.model.width * a_unit * layers
    predicted = micro * measures.kind.masked_per_row or rows_tokens
    logits = min(
        predicted * measures.vocab_size,
        MOST_LOGITS if not measures.kind.masked_per_row else math.inf,
    )
    return int(fixed + activations + 3 * 4 * logits)


def device_memory(compute: ComputeConfig) -> int | None:
    """Bytes of a worker's device, or its share of the memory; None for a GPU that is missing."""
    if not compute.gpus_per_worker:
        return psutil.virtual_memory().total // compute.num_workers
    if not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_properties(0).total_memory


def is_measured_fast(
    config: GradientFit, measures: Sequence[Measures], compute: ComputeConfig
) -> bool:
    """Whether this machine surely measures the speed in some seconds."""
    rows = min(compute.micro_batch_size, config.pretrain.global_batch_size)
    flops = [
        rows * each.kind.length * _flops_per_token(config, each) * _MEASURED_BATCHES
        for each in measures
    ]
    return sum(flops) < _SHORT_FLOPS * (_GPU_SPEEDUP if compute.gpus_per_worker else 1)


def _time_batches(
    config: GradientFit, measures: Measures, compute: ComputeConfig, micro: int
) -> Iterator[float]:
    """Yield the seconds per batch of one worker: forward, backward and optimizer step."""
    on_gpu = compute.gpus_per_worker > 0 and torch.cuda.is_available()
    group = Group(0, 1, torch.device("cuda" if on_gpu else "cpu"))
    optimizer, objective = config.pretrain.optimizer, config.objective
    threads = torch.get_num_threads()
    if not on_gpu:
        torch.set_num_threads(max(1, int(compute.cpus_per_worker)))
    try:
        model: Any = config.model.build(measures.vocab_size, objective)
        exchange = distribute(model, group)
        recompute_activations(model, compute.recompute_activations)
        bfloat16 = uses_bfloat16(config.pretrain.precision, group.device)
        optimizers = build_optimizers(model, optimizer, bfloat16)
        step = Step(model, objective, exchange, optimizers, optimizer, group, bfloat16)
        batch = measures.kind.random_batch(micro, measures.vocab_size).to(group.device)
        if config.carries_state:
            state: Any = {"state": torch.zeros(micro, *model.state_shape, device=group.device)}
            batch = replace(batch, **state)
        for _ in range(_MEASURED_BATCHES):
            began = time.perf_counter()
            step([batch], objective.counts(batch), optimizer.learning_rate)
            if on_gpu:
                torch.cuda.synchronize()
            yield time.perf_counter() - began
    finally:
        torch.set_num_threads(threads)
