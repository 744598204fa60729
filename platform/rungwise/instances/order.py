"""The order in which training reads: computed, never stored, local to a few shards at a time.

Position p of a run is place p % N of epoch p // N, and step s takes positions [s B, (s + 1) B) for
any number of workers, so the data position of a run is one integer.

N instances, B global batch size
"""

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np
from pydantic import Field

from rungwise.core.arrays import Bits, Bools, Ints
from rungwise.core.configuration.config import Config
from rungwise.core.randomness import bits

_ROUNDS = 4
# These separate the random numbers of shards and windows from each other and from masking's.
_SHARDS = 0x5A4D
_WINDOW = 0x77D0


class OrderConfig(Config):
    """How well instances are shuffled; each is read once per epoch. The defaults suit local files;
    lanes are for object stores."""

    window_instances: int = Field(default=1 << 20, ge=1, le=1 << 40)  # instances shuffled together
    # parts read side by side, so a worker needs few shards; must divide the global batch size
    lanes: int = Field(default=1, ge=1, le=1 << 20)


@dataclass(frozen=True)
class LocatedRow:
    """The locations of the instances at some positions, one entry per position."""

    instances: Ints  # first index of the shard in manifest order, plus the row
    shards: Ints  # number of the shard in the manifest
    rows: Ints  # in the shard
    epochs: Ints  # passes over the instances before this one
    # For streams: whether the row continues the text of the row before in its stream.
    continues: Bools | None = None


