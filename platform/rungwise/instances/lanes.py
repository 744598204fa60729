"""Lanes of contiguous text: the reading order of models that carry a state.

Truncated backpropagation through time (Williams and Peng 1990) passes the state at the end of a
block to the next block of the text. So each row of a batch is a lane instead of a random draw:

    line    the shards in a permutation of the epoch, their blocks laid end to end
    lane    the line cut into B equal parts of S = N // B blocks
    step    s reads block s % S of every lane, in epoch s // S

The last N % B blocks of the line are left out of that epoch. A lane restarts at each epoch and
where the line moves to another shard. The lanes of a rank are adjacent and the same at every step,
so no state moves between workers.

N instances, B global batch size and number of lanes, S steps of an epoch
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rungwise.instances.order import Line, Located, shards_read, shuffled_line


class LaneOrder:
    """The lanes of one run: a function of seed, rows per shard and number of lanes."""

    def __init__(self, rows_per_shard: NDArray[np.int64], seed: int, lanes: int) -> None:
        """`rows_per_shard` is in manifest order; zeros are allowed."""
        self._rows = np.asarray(rows_per_shard, dtype=np.int64)
        self._begins = np.cumsum(self._rows) - self._rows
        self._seed = seed
        self.lanes = lanes
        self.steps_per_epoch = int(self._rows.sum()) // lanes
        assert self.steps_per_epoch, "fewer instances than lanes"
        self._line: tuple[int, Line] | None = None

    def locate(self, positions: NDArray[np.int64]) -> Located:
        """The instances at these positions of the run; position p is lane p % B of step p // B."""
        step, lane = np.divmod(np.asarray(positions, dtype=np.int64), self.lanes)
        epochs, block = np.divmod(step, self.steps_per_epoch)
        shards, rows = np.empty_like(block), np.empty_like(block)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            point = lane[here] * self.steps_per_epoch + block[here]
            shards[here], rows[here] = self._line_of(int(epoch)).locate(point)
        continues = (block > 0) & (rows > 0)
        return Located(self._begins[shards] + rows, shards, rows, epochs, continues)

    def positions_of(
        self, step: int, global_batch_size: int, rank: int, world_size: int
    ) -> NDArray[np.int64]:
        """The positions that one rank reads at one step: those of its lanes, in order."""
        assert global_batch_size == self.lanes, "a row of a batch is a lane"
        mine = lanes_of(self.lanes, rank, world_size)
        return step * self.lanes + np.arange(mine.start, mine.stop, dtype=np.int64)

    def upcoming_shards(
        self, step: int, steps_ahead: int, global_batch_size: int, rank: int, world_size: int
    ) -> NDArray[np.int64]:
        return shards_read(self, step, steps_ahead, global_batch_size, rank, world_size)

    def rows_read(self, position: int, groups: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many of the first `position` positions, whole steps, fall into each group of shards.
        `groups` gives the group of each shard."""
        counts = np.zeros(int(groups.max()) + 1, dtype=np.int64)
        epochs, block = divmod(position // self.lanes, self.steps_per_epoch)
        for epoch in range(epochs + (block > 0)):
            blocks = self.steps_per_epoch if epoch < epochs else block
            for lane in range(self.lanes):
                begin = lane * self.steps_per_epoch
                shards, rows = self._line_of(epoch).between(begin, begin + blocks)
                np.add.at(counts, groups[shards], rows)
        return counts

    def _line_of(self, epoch: int) -> Line:
        if self._line is None or self._line[0] != epoch:
            self._line = epoch, shuffled_line(self._rows, self._seed, epoch)
        return self._line[1]


def lanes_of(lanes: int, rank: int, world_size: int) -> range:
    return range(lanes * rank // world_size, lanes * (rank + 1) // world_size)


def held_out_lanes(
    rows_per_shard: NDArray[np.int64], count: int, lanes: int, rank: int, world_size: int
) -> list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]]:
    """`count` instances of a split as a rank reads them once; lanes begin evenly over the split.

    Lanes differ by at most one block; if they outnumber the instances, some are empty. Each step is
    the numbers of its lanes (from 0, the first of the rank), their instances, and which of them
    continue the text.
    """
    number = np.arange(lanes + 1, dtype=np.int64)
    bounds = count * number // lanes
    skipped = (int(rows_per_shard.sum()) - count) * number[:-1] // lanes
    mine = lanes_of(lanes, rank, world_size)
    begin = (bounds[:-1] + skipped)[mine.start : mine.stop]
    end = (bounds[1:] + skipped)[mine.start : mine.stop]
    opens = np.cumsum(rows_per_shard) - rows_per_shard
    steps = []
    for step in range(int((end - begin).max(initial=0))):
        (lane,) = np.nonzero(begin + step < end)
        instances = begin[lane] + step
        steps.append((lane, instances, ~np.isin(instances, opens) & (step > 0)))
    return steps
