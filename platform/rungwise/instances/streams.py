"""Streams of contiguous text: the reading order of models that carry a state.

Truncated backpropagation through time (Williams and Peng 1990) passes the state at the end of a
block to the next block of the text. So each row of a batch is a stream instead of a random draw:

    line    the shards in a permutation of the epoch, their blocks laid end to end
    stream  the line cut into B equal parts of S = N // B blocks
    step    s reads block s % S of every stream, in epoch s // S

The last N % B blocks of the line are left out of that epoch. A stream restarts at each epoch and
where the line moves to another shard. The streams of a rank are adjacent and the same at every
step, so no state moves between workers.

N instances, B global batch size and number of streams, S steps of an epoch
"""

import numpy as np
from numpy.typing import NDArray

from rungwise.instances.order import Line, LocatedRow, Order, ShardShare, shuffle_shards


class StreamOrder(Order):
    """The streams of one run: a function of seed, rows per shard and number of streams."""

    def __init__(self, rows_per_shard: NDArray[np.int64], seed: int, streams: int) -> None:
        """`rows_per_shard` is in manifest order; zeros are allowed."""
        self._rows = np.asarray(rows_per_shard, dtype=np.int64)
        self._begins = np.cumsum(self._rows) - self._rows
        self._seed = seed
        self.streams = streams
        self.steps_per_epoch = int(self._rows.sum()) // streams
        assert self.steps_per_epoch, "fewer instances than streams"
        self._line: tuple[int, Line] | None = None

    def locate(self, positions: NDArray[np.int64]) -> LocatedRow:
        """The instances at these positions of the run; p is stream p % B of step p // B."""
        step, stream = np.divmod(np.asarray(positions, dtype=np.int64), self.streams)
        epochs, block = np.divmod(step, self.steps_per_epoch)
        shards, rows = np.empty_like(block), np.empty_like(block)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            point = stream[here] * self.steps_per_epoch + block[here]
            shards[here], rows[here] = self._line_in(int(epoch)).locate(point)
        continues = (block > 0) & (rows > 0)
        return LocatedRow(self._begins[shards] + rows, shards, rows, epochs, continues)

    def positions(self, step: int, share: ShardShare) -> NDArray[np.int64]:
        """Those of the worker's streams, in order."""
        assert share.batch_size == self.streams, "a row of a batch is a stream"
        return step * self.streams + np.array(share.rows, dtype=np.int64)

    def rows_read(self, position: int, groups: NDArray[np.int64]) -> NDArray[np.int64]:
        # These positions are whole steps.
        counts = np.zeros(int(groups.max()) + 1, dtype=np.int64)
        epochs, block = divmod(position // self.streams, self.steps_per_epoch)
        for epoch in range(epochs + (block > 0)):
            blocks = self.steps_per_epoch if epoch < epochs else block
            for stream in range(self.streams):
                begin = stream * self.steps_per_epoch
                shards, rows = self._line_in(epoch).between(begin, begin + blocks)
                np.add.at(counts, groups[shards], rows)
        return counts

    def _line_in(self, epoch: int) -> Line:
        if self._line is None or self._line[0] != epoch:
            self._line = epoch, shuffle_shards(self._rows, self._seed, epoch)
        return self._line[1]


def held_out_streams(
    rows_per_shard: NDArray[np.int64], count: int, share: ShardShare
) -> list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]]:
    """`count` instances of a split as a worker reads them once, in as many streams as a batch has
    rows, which begin evenly over the split.

    Streams differ by at most one block; if they outnumber the instances, some are empty. Each step
    is the numbers of its streams (from 0, the worker's first), their instances, and which of
    them continue the text.
    """
    streams, mine = share.batch_size, share.rows
    number = np.arange(streams + 1, dtype=np.int64)
    bounds = count * number // streams
    skipped = (int(rows_per_shard.sum()) - count) * number[:-1] // streams
    begin = (bounds[:-1] + skipped)[mine.start : mine.stop]
    end = (bounds[1:] + skipped)[mine.start : mine.stop]
    opens = np.cumsum(rows_per_shard) - rows_per_shard
    steps = []
    for step in range(int((end - begin).max(initial=0))):
        (stream,) = np.nonzero(begin + step < end)
        instances = begin[stream] + step
        steps.append((stream, instances, ~np.isin(instances, opens) & (step > 0)))
    return steps
