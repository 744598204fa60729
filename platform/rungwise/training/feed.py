"""Which instances each step reads, as tensors, one thread ahead of the training step.

The rows of a step follow from its number alone. Rounding depends on which rows share a micro-batch,
so a batch may be cut for logical workers first (Li et al. 2023, "EasyScale", SC '23), of which each
worker takes equally many.

B batch
"""

import bisect
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from torch import Tensor

from rungwise.core.arrays import Ints
from rungwise.core.randomness import bits
from rungwise.core.stages.artifact import Artifact, Inputs
from rungwise.instances import order as orders
from rungwise.instances.batch import Batch, in_streams
from rungwise.instances.reader import InstanceReader
from rungwise.instances.summary import InstancesSummary
from rungwise.models.losses.objectives import Objective, member_names
from rungwise.training.config import GradientConfig, GradientFit
from rungwise.training.parallel import Worker

_AHEAD = 2
_PREFETCH_STEPS = 64  # every so many steps, the shards of twice as many are requested
_DATA_HASH = 0xDA7A


@dataclass(frozen=True)
class StepBatch:
    """The rows that one worker reads at one step."""

    micro_batches: list[Batch[Tensor]]  # as many for each logical worker, one after the other
    tokens: int  # without padding
    instances: Ints
    data_hash: int  # 64 bits; the sum over workers is the hash of the step


def logical_ranks(rank: int, world_size: int, logical_workers: int) -> range:
    """The logical workers whose rows a worker takes; `world_size` divides them."""
    each = logical_workers // world_size
    return range(rank * each, (rank + 1) * each)


