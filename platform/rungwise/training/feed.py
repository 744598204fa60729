"""From instances to tensors, one thread ahead of the training step.

A worker's rows of a step are sorted by length and cut into bins of equal size, give or take one
row; a bin is a micro-batch, as long as its longest row. A loss is a sum, so the order of rows
changes nothing, padding is hardly paid for, and the order of reading need not know of lengths.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rungwise.instances.masked import MaskedBatch
from rungwise.instances.masked_reader import MaskedReader
from rungwise.instances.order import ReadOrder
from rungwise.objectives import PretrainingBatch

_AHEAD = 2
_LENGTH_MULTIPLE = 8
_PREFETCH_STEPS = 64  # shards of this many steps and as many again are asked for at once


@dataclass(frozen=True)
class StepBatch:
    """What one worker reads at one step."""

    micro_batches: list[PretrainingBatch]
    tokens: int  # real ones
    instances: NDArray[np.int64]


def step_batch(
    reader: MaskedReader,
    order: ReadOrder,
    step: int,
    global_batch_size: int,
    rank: int,
    world_size: int,
    micro_batch_size: int,
    seed: int,
) -> StepBatch:
    """The rows of one worker at one step, as micro-batches."""
    if step % _PREFETCH_STEPS == 0:
        ahead = order.upcoming_shards(
            step, 2 * _PREFETCH_STEPS, global_batch_size, rank, world_size
        )
        reader.prefetch(ahead.tolist())
    located = order.locate(order.positions_of(step, global_batch_size, rank, world_size))
    batch = reader.batch(located.instances, located.epochs, seed)
    return StepBatch(
        list(micro_batches(batch, micro_batch_size)), int(batch.lengths.sum()), batch.instances
    )


def micro_batches(batch: MaskedBatch, size: int) -> Iterator[PretrainingBatch]:
    """`batch` in bins of at most `size` rows of about one length, equal but for one row."""
    by_length = np.argsort(batch.lengths, kind="stable")
    bins = -(-len(by_length) // size)
    for rows in np.array_split(by_length, bins) if bins else ():
        longest = int(batch.lengths[rows].max())
        width = min(-(-longest // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE, batch.segments.shape[1])
        padded = bool((batch.lengths[rows] < width).any())
        masked = batch.masked
        used = int(masked.weights[rows].sum(axis=1).max())
        yield PretrainingBatch(
            ids=_tensor(masked.ids[rows, :width]),
            segments=_tensor(batch.segments[rows, :width]),
            lengths=_tensor(batch.lengths[rows]) if padded else None,
            masked_positions=_tensor(masked.positions[rows, :used]),
            masked_ids=_tensor(masked.targets[rows, :used]),
            masked_weights=_tensor(masked.weights[rows, :used]),
            is_next=_tensor(batch.label[rows]),
        )


class Prefetched:
    """The step batches from `first` to `last`, made by a thread while the one before is used.

    Raises in `next` whatever the making raised.
    """

    def __init__(self, make: Callable[[int], StepBatch], first: int, last: int) -> None:
        self._ready: queue.Queue[StepBatch | BaseException] = queue.Queue(_AHEAD)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(make, first, last), name="feed", daemon=True
        )
        self._thread.start()

    def next(self) -> StepBatch:
        """The next step's batch; waits for it if the thread is behind."""
        item = self._ready.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """End the thread; batches made ahead are dropped."""
        self._stop.set()
        while not self._ready.empty():
            self._ready.get_nowait()

    def _run(self, make: Callable[[int], StepBatch], first: int, last: int) -> None:
        try:
            for step in range(first, last):
                if not self._put(make(step)):
                    return
        except BaseException as error:  # handed to the thread that waits in `next`
            self._put(error)

    def _put(self, item: StepBatch | BaseException) -> bool:
        while not self._stop.is_set():
            try:
                self._ready.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False


def _tensor(array: NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
