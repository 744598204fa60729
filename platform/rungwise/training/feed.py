"""Turns instances into tensors, one thread ahead of the training step.

A worker's rows of a step are sorted by length and cut into bins of equal size, give or take one
row; a bin is a micro-batch, as long as its longest row. A loss is a sum, so the order of rows
changes nothing, padding costs little, and the reading order can ignore lengths. All workers make
the same number of bins, because sharded ones synchronise in every forward pass.

Rounding, though, depends on which rows share a micro-batch. So a batch may be cut for logical
workers first (Li et al. 2023, "EasyScale", SC '23), of which each worker takes equally many: then
bins are the same on one worker, two or four.

A hash proves what was read: the sum of a hash of (instance, epoch) over the rows of a step (AdHash,
Bellare and Micciancio 1997). It does not depend on how the rows are distributed.

B batch, T sequence
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rungwise.core.randomness import bits
from rungwise.core.stages.artifact import Artifact
from rungwise.instances import causal
from rungwise.instances.causal import CausalConfig
from rungwise.instances.kinds import config_of
from rungwise.instances.lanes import held_out_lanes
from rungwise.instances.masked_batch import MaskedBatch
from rungwise.instances.order import Order, evenly
from rungwise.instances.reader import InstanceReader, MaskedReader
from rungwise.models.losses.objectives import Batch, CausalBatch, PretrainingBatch

_AHEAD = 2
_LENGTH_MULTIPLE = 8
_PREFETCH_STEPS = 64  # every so many steps, the shards of twice as many are requested
_DATA_HASH = 0xDA7A


@dataclass(frozen=True)
class StepBatch:
    """The rows that one worker reads at one step."""

    micro_batches: list[Batch]  # as many for each logical worker, one after the other
    tokens: int  # without padding
    instances: NDArray[np.int64]
    data_hash: int  # 64 bits; the sum over workers is the hash of the step


@dataclass(frozen=True)
class Source:
    """One split of instances that a model trains on.

    `read(instances, epochs, seed, bins)` returns the rows (B,) of these epochs (B,) in `bins`
    micro-batches, and their tokens without padding. Causal rows keep their order.
    """

    reader: InstanceReader
    read: Callable[[NDArray[np.int64], NDArray[np.int64], int, int], tuple[list[Batch], int]]


def open_source(
    artifact: Artifact, split: str, cache_bytes: int, fixed_shapes: bool = False
) -> Source:
    """Open one split of instances for training by gradient.

    `fixed_shapes`, for compiled models, pads every micro-batch to the full length, and always
    passes its lengths and document boundaries.
    """
    if isinstance(config_of(artifact), CausalConfig):
        reader = InstanceReader(artifact, split, cache_bytes)
        (end,) = reader.special.require("end")

        def read_blocks(
            instances: NDArray[np.int64], epochs: NDArray[np.int64], seed: int, bins: int
        ) -> tuple[list[Batch], int]:
            batch = causal.batch(reader.rows(instances), end)
            parts = causal_micro_batches(batch, bins, fixed_shapes)
            return list(parts), int(batch.weights.sum())

        return Source(reader, read_blocks)
    masked = MaskedReader(artifact, split, cache_bytes)

    def read_masked(
        instances: NDArray[np.int64], epochs: NDArray[np.int64], seed: int, bins: int
    ) -> tuple[list[Batch], int]:
        batch = masked.batch(instances, epochs, seed)
        return list(masked_micro_batches(batch, bins, fixed_shapes)), int(batch.lengths.sum())

    return Source(masked.reader, read_masked)


def step_batch(
    source: Source,
    order: Order,
    step: int,
    global_batch_size: int,
    rank: int,
    world_size: int,
    micro_batch_size: int,
    seed: int,
    logical_workers: int | None = None,
) -> StepBatch:
    """The rows of one worker at one step, as micro-batches; `logical_workers` are one for each
    worker unless given."""
    if step % _PREFETCH_STEPS == 0:
        ahead = order.upcoming_shards(
            step, 2 * _PREFETCH_STEPS, global_batch_size, rank, world_size
        )
        source.reader.store.prefetch(ahead.tolist())
    located = order.locate(order.positions_of(step, global_batch_size, rank, world_size))
    parts = logical_workers or world_size
    bins = bins_of(global_batch_size, parts, micro_batch_size)
    bounds = [part * global_batch_size // parts for part in logical_ranks(rank, world_size, parts)]
    cuts = np.array(bounds[1:], dtype=np.int64) - rank * global_batch_size // world_size
    batches: list[Batch] = []
    tokens = 0
    for instances, epochs in zip(
        np.split(located.instances, cuts), np.split(located.epochs, cuts), strict=True
    ):
        read, read_tokens = source.read(instances, epochs, seed, bins)
        batches += read
        tokens += read_tokens
    if located.continues is not None:
        batches = _in_lanes(batches, np.arange(len(located.instances)), located.continues)
    return StepBatch(
        batches, tokens, located.instances, data_hash(located.instances, located.epochs)
    )


def held_out_batches(
    source: Source, count: int, rank: int, world_size: int, micro_batch_size: int, seed: int
) -> list[Batch]:
    """This worker's part of `count` evenly spread held-out instances, masked as in epoch 0."""
    chosen = evenly(len(source.reader), count)
    mine = chosen[len(chosen) * rank // world_size : len(chosen) * (rank + 1) // world_size]
    if not len(mine):
        return []
    bins = bins_of(len(chosen), world_size, micro_batch_size)
    return source.read(mine, np.zeros_like(mine), seed, bins)[0]


def held_out_in_lanes(
    source: Source,
    count: int,
    lanes: int,
    rank: int,
    world_size: int,
    micro_batch_size: int,
    seed: int,
) -> list[Batch]:
    """As many instances as `held_out_batches`, but as contiguous text in `lanes` lanes; this
    worker's part, step after step."""
    batches: list[Batch] = []
    rows, count = source.reader.rows_per_shard, min(count, len(source.reader))
    for lane, instances, continues in held_out_lanes(rows, count, lanes, rank, world_size):
        bins = -(-len(lane) // micro_batch_size)
        read, _ = source.read(instances, np.zeros_like(instances), seed, bins)
        batches += _in_lanes(read, lane, continues)
    return batches


def _in_lanes(
    batches: list[Batch], lanes: NDArray[np.int64], continues: NDArray[np.bool_]
) -> list[Batch]:
    """Add to the micro-batches the lane of each row, and whether it continues the text."""
    stops = np.cumsum([len(batch.ids) for batch in batches])
    return [
        replace(batch, lanes=_tensor(lane), continues=_tensor(goes_on))
        for batch, lane, goes_on in zip(
            batches, np.split(lanes, stops[:-1]), np.split(continues, stops[:-1]), strict=True
        )
    ]


def logical_ranks(rank: int, world_size: int, logical_workers: int) -> range:
    """The logical workers whose rows a worker takes; `world_size` divides them."""
    each = logical_workers // world_size
    return range(rank * each, (rank + 1) * each)


def bins_of(rows: int, world_size: int, micro_batch_size: int) -> int:
    """The number of micro-batches into which every worker cuts its part of `rows` rows.

    Parts differ by a row, and the smaller one must fill all bins too; so a bin may hold one row
    more than `micro_batch_size`.
    """
    most, least = -(-rows // world_size), max(1, rows // world_size)
    return min(-(-most // micro_batch_size), least)


def data_hash(instances: NDArray[np.int64], epochs: NDArray[np.int64]) -> int:
    """A 64-bit hash of these rows, independent of their order."""
    return int(bits(_DATA_HASH, instances, epochs).sum(dtype=np.uint64))


def masked_micro_batches(
    batch: MaskedBatch, bins: int, fixed_shapes: bool = False
) -> Iterator[PretrainingBatch]:
    """Yield `batch` in bins of rows of similar length; their sizes differ by at most one row."""
    by_length = np.argsort(batch.lengths, kind="stable")
    for rows in np.array_split(by_length, bins):
        longest = int(batch.lengths[rows].max())
        masked = batch.masked
        width, used = batch.segments.shape[1], masked.weights.shape[1]
        if not fixed_shapes:
            width = min(-(-longest // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE, width)
            used = int(masked.weights[rows].sum(axis=1).max())
        document = positions = starts = None
        if batch.document is not None and batch.positions is not None:
            document, positions = batch.document[rows, :width], batch.positions[rows, :width]
            starts = _starts(document, batch.lengths[rows])
        padded = fixed_shapes or bool((batch.lengths[rows] < width).any())
        yield PretrainingBatch(
            ids=_tensor(masked.ids[rows, :width]),
            segments=_tensor(batch.segments[rows, :width]),
            lengths=_tensor(batch.lengths[rows]) if padded and document is None else None,
            masked_positions=_tensor(masked.positions[rows, :used]),
            masked_ids=_tensor(masked.targets[rows, :used]),
            masked_weights=_tensor(masked.weights[rows, :used]),
            label=_tensor(batch.label[rows]),
            document=None if document is None else _tensor(document),
            positions=None if positions is None else _tensor(positions),
            starts=None if starts is None else _tensor(starts),
        )


def causal_micro_batches(
    batch: causal.CausalBlocks, bins: int, fixed_shapes: bool = False
) -> Iterator[CausalBatch]:
    """Yield `batch` in bins of about equal size; boundaries are None where a bin has none."""
    column = np.arange(batch.ids.shape[1])
    for rows in np.array_split(np.arange(len(batch.ids)), bins):
        bounded = fixed_shapes or bool((batch.positions[rows] != column).any())
        starts = _starts(batch.document[rows], batch.weights[rows].sum(axis=1).astype(np.int64))
        yield CausalBatch(
            ids=_tensor(batch.ids[rows]),
            targets=_tensor(batch.targets[rows]),
            weights=_tensor(batch.weights[rows]),
            document=_tensor(batch.document[rows]) if bounded else None,
            positions=_tensor(batch.positions[rows]) if bounded else None,
            starts=_tensor(starts) if bounded else None,
        )


def _starts(document: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int32]:
    """Where documents (B, T) begin in the concatenated rows, and their end: the `Documents` of
    attention.py. Padding, from `lengths` (B,) on, is a document of its own."""
    opens = np.diff(document, axis=1, prepend=-1) != 0
    padded = np.flatnonzero(lengths < document.shape[1])
    opens[padded, lengths[padded]] = True
    return np.append(np.flatnonzero(opens), document.size).astype(np.int32)


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


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
