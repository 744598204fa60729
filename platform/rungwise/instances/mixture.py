"""Mixtures: the reading order when sources have shares of their own, in closed form.

Each source is read in its own order, pass after pass. A Huffman tree over the quotas decides which
comes next: of the first p draws of a node, round(p * share) go left. At every position each source
is within 1.7 draws of its share (half a draw if there are two), since the errors sum to less than
half the sum of the reciprocal Fibonacci numbers; at the end of an epoch the draws equal the quotas.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from rungwise.core.errors import UserError
from rungwise.core.randomness import bits
from rungwise.instances.order import LocatedRow, Order, OrderConfig, ReadOrder, ShardShare

_SOURCE = 0x50CE  # separates the seeds of the sources from other random numbers
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio
_SHARE_BITS = 62
_HALF = 31
_LOW = (1 << _HALF) - 1


@dataclass(frozen=True)
class _Node:
    """Two parts of a mixture, each a node or a source number, and the left one's share."""

    left: "_Node | int"
    right: "_Node | int"
    share: int  # of 2^62, rounded up so that whole epochs are exact


class MixedOrder(Order):
    """The order of one run over a mixture: a function of seed, rows per shard, and quotas."""

    def __init__(
        self,
        rows_per_shard: NDArray[np.int64],
        sources: Sequence[str],
        quotas: Mapping[str, int],
        seed: int,
        config: OrderConfig,
    ) -> None:
        """`rows_per_shard` and `sources` are in manifest order, `quotas` from `compute_quotas`. A
        source without a quota is not read."""
        rows, names = np.asarray(rows_per_shard, dtype=np.int64), sorted(quotas)
        self._begins = np.cumsum(rows) - rows
        self._shards = [np.flatnonzero(np.array(sources) == name) for name in names]
        self._orders = [
            ReadOrder(rows[shards], int(bits(seed, _SOURCE, number)), config)
            for number, shards in enumerate(self._shards)
        ]
        self._tree = _tree([quotas[name] for name in names])
        self._lanes = config.lanes

    def locate(self, positions: NDArray[np.int64]) -> LocatedRow:
        """The instances at these positions of the run; epochs are those of their source."""
        source, draw = self._draws(positions)
        shards, rows, epochs = np.empty_like(draw), np.empty_like(draw), np.empty_like(draw)
        for number, order in enumerate(self._orders):
            here = source == number
            located = order.locate(draw[here])
            shards[here] = self._shards[number][located.shards]
            rows[here], epochs[here] = located.rows, located.epochs
        return LocatedRow(self._begins[shards] + rows, shards, rows, epochs)

    def positions(self, step: int, share: ShardShare) -> NDArray[np.int64]:
        """Lane by lane, in order within a lane."""
        size, mine = share.batch_size, share.rows
        positions = np.arange(step * size, (step + 1) * size, dtype=np.int64)
        if self._lanes > 1:
            source, draw = self._draws(positions)
            lane = np.empty_like(draw)
            for number, order in enumerate(self._orders):
                here = source == number
                lane[here] = order.assign_lanes(draw[here])
            # A step begins anywhere in the cycle of a source's lanes. Multiples of the golden ratio
            # spread consecutive lanes evenly, so a rank keeps its lanes except for a few.
            positions = positions[np.argsort(lane.astype(np.uint64) * _GOLDEN, kind="stable")]
        return positions[mine.start : mine.stop]

    def _draws(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The source of each position, and the number of that draw within the source."""
        draw = np.array(positions, dtype=np.int64)
        source = np.empty_like(draw)
        pending: list[tuple[_Node | int, NDArray[np.int64]]] = [
            (self._tree, np.arange(draw.size).reshape(draw.shape))
        ]
        while pending:
            node, here = pending.pop()
            if isinstance(node, int):
                source.flat[here] = node
                continue
            nth = draw.flat[here]
            left = _round_product(nth, node.share)
            goes_left = _round_product(nth + 1, node.share) > left
            draw.flat[here] = np.where(goes_left, left, nth - left)
            pending += [(node.left, here[goes_left]), (node.right, here[~goes_left])]
        return source, draw


def compute_quotas(order: OrderConfig, instances: Mapping[str, int]) -> dict[str, int]:
    """The instances of each source that one epoch reads; empty if the recipe has no mixture.
    `instances` counts the training instances of each source. Weights divide as many positions as
    there are instances; epochs multiply each source. Fractions are rounded by largest remainder, so
    a quota is the exact number rounded up or down. Raises UserError for an unknown source, a source
    without a weight, a share that rounds to 0, or a mixture that leaves out every source."""
    shares = order.weights or order.epochs
    if not shares:
        return {}
    key = f"pretrain.order.{'weights' if order.weights else 'epochs'}"
    counts = {name: count for name, count in sorted(instances.items()) if count}
    if unknown := sorted(shares.keys() - counts.keys()):
        raise UserError(
            f"{key} names {', '.join(unknown)}, but the training instances are of "
            f"{', '.join(counts)}; use these names, which are those of corpus.sources"
        )
    if not any(shares.get(name, 0.0 if order.weights else 1.0) for name in counts):
        raise UserError(f"{key} leaves out every source; give one more than 0")
    if order.weights:
        if missing := sorted(counts.keys() - shares.keys()):
            raise UserError(
                f"{key} has no {', '.join(missing)}; give each source a weight, 0 to leave it out"
            )
        weights = {name: Fraction(str(shares[name])) for name in counts}
        scale = sum(counts.values()) / sum(weights.values())
        exact = {name: weight * scale for name, weight in weights.items()}
    else:
        exact = {name: Fraction(str(shares.get(name, 1.0))) * n for name, n in counts.items()}
    quotas = {name: int(number) for name, number in exact.items()}
    left_over = round(sum(exact.values())) - sum(quotas.values())
    for name in sorted(exact, key=lambda name: quotas[name] - exact[name])[:left_over]:
        quotas[name] += 1
    for name, number in exact.items():
        if number and not quotas[name]:
            raise UserError(
                f"{key}.{name} is {shares[name]}, less than one instance an epoch; raise it, or "
                "set it to 0"
            )
    return {name: quota for name, quota in quotas.items() if quota}


def _tree(quotas: Sequence[int]) -> _Node | int:
    heap: list[tuple[int, int, _Node | int]] = [
        (quota, number, number) for number, quota in enumerate(quotas)
    ]
    heapq.heapify(heap)
    while len(heap) > 1:
        (small, _, right), (large, tie, left) = heapq.heappop(heap), heapq.heappop(heap)
        total = small + large
        share = -((-large << _SHARE_BITS) // total)
        heapq.heappush(heap, (total, len(quotas) + tie, _Node(left, right, share)))
    return heap[0][2]


def _round_product(draws: NDArray[np.int64], share: int) -> NDArray[np.int64]:
    """`draws * share / 2^62` to nearest, exact although the product has 124 bits; draws < 2^61."""
    high, low = draws >> _HALF, draws & _LOW
    share_high, share_low = share >> _HALF, share & _LOW
    middle = high * share_low + low * share_high + (low * share_low >> _HALF)
    return high * share_high + ((middle + (1 << (_HALF - 1))) >> _HALF)
