"""Which instances each step reads: short ones first, and longer ones for the last part of a run.

The cost of attention is quadratic in the length, so the paper trains 90 % of the steps on 128
tokens and the last 10 % on 512, to learn the later positions (Devlin et al. 2019, arXiv:1810.04805,
appendix A.2). Model, moments and learning rate schedule continue across the change. The phase of a
step follows from its number alone, so a resumed run knows it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from rungwise.core.configuration.compute import ComputeConfig
from rungwise.core.stages.artifact import Artifact
from rungwise.instances.batch import Batch
from rungwise.instances.mixture import MixedOrder, quotas_of
from rungwise.instances.order import Order, ReadOrder
from rungwise.instances.reader import InstanceReader
from rungwise.instances.streams import StreamOrder, streams_of
from rungwise.instances.summary import InstancesSummary
from rungwise.models.family import Family, StatefulFamily
from rungwise.training.average import LastAverageConfig
from rungwise.training.config import GradientConfig, first_longer_step
from rungwise.training.feed import (
    Source,
    StepBatch,
    held_out_batches,
    held_out_in_streams,
    step_batch,
)
from rungwise.training.parallel import Group

READ_BY_NAME = ("instances", "longer_instances")  # the inputs of the stage


@dataclass(frozen=True)
class Phase:
    """Steps that read one set of instances."""

    first_step: int
    sequence_length: int
    step: Callable[[int], StepBatch]  # takes the number of a step of the run
    validation: Callable[[], list[Batch[Tensor]]]  # the same instances each time
    tokens_per_byte: float | None = None  # of held-out text predicted token by token
    flops_per_token: float | None = None
    streams: range | None = None  # this worker's, if the model carries a state (streams.py)


def phase_at(phases: Sequence[Phase], step: int) -> Phase:
    return next(phase for phase in reversed(phases) if phase.first_step <= max(step, 0))


def shared_steps(settings: GradientConfig) -> int:
    """How many first steps a run with other `steps` and another decay has in common.

    They end with the plateau of warmup_stable_decay, or where longer instances or the mean of the
    last steps begin. 0 if nothing is shared: other schedules decay all the way, a warm-up by
    fraction grows with the run, and a budget or early stop is no number of steps.
    """
    schedule = settings.optimizer.schedule
    plateau = schedule.kind == "warmup_stable_decay" and settings.ends_early is None
    if not plateau or (schedule.warmup_steps is None and schedule.warmup_fraction > 0):
        return 0
    mean = settings.average
    return min(
        schedule.decay_from(settings.steps),
        first_longer_step(settings.steps, settings.longer_share),
        settings.steps - (mean.steps if isinstance(mean, LastAverageConfig) else 0),
    )


def read_in_turn(
    inputs: Mapping[str, Artifact], settings: GradientConfig
) -> list[tuple[int, Artifact]]:
    """The instances that a run reads, each with the first step that reads it."""
    turns = [(0, inputs["instances"])]
    if settings.longer_share is not None:
        longer_from = first_longer_step(settings.steps, settings.longer_share)
        turns.append((longer_from, inputs["longer_instances"]))
    return turns


def epochs_read(
    model: Family,
    turns: list[tuple[int, Artifact]],
    steps: int,
    global_batch_size: int,
) -> float:
    """How many epochs of the instances the first `steps` steps read, summed over phases."""
    return sum(
        count
        * global_batch_size
        / rows_per_epoch(model, InstancesSummary.of(artifact).instances.train, global_batch_size)
        for count, artifact in steps_read(turns, steps)
    )


def steps_read(turns: Sequence[tuple[int, Artifact]], steps: int) -> list[tuple[int, Artifact]]:
    """How many of the first `steps` steps read each phase's instances."""
    ends = [*(first for first, _ in turns[1:]), steps]
    return [
        (max(0, min(end, steps) - first), artifact)
        for (first, artifact), end in zip(turns, ends, strict=True)
    ]


