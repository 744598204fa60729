"""Turns instances into tensors, one thread ahead of the training step.

A worker's rows of a step are cut into bins of equal size, give or take one row, by length where
their kind says so; a bin is a micro-batch, as long as its longest row. A loss is a sum, so the
order of rows changes nothing, padding costs little, and the reading order can ignore lengths. All
workers make the same number of bins, because sharded ones synchronise in every forward pass.

Rounding, though, depends on which rows share a micro-batch. So a batch may be cut for logical
workers first (Li et al. 2023, "EasyScale", SC '23), of which each worker takes equally many: then
bins are the same on one worker, two or four.

A hash proves what was read: the sum of a hash of (instance, epoch) over the rows of a step (AdHash,
Bellare and Micciancio 1997). It does not depend on how the rows are distributed.

B batch
"""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rungwise.core.randomness import bits
from rungwise.instances.batch import Batch, in_streams
from rungwise.instances.order import Order, ShardShare, evenly, held_out_streams
from rungwise.instances.reader import InstanceReader

_AHEAD = 2
_PREFETCH_STEPS = 64  # every so many steps, the shards of twice as many are requested
_DATA_HASH = 0xDA7A


@dataclass(frozen=True)
class StepBatch:
    """The rows that one worker reads at one step."""

    micro_batches: list[Batch[Tensor]]  # as many for each logical worker, one after the other
    tokens: int  # without padding
    instances: NDArray[np.int64]
    data_hash: int  # 64 bits; the sum over workers is the hash of the step


@dataclass(frozen=True)
class Source:
    """One split of instances that a model trains on. `fixed_shapes`: see `Batch.micro_batches`."""

    reader: InstanceReader
    fixed_shapes: bool = False

    def read(
        self, instances: NDArray[np.int64], epochs: NDArray[np.int64], seed: int, bins: int
    ) -> tuple[list[Any], int]:
        """The rows (B,) of these epochs (B,) in `bins` micro-batches of NumPy arrays, and their
        tokens without padding."""
        batch = self.reader.batch(instances, epochs, seed)
        return list(batch.micro_batches(bins, self.fixed_shapes)), batch.tokens


def step_batch(
    source: Source,
    order: Order,
    step: int,
    share: ShardShare,
    micro_batch_size: int,
    seed: int,
    logical_workers: int | None = None,
) -> StepBatch:
    """The rows of one worker at one step, as micro-batches; `logical_workers` are one for each
    worker unless given."""
    if step % _PREFETCH_STEPS == 0:
        ahead = order.upcoming_shards(step, 2 * _PREFETCH_STEPS, share)
        source.reader.store.prefetch(ahead.tolist())
    located = order.locate(order.positions(step, share))
    workers = logical_workers or share.world_size
    bins = count_bins(share.batch_size, workers, micro_batch_size)
    mine = logical_ranks(share.rank, share.world_size, workers)
    cuts = [replace(share, rank=rank, world_size=workers).rows.start for rank in mine[1:]]
    cuts = np.array(cuts, dtype=np.int64) - share.rows.start
    parts: list[Any] = []  # of NumPy arrays
    tokens = 0
    for instances, epochs in zip(
        np.split(located.instances, cuts), np.split(located.epochs, cuts), strict=True
    ):
        parts_of_one, tokens_of_one = source.read(instances, epochs, seed, bins)
        parts += parts_of_one
        tokens += tokens_of_one
    if located.continues is not None:
        parts = in_streams(parts, np.arange(len(located.instances)), located.continues)
    return StepBatch(
        [part.tensors() for part in parts],
        tokens,
        located.instances,
        data_hash(located.instances, located.epochs),
    )


def held_out_batches(
    source: Source, count: int, share: ShardShare, micro_batch_size: int, seed: int
) -> list[Batch[Tensor]]:
    """This worker's part of `count` evenly spread held-out instances, masked as in epoch 0."""
    sample = evenly(len(source.reader), count)
    part = share.part(len(sample))
    mine = sample[part.start : part.stop]
    if not len(mine):
        return []
    bins = count_bins(len(sample), share.world_size, micro_batch_size)
    parts, _ = source.read(mine, np.zeros_like(mine), seed, bins)
    return [part.tensors() for part in parts]


def held_out_in_streams(
    source: Source, count: int, share: ShardShare, micro_batch_size: int, seed: int
) -> list[Batch[Tensor]]:
    """As many instances as `held_out_batches`, but as contiguous text in as many streams as a batch
    has rows; this worker's part, step after step."""
    batches: list[Batch[Tensor]] = []
    rows, count = source.reader.rows_per_shard, min(count, len(source.reader))
    for stream, instances, continues in held_out_streams(rows, count, share):
        bins = -(-len(stream) // micro_batch_size)
        parts, _ = source.read(instances, np.zeros_like(instances), seed, bins)
        parts = in_streams(parts, stream, continues)
        batches += [part.tensors() for part in parts]
    return batches


def logical_ranks(rank: int, world_size: int, logical_workers: int) -> range:
    """The logical workers whose rows a worker takes; `world_size` divides them."""
    each = logical_workers // world_size
    return range(rank * each, (rank + 1) * each)


def count_bins(rows: int, world_size: int, micro_batch_size: int) -> int:
    """The number of micro-batches into which every worker cuts its part of `rows` rows.

    Parts differ by a row, and the smaller one must fill all bins too; so a bin may hold one row
    more than `micro_batch_size`.
    """
    most, least = -(-rows // world_size), max(1, rows // world_size)
    return min(-(-most // micro_batch_size), least)


def data_hash(instances: NDArray[np.int64], epochs: NDArray[np.int64]) -> int:
    """A 64-bit hash of these rows, independent of their order."""
    return int(bits(_DATA_HASH, instances, epochs).sum(dtype=np.uint64))


class Prefetched:
    """The batches of the steps [first, last), made by a thread ahead of their use. `next` raises
    whatever making a batch raised."""

    def __init__(
        self, make: Callable[[int], StepBatch], first: int, last: int, pinned: bool = False
    ) -> None:
        """`pinned`: in page-locked memory, so copies to a GPU need not wait for the step before."""
        self._pinned = pinned
        self._ready: queue.Queue[StepBatch | BaseException] = queue.Queue(_AHEAD)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(make, first, last), name="feed", daemon=True
        )
        self._thread.start()

    def next(self) -> StepBatch:
        """The next step's batch; waits until it is made."""
        item = self._ready.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """End the thread and drop batches made ahead."""
        self._stop.set()
        while not self._ready.empty():
            self._ready.get_nowait()

    def _run(self, make: Callable[[int], StepBatch], first: int, last: int) -> None:
        try:
            for step in range(first, last):
                batch = make(step)
                if self._pinned:
                    parts = [part.pin_memory() for part in batch.micro_batches]
                    batch = replace(batch, micro_batches=parts)
                if not self._put(batch):
                    return
        except BaseException as error:  # raised again by `next`
            self._put(error)

    def _put(self, item: StepBatch | BaseException) -> bool:
        while not self._stop.is_set():
            try:
                self._ready.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False
