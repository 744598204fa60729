"""Which instances each step reads: short ones first, and longer ones for the last part of a run.

The cost of attention is quadratic in the length, so the paper trains 90 % of the steps on 128
tokens and the last 10 % on 512, to learn the later positions (Devlin et al. 2019, arXiv:1810.04805,
appendix A.2). Model, moments and learning rate schedule continue across the change. The phase of a
step follows from its number alone, so a resumed run knows it.

The steps of a mixture of objectives take turns instead (`draw_turns` in config.py): each reads the
rows of one member, in the order of a run of that member alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rungwise.core.stages.artifact import Artifact
from rungwise.instances.batch import Batch
from rungwise.instances.mixture import MixedOrder, compute_quotas
from rungwise.instances.order import Order, ReadOrder, ShardShare, StreamOrder
from rungwise.instances.reader import InstanceReader
from rungwise.instances.summary import InstancesSummary
from rungwise.models.losses.objectives import Objective, member_names
from rungwise.training.config import GradientConfig, GradientFit
from rungwise.training.feed import (
    Source,
    StepBatch,
    held_out_batches,
    held_out_in_streams,
    step_batch,
)
from rungwise.training.parallel import Worker

READ_BY_NAME = ("instances", "longer_instances")  # the inputs of the stage
MIXED_INSTANCES = "instances_of_"  # begins the name of an input: rows of a member of a mixture


def is_read(name: str) -> bool:
    """Whether an input of the stage is of rows to train on."""
    return name in READ_BY_NAME or name.startswith(MIXED_INSTANCES)


@dataclass(frozen=True)
class DataPhase:
    """The instances that a run reads from one step on; `name` is that of the input. In a mixture,
    what a member reads at its `steps`, which are ascending."""

    name: str
    first_step: int
    instances: Artifact
    member: str | None = None
    steps: NDArray[np.int64] | None = None

    @cached_property
    def summary(self) -> InstancesSummary:
        return InstancesSummary.of(self.instances)

    @property
    def length(self) -> int:
        """T: the tokens of the longest row."""
        length = self.summary.sequence_length
        assert length is not None, f"{self.instances.fingerprint} has no rows to train on"
        return length

    def config(self, run: GradientFit) -> GradientFit:
        """The config of its steps."""
        if self.member is None:
            return run
        return replace(run, pretrain=run.pretrain.of_member(self.member))

    def objective(self, run: GradientFit) -> Objective:
        """The objective of its steps."""
        members = {each.name: each for each in run.objective.members}
        return run.objective if self.member is None else members[self.member]

    def count(self, steps: int) -> int:
        """How many of the first `steps` steps of the run read these instances, whatever follows."""
        if self.steps is None:
            return max(0, steps - self.first_step)
        return int(np.searchsorted(self.steps, steps))

    def order(self, config: GradientFit) -> Order:
        """The order in which a run reads these instances. Raises UserError if the mixture does not
        fit the sources."""
        files, settings = self.summary.split_files("train"), config.pretrain
        rows = np.array([row.instances for row in files], dtype=np.int64)
        if config.carries_state:
            return StreamOrder(rows, settings.seed, settings.global_batch_size)
        if quotas := compute_quotas(settings.order, self.summary.instances_by_source("train")):
            sources = [row.source for row in files]
            return MixedOrder(rows, sources, quotas, settings.seed, settings.order)
        return ReadOrder(rows, settings.seed, settings.order)


@dataclass(frozen=True)
class Phase:
    """Steps that read one set of instances; `reads` tells whether a step does."""

    reads: Callable[[int], bool]
    objective: Objective
    sequence_length: int
    global_batch_size: int
    step: Callable[[int], StepBatch]  # takes the number of a step of the run
    validation: Callable[[], list[Batch[Tensor]]]  # this worker's part; the same each time
    tokens_per_byte: float | None = None  # of held-out text predicted token by token
    flops_per_token: float | None = None
    streams: range | None = None  # those of this worker, if the model carries a state


def find_phase(phases: Sequence[Phase], step: int) -> Phase:
    return next(phase for phase in reversed(phases) if phase.reads(max(step, 0)))


def list_turns(inputs: Mapping[str, Artifact], settings: GradientConfig) -> list[DataPhase]:
    """The instances that a run reads, in turn."""
    if settings.mixture:
        names = member_names(str(settings.objective))
        turns, place = settings.draw_turns(names), {name: n for n, name in enumerate(names)}
        return [
            DataPhase(input_, 0, inputs[input_], name, np.flatnonzero(turns == place[name]))
            for name in names
            for input_ in [READ_BY_NAME[0] if not place[name] else MIXED_INSTANCES + name]
        ]
    starts = [0] if settings.longer_share is None else [0, settings.first_longer_step]
    return [
        DataPhase(name, first, inputs[name])
        for name, first in zip(READ_BY_NAME, starts, strict=False)
    ]


def count_epochs(config: GradientFit, turns: Sequence[DataPhase], steps: int) -> float:
    """How many epochs of the instances the first `steps` steps read, summed over the turns."""
    return sum(
        count * size / rows_per_epoch(config, turn.summary.instances.train, size)
        for turn, count in count_steps(turns, steps)
        for size in [turn.config(config).pretrain.global_batch_size]
    )


def count_steps(turns: Sequence[DataPhase], steps: int) -> list[tuple[DataPhase, int]]:
    """How many of the first `steps` steps read the instances of each turn."""
    if turns[0].steps is not None:
        return [(turn, turn.count(steps)) for turn in turns]
    ends = [*(turn.first_step for turn in turns[1:]), steps]
    return [(turn, turn.count(min(end, steps))) for turn, end in zip(turns, ends, strict=True)]


def rows_per_epoch(config: GradientFit, instances: int, global_batch_size: int) -> int:
    """Instances that an epoch reads. If the model carries a state, streams are equally long, so up
    to `global_batch_size` - 1 instances are left out."""
    rest = instances % global_batch_size if config.carries_state else 0
    return instances - rest


def scale_micro_batch(micro_batch_size: int, first_length: int, length: int) -> int:
    """Rows of a micro-batch: `micro_batch_size` for the first instances, fewer for longer ones, so
    that a micro-batch has as many tokens."""
    return max(1, micro_batch_size * first_length // length)


def open_phases(config: GradientFit, turns: Sequence[DataPhase], worker: Worker) -> list[Phase]:
    """The phases of a run, ready to be read by this worker."""
    return [_open_phase(config, turn, turns[0].length, worker) for turn in turns]


def _open_phase(config: GradientFit, turn: DataPhase, first_length: int, worker: Worker) -> Phase:
    objective, config = turn.objective(config), turn.config(config)
    settings, compute, group = config.pretrain, worker.compute, worker.group
    order, carries_state = turn.order(config), config.carries_state
    cache_bytes = compute.shard_cache_megabytes << 20
    train_source, validation_source = (
        Source(InstanceReader(turn.instances, split, cache_bytes), compute.compile)
        for split in ("train", "validation")
    )
    share = ShardShare(settings.global_batch_size, group.rank, group.world_size)
    micro_batch_size = scale_micro_batch(compute.micro_batch_size, first_length, turn.length)

    def step(number: int) -> StepBatch:
        return step_batch(
            train_source,
            order,
            turn.count(number),
            share,
            micro_batch_size,
            settings.seed,
            worker.parts_of_a_batch,
        )

    def validation() -> list[Batch[Tensor]]:
        read_batches = held_out_in_streams if carries_state else held_out_batches
        count = settings.validation_instances
        return read_batches(validation_source, count, share, micro_batch_size, settings.seed)

    return Phase(
        lambda number: turn.first_step <= number and turn.count(number + 1) > turn.count(number),
        objective,
        turn.length,
        settings.global_batch_size,
        step,
        validation,
        tokens_per_byte(turn.summary) if config.objective.is_code_length else None,
        config.model.flops_per_token(
            turn.summary.vocab_size,
            turn.length,
            config.objective,
            train_source.reader.config.masked_per_row,
        ),
        share.rows if carries_state else None,
    )


def tokens_per_byte(summary: InstancesSummary) -> float:
    """Predicted tokens of the held-out blocks over the bytes of their text in UTF-8."""
    # A block has one more token than it predicts.
    predicted = sum(row.tokens - row.instances for row in summary.split_files("validation"))
    return predicted / max(1, summary.text_bytes.validation)