def rows_per_epoch(model: Family, instances: int, global_batch_size: int) -> int:
    """Instances that an epoch reads. If the model carries a state, streams are equally long, so up
    to `global_batch_size` - 1 instances are left out."""
    return (
        instances - instances % global_batch_size
        if isinstance(model, StatefulFamily)
        else instances
    )


def rows_for_length(micro_batch_size: int, first_length: int, length: int) -> int:
    """Rows of a micro-batch: `micro_batch_size` for the first instances, fewer for longer ones, so
    that a micro-batch holds as many tokens."""
    return max(1, micro_batch_size * first_length // length)


def phases_of(
    model: Family,
    settings: GradientConfig,
    inputs: Mapping[str, Artifact],
    compute: ComputeConfig,
    group: Group,
) -> list[Phase]:
    """The phases of a run, ready to be read by this worker."""
    return [
        _phase(first_step, instances, inputs["instances"], model, settings, compute, group)
        for first_step, instances in read_in_turn(inputs, settings)
    ]


def _phase(
    first_step: int,
    instances: Artifact,
    first: Artifact,
    model: Family,
    settings: GradientConfig,
    compute: ComputeConfig,
    group: Group,
) -> Phase:
    summary = InstancesSummary.of(instances)
    length = length_of(instances)
    micro_batch_size = rows_for_length(compute.micro_batch_size, length_of(first), length)
    cache_bytes = compute.shard_cache_megabytes << 20
    train_source, validation_source = (
        Source(InstanceReader(instances, split, cache_bytes), compute.compile)
        for split in ("train", "validation")
    )
    objective = model.objective(settings.objective)
    order, streams = order_of(model, settings, summary), None
    if isinstance(model, StatefulFamily):
        streams = streams_of(settings.global_batch_size, group.rank, group.world_size)

    def step(number: int) -> StepBatch:
        return step_batch(
            train_source,
            order,
            number - first_step,
            global_batch_size=settings.global_batch_size,
            rank=group.rank,
            world_size=group.world_size,
            micro_batch_size=micro_batch_size,
            seed=settings.seed,
            logical_workers=compute.parts_of_a_batch(group.world_size),
        )

    held_out = (
        functools.partial(held_out_in_streams, streams=settings.global_batch_size)
        if isinstance(model, StatefulFamily)
        else held_out_batches
    )
    return Phase(
        first_step,
        length,
        step,
        functools.partial(
            held_out,
            validation_source,
            settings.validation_instances,
            rank=group.rank,
            world_size=group.world_size,
            micro_batch_size=micro_batch_size,
            seed=settings.seed,
        ),
        tokens_per_byte(summary) if objective.is_code_length else None,
        model.flops_per_token(
            summary.vocab_size, length, objective, train_source.reader.config.masked_per_row
        ),
        streams,
    )


def order_of(model: Family, settings: GradientConfig, instances: InstancesSummary) -> Order:
    """The order in which a run reads these instances. Raises UserError if the mixture does not fit
    the sources."""
    files, seed = instances.files_of("train"), settings.seed
    rows = np.array([row.instances for row in files], dtype=np.int64)
    if isinstance(model, StatefulFamily):
        return StreamOrder(rows, seed, settings.global_batch_size)
    if quotas := quotas_of(settings.order, instances.instances_by_source("train")):
        sources = [row.source for row in files]
        return MixedOrder(rows, sources, quotas, seed, settings.order)
    return ReadOrder(rows, seed, settings.order)


def length_of(instances: Artifact) -> int:
    """T: the tokens of the longest row."""
    length = InstancesSummary.of(instances).sequence_length
    assert length is not None, f"instances {instances.fingerprint} have no rows to train on"
    return length


def tokens_per_byte(summary: InstancesSummary) -> float:
    """Predicted tokens of the held-out blocks over the bytes of their text in UTF-8."""
    # A block holds one more token than it predicts.
    predicted = sum(row.tokens - row.instances for row in summary.files_of("validation"))
    return predicted / max(1, summary.text_bytes.validation)