def count_bins(rows: int, world_size: int, micro_batch_size: int) -> int:
    """The number of micro-batches into which each worker cuts its part of `rows`. Parts differ by a
    row, and the smaller must fill all, so one may have a row more than `micro_batch_size`."""
    most, least = -(-rows // world_size), max(1, rows // world_size)
    return min(-(-most // micro_batch_size), least)


def data_hash(instances: Ints, epochs: Ints) -> int:
    """A 64-bit hash of these rows, independent of their order (AdHash, Bellare and Micciancio
    1997): the sum over the workers is that of a step."""
    return int(bits(_DATA_HASH, instances, epochs).sum(dtype=np.uint64))


class Prefetched:
    """The batches of [first, last), made by a thread ahead of use. `next` raises its errors."""

    def __init__(
        self, make: Callable[[int], StepBatch], first: int, last: int, pinned: bool = False
    ) -> None:
        """`pinned`: in page-locked memory, so copies to a GPU need not wait for the step before."""
        self._make = make
        self._pinned = pinned
        self._steps = iter(range(first, last))
        self._thread = ThreadPoolExecutor(1, "feed")
        self._begun = deque(self._begin(_AHEAD))

    def next(self) -> StepBatch:
        """The next step's batch; waits until it is made."""
        self._begun += self._begin(1)
        return self._begun.popleft().result()

    def close(self) -> None:
        """End the thread and drop batches made ahead."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _begin(self, count: int) -> list[Future[StepBatch]]:
        return [self._thread.submit(self._run, step) for step in islice(self._steps, count)]

    def _run(self, step: int) -> StepBatch:
        batch = self._make(step)
        if not self._pinned:
            return batch
        return replace(batch, micro_batches=[part.pin_memory() for part in batch.micro_batches])


READ_BY_NAME = ("instances", "longer_instances")  # the inputs of the stage
MIXED_INSTANCES = "instances_of_"  # begins the name of an input: rows of a member of a mixture


def is_read(name: str) -> bool:
    """Whether an input of the stage is of rows to train on."""
    return name in READ_BY_NAME or name.startswith(MIXED_INSTANCES)


@dataclass(frozen=True)
class DataPhase:
    """The instances that a run reads at these steps, which are ascending; `name` is that of the
    input, `member` the objective of a mixture whose steps they are."""

    name: str
    steps: range | Ints
    instances: Artifact
    member: str | None = None

    @cached_property
    def summary(self) -> InstancesSummary:
        return InstancesSummary.of(self.instances)

    @property
    def length(self) -> int:
        """T: the tokens of the longest row."""
        length = self.summary.sequence_length
        assert length is not None, f"{self.instances.fingerprint} has no rows to train on"
        return length

    @property
    def first_step(self) -> int:
        """The step from which on the run reads rows of this length; 0 in a mixture."""
        return 0 if self.member else int(self.steps[0])

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
        """How many of the first `steps` steps of the run read these instances."""
        return bisect.bisect_left(self.steps, steps)

    def order(self, config: GradientFit) -> orders.Order:
        """The order in which a run reads these instances."""
        files, settings = self.summary.split_files("train"), config.pretrain
        rows = np.array([row.instances for row in files], dtype=np.int64)
        if config.carries_state:
            return orders.StreamOrder(rows, settings.seed, settings.global_batch_size)
        return orders.ReadOrder(rows, settings.seed, settings.order)


class Phase:
    """Steps that read one set of instances, as one worker takes them."""

    def __init__(
        self, run: GradientFit, turn: DataPhase, first_length: int, worker: Worker
    ) -> None:
        """Micro-batches have as many tokens as those of the first phase, of `first_length`."""
        config, compute, group = turn.config(run), worker.compute, worker.group
        settings, cache_bytes = config.pretrain, compute.shard_cache_megabytes << 20
        self.objective = turn.objective(run)
        self.sequence_length, self.global_batch_size = turn.length, settings.global_batch_size
        self._turn, self._order, self._settings = turn, turn.order(config), settings
        self._parts_of_a_batch, self._fixed_shapes = worker.parts_of_a_batch, compute.compile
        self._train, self._validation = (
            InstanceReader(turn.instances, split, cache_bytes) for split in ("train", "validation")
        )
        self._share = orders.ShardShare(self.global_batch_size, group.rank, group.world_size)
        size = scale_micro_batch(compute.micro_batch_size, first_length, turn.length)
        self._micro_batch_size = size
        # Those of this worker, if the model carries a state.
        self.streams = self._share.rows if config.carries_state else None
        # Of held-out text predicted token by token.
        objective, summary, masked = (
            config.objective,
            turn.summary,
            self._train.config.masked_per_row,
        )
        self.tokens_per_byte = tokens_per_byte(summary) if objective.is_code_length else None
        size, length = summary.vocab_size, turn.length
        self.flops_per_token = config.model.flops_per_token(size, length, objective, masked)

    def reads(self, step: int) -> bool:
        """Whether a step of the run reads these instances."""
        return self._turn.count(step + 1) > self._turn.count(step)

    def step(self, number: int) -> StepBatch:
        """The rows of this worker at that step of the run, as micro-batches of its logical
        workers."""
        step, share = self._turn.count(number), self._share
        if step % _PREFETCH_STEPS == 0:
            ahead = self._order.upcoming_shards(step, 2 * _PREFETCH_STEPS, share)
            self._train.store.prefetch(ahead.tolist())
        located = self._order.locate(self._order.positions(step, share))
        workers = self._parts_of_a_batch
        bins = count_bins(share.batch_size, workers, self._micro_batch_size)
        mine = logical_ranks(share.rank, share.world_size, workers)
        cuts = [replace(share, rank=rank, world_size=workers).rows.start for rank in mine[1:]]
        cuts = np.array(cuts, dtype=np.int64) - share.rows.start
        parts: list[Any] = []  # of NumPy arrays
        tokens = 0
        for instances, epochs in zip(
            np.split(located.instances, cuts), np.split(located.epochs, cuts), strict=True
        ):
            parts_of_one, tokens_of_one = self._read(self._train, instances, epochs, bins)
            parts += parts_of_one
            tokens += tokens_of_one
        if located.continues is not None:
            parts = in_streams(parts, np.arange(len(located.instances)), located.continues)
        tensors = [part.tensors() for part in parts]
        digest = data_hash(located.instances, located.epochs)
        return StepBatch(tensors, tokens, located.instances, digest)

    def validation(self) -> list[Batch[Tensor]]:
        """This worker's part of the held-out instances, masked as in epoch 0."""
        read_rows = self._held_out_rows if self.streams is None else self._held_out_streams
        return [part.tensors() for part in read_rows(self._settings.validation_instances)]

    def _held_out_rows(self, count: int) -> list[Any]:
        """Evenly spread instances."""
        reader, share = self._validation, self._share
        sample = orders.evenly(len(reader), count)
        part = share.part(len(sample))
        if not part:
            return []
        mine = sample[part.start : part.stop]
        bins = count_bins(len(sample), share.world_size, self._micro_batch_size)
        return self._read(reader, mine, np.zeros_like(mine), bins)[0]

    def _held_out_streams(self, count: int) -> list[Any]:
        """Contiguous text in a batch's streams."""
        reader, parts = self._validation, []
        rows, count = reader.rows_per_shard, min(count, len(reader))
        for stream, instances, continues in orders.held_out_streams(rows, count, self._share):
            bins = -(-len(stream) // self._micro_batch_size)
            read, _ = self._read(reader, instances, np.zeros_like(instances), bins)
            parts += in_streams(read, stream, continues)
        return parts

    def _read(
        self, reader: InstanceReader, instances: Ints, epochs: Ints, bins: int
    ) -> tuple[list[Any], int]:
        """The rows (B,) of these epochs (B,) in `bins` NumPy micro-batches, and their tokens."""
        batch = reader.batch(instances, epochs, self._settings.seed)
        return list(batch.micro_batches(bins, self._fixed_shapes)), batch.tokens


def find_phase(phases: Sequence[Phase], step: int) -> Phase:
    return next(phase for phase in reversed(phases) if phase.reads(max(step, 0)))


def list_turns(inputs: Inputs, settings: GradientConfig) -> list[DataPhase]:
    """The instances that a run reads, in turn."""
    if settings.mixture:
        names = member_names(str(settings.objective))
        turns, place = settings.draw_turns(names), {name: n for n, name in enumerate(names)}
        return [
            DataPhase(input_, np.flatnonzero(turns == place[name]), inputs[input_], name)
            for name in names
            for input_ in [READ_BY_NAME[0] if not place[name] else MIXED_INSTANCES + name]
        ]
    cut = settings.first_longer_step
    steps = (range(cut), range(cut, settings.steps))
    return [
        DataPhase(name, each, inputs[name])
        for name, each in zip(READ_BY_NAME, steps, strict=True)
        if each
    ]


def count_epochs(config: GradientFit, turns: Sequence[DataPhase], steps: int) -> float:
    """How many epochs of the instances the first `steps` steps read, summed over the turns."""
    return sum(
        turn.count(steps) * size / rows_per_epoch(config, turn.summary.instances.train, size)
        for turn in turns
        for size in [turn.config(config).pretrain.global_batch_size]
    )


def rows_per_epoch(config: GradientFit, instances: int, global_batch_size: int) -> int:
    """Instances of an epoch; streams are equally long, which may leave some out."""
    rest = instances % global_batch_size if config.carries_state else 0
    return instances - rest


def scale_micro_batch(micro_batch_size: int, first_length: int, length: int) -> int:
    """Rows of a micro-batch: fewer for longer instances, so that it has as many tokens."""
    return max(1, micro_batch_size * first_length // length)


def open_phases(config: GradientFit, turns: Sequence[DataPhase], worker: Worker) -> list[Phase]:
    """The phases of a run, ready to be read by this worker."""
    return [Phase(config, turn, turns[0].length, worker) for turn in turns]


def tokens_per_byte(summary: InstancesSummary) -> float:
    """Predicted tokens of the held-out blocks over the bytes of their text in UTF-8."""
    # A block has one more token than it predicts.
    predicted = sum(row.tokens - row.instances for row in summary.split_files("validation"))
    return predicted / max(1, summary.text_bytes.validation)
