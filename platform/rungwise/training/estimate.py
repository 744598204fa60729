"""Estimates what a run takes before anything is spent: size, steps, operations, memory, and, at a
known rate, time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import psutil
import torch

from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.stages.artifact import Artifact
from rungwise.instances.kind import Kind
from rungwise.instances.summary import InstancesSummary, read_kind
from rungwise.models.device import shapes_only
from rungwise.models.losses.cross_entropy import MOST_LOGITS
from rungwise.models.transformer.block import parameter_count
from rungwise.training.config import GradientFit
from rungwise.training.feed import scale_micro_batch
from rungwise.training.loop import uses_bfloat16

_BYTES_A_TOKEN_AND_UNIT = 34
_RECOMPUTED_BYTES = 2
_WIDE_STREAM_BYTES, _RECOMPUTED_WIDE_BYTES = 4, 2  # more of each


@dataclass(frozen=True)
class Measures:
    """Sizes of a run that follow from its instances."""

    kind: Kind
    vocab_size: int
    tokens_per_row: float

    @classmethod
    def of(cls, artifact: Artifact) -> "Measures":
        """The measures of instances that are built."""
        kind, summary = read_kind(artifact), InstancesSummary.of(artifact)
        tokens = sum(row.tokens for row in summary.files) / summary.instances.total
        return cls(kind, summary.vocab_size, min(tokens, kind.length))

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
    settings, family = config.pretrain, config.model
    tokens = flops = 0.0
    # One phase, or two where the last steps read longer rows.
    starts = [0, settings.first_longer_step][: len(measures)]
    for each, steps in zip(measures, np.diff([*starts, settings.steps]).tolist(), strict=True):
        size, length, masked = each.vocab_size, each.kind.length, each.kind.masked_per_row
        of_phase = steps * settings.global_batch_size * each.tokens_per_row
        tokens += of_phase
        flops += of_phase * family.flops_per_token(size, length, config.objective, masked)
    most = math.inf if settings.max_tokens is None else settings.max_tokens
    return Cost(min(tokens, most), flops / tokens)


@dataclass(frozen=True)
class RunEstimate:
    """Estimates of one run. `seconds` is None where no rate is known."""

    parameters: int
    steps: int
    training: Cost
    memory_bytes_a_device: int
    seconds: float | None


def estimate_run(
    config: GradientFit,
    measures: Sequence[Measures],
    compute: ComputeConfig,
    tokens_per_second: float | None = None,
) -> RunEstimate:
    """Estimate a run. `measures` are of the instances, and of the longer ones if there are any,
    `tokens_per_second` of the whole run. Raises ConfigError if model and objective do not fit."""
    settings, first = config.pretrain, measures[0]
    with shapes_only():
        parameters = parameter_count(config.model.build(first.vocab_size, config.objective))
    largest = -(-settings.global_batch_size // compute.parts_of_a_batch(compute.num_workers))
    memory = []
    for each in measures:
        rows = scale_micro_batch(compute.micro_batch_size, first.kind.length, each.kind.length)
        memory.append(memory_estimate(config, each, compute, parameters, min(rows, largest)))
    training = training_cost(config, measures)
    limits = [settings.max_seconds, tokens_per_second and training.tokens / tokens_per_second]
    return RunEstimate(
        parameters=parameters,
        steps=settings.steps,
        training=training,
        memory_bytes_a_device=max(memory),
        seconds=min((limit for limit in limits if limit is not None), default=None),
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