@dataclass(frozen=True)
class ShardShare:
    """A worker's share of every global batch."""

    batch_size: int
    rank: int
    world_size: int

    def part(self, rows: int) -> range:
        """This worker's of so many rows, which the workers share evenly."""
        return range(self.rank * rows // self.world_size, (self.rank + 1) * rows // self.world_size)

    @property
    def rows(self) -> range:
        """This worker's rows of a batch."""
        return self.part(self.batch_size)


class Order(ABC):
    """Maps the positions of a run to instances."""

    def __init__(self, rows_per_shard: Ints, seed: int) -> None:
        """`rows_per_shard` is in manifest order; zeros are allowed."""
        self._rows = np.asarray(rows_per_shard, dtype=np.int64)
        self._begins = np.cumsum(self._rows) - self._rows
        self._seed = seed
        self._line = functools.lru_cache(maxsize=2)(self._lay_out)  # two epochs are in use at most

    def _locate_points(self, point: Ints, epochs: Ints) -> LocatedRow:
        """The instances at these points of the lines of these epochs."""
        shards, rows = np.empty_like(point), np.empty_like(point)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            line, begins = self._line(int(epoch))
            place = np.searchsorted(begins, point[here], side="right") - 1
            shards[here], rows[here] = line[place], point[here] - begins[place]
        return LocatedRow(self._begins[shards] + rows, shards, rows, epochs)

    def _lay_out(self, epoch: int) -> tuple[Ints, Ints]:
        """The line of an epoch, its shards end to end, without empty ones: their numbers in the
        manifest, and the place of each one's first row."""
        shards = self._order_shards(epoch)
        shards = shards[self._rows[shards] > 0]
        rows = self._rows[shards]
        return shards, np.cumsum(rows) - rows

    def _order_shards(self, epoch: int) -> Ints:
        key = bits(self._seed, epoch, _SHARDS, np.arange(len(self._rows)))
        return np.argsort(key, kind="stable")

    @abstractmethod
    def locate(self, positions: Ints) -> LocatedRow:
        """The instances at these positions of the run, in the shape of `positions`."""

    @abstractmethod
    def positions(self, step: int, share: ShardShare) -> Ints:
        """The positions that a worker reads at one step, in its order."""

    def upcoming_shards(self, step: int, steps_ahead: int, share: ShardShare) -> Ints:
        """The shards that a worker reads in `steps_ahead` steps from `step`, by first use."""
        positions = [self.positions(number, share) for number in range(step, step + steps_ahead)]
        shards = self.locate(np.concatenate([np.empty(0, dtype=np.int64), *positions])).shards
        _, first = np.unique(shards, return_index=True)
        return shards[np.sort(first)]


class ReadOrder(Order):
    """The order of one run: a function of seed, rows per shard, and config. The line of an epoch is
    its shards, permuted, cut into `lanes` equal lanes: place q is place q // lanes of lane
    q % lanes. Each window of a lane is permuted. So a batch draws from all lanes, but a worker that
    reads a few lanes needs only the few shards of their windows."""

    def __init__(self, rows_per_shard: Ints, seed: int, config: OrderConfig | None = None) -> None:
        super().__init__(rows_per_shard, seed)
        config = config or OrderConfig()
        self.count = int(self._rows.sum())
        # A lane beyond the count would be empty; dropping it changes no place.
        self._lanes = max(1, min(config.lanes, self.count))
        self._window = config.window_instances
        self._whole = self._lanes == 1 and self.count <= self._window

    def locate(self, positions: Ints) -> LocatedRow:
        assert self.count, "no instances to read"
        epochs, place = np.divmod(np.asarray(positions, dtype=np.int64), self.count)
        return self._locate_points(self._points(place, epochs), epochs)

    def positions(self, step: int, share: ShardShare) -> Ints:
        """Sorted by lane, then by position; a worker has as many whole lanes as possible."""
        assert self.count, "no instances to read"
        positions = np.arange(step * share.batch_size, (step + 1) * share.batch_size)
        by_lane = np.argsort(positions % self.count % self._lanes, kind="stable")
        return positions[by_lane[share.rows.start : share.rows.stop]]

    def _points(self, place: Ints, epoch: Ints) -> Ints:
        if self._whole:
            return permute(place, epoch, self.count, self._seed)
        in_lane, lane = np.divmod(place, self._lanes)
        window = in_lane // self._window
        begin = window * self._window
        lane_size, longer = divmod(self.count, self._lanes)  # the first lanes have a place more
        size = np.minimum(lane_size + (lane < longer) - begin, self._window)
        lane_begin = lane * lane_size + np.minimum(lane, longer)
        key = bits(self._seed, epoch, _WINDOW, lane, window)
        return lane_begin + begin + permute(in_lane - begin, key, size, self._seed)

    def _order_shards(self, epoch: int) -> Ints:
        if self._whole:  # shards keep their places
            return np.arange(len(self._rows))
        return super()._order_shards(epoch)


def evenly(total: int, count: int) -> Ints:
    """`count` of `total` rows, evenly spread; all of them if there are no more."""
    count = min(count, total)
    return np.arange(count, dtype=np.int64) * total // max(1, count)


def permute(places: Ints, key: Ints | Bits, count: Ints | int, seed: int) -> Ints:
    """A permutation of 0..count-1 for every key; `key` and `count` belong to each place. The key is
    the epoch if one window holds the whole epoch. A Feistel network of four rounds (Black and
    Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002)."""
    counts = np.broadcast_to(np.asarray(count, dtype=np.int64), places.shape)
    # The exponent of a float is the bit length, exact for counts below 2^53.
    length = np.frexp(np.maximum(counts - 1, 1).astype(np.float64))[1]
    half = np.maximum(1, (length + 1) // 2).astype(np.uint64)
    mask = (np.uint64(1) << half) - np.uint64(1)
    limit = counts.astype(np.uint64)
    value = places.astype(np.uint64)
    keys = [np.broadcast_to(bits(seed, key, turn), places.shape) for turn in range(_ROUNDS)]
    outside = np.ones(value.shape, dtype=bool)
    # Cycle-walking: the network permutes 2^(2 half) <= 4 count values, so a walk has at most four
    # steps on average, and a value below the count always returns below it.
    while outside.any():
        shift, low = half[outside], mask[outside]
        left, right = value[outside] >> shift, value[outside] & low
        for turn in keys:
            left, right = right, left ^ (bits(turn[outside], right) & low)
        value[outside] = (left << shift) | right
        outside = value >= limit
    return value.astype(np.int64)


class StreamOrder(Order):
    """Contiguous text for models that carry a state (truncated backpropagation through time,
    Williams and Peng 1990). The line of an epoch is cut into B equal streams of S = N // B blocks,
    and step s reads block s % S of each in epoch s // S. The last N % B blocks are left out of that
    epoch. A stream restarts at each epoch and where the line moves to another shard."""

    def __init__(self, rows_per_shard: Ints, seed: int, streams: int) -> None:
        super().__init__(rows_per_shard, seed)
        self.streams = streams
        self.steps_per_epoch = int(self._rows.sum()) // streams
        assert self.steps_per_epoch, "fewer instances than streams"

    def locate(self, positions: Ints) -> LocatedRow:
        """The instances at these positions of the run; p is stream p % B of step p // B."""
        step, stream = np.divmod(np.asarray(positions, dtype=np.int64), self.streams)
        epochs, block = np.divmod(step, self.steps_per_epoch)
        located = self._locate_points(stream * self.steps_per_epoch + block, epochs)
        return replace(located, continues=(block > 0) & (located.rows > 0))

    def positions(self, step: int, share: ShardShare) -> Ints:
        """Those of the worker's streams, in order."""
        assert share.batch_size == self.streams, "a row of a batch is a stream"
        return step * self.streams + np.array(share.rows, dtype=np.int64)


def held_out_streams(
    rows_per_shard: Ints, count: int, share: ShardShare
) -> list[tuple[Ints, Ints, Bools]]:
    """`count` instances of a split as a worker reads them once, in as many streams as a batch has
    rows, which begin evenly over the split. Streams differ by at most one block; if they outnumber
    the instances, some are empty. Each step is the numbers of its streams (from 0, the worker's
    first), their instances, and which of them continue the text."""
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
