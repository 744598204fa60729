"""The tokenised text of one shard, and the operations that builders share.

A builder works in two passes: a plan that walks over sentences, one bisection for each instance,
without touching tokens, then one gather that moves all tokens at once.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rungwise.instances.shards import Shard


@dataclass(frozen=True)
class Built:
    """A shard and counts from building it, which add up over shards."""

    shard: Shard
    counts: dict[str, int]


def gather_until(starts: list[int], sentence: int, end: int, wanted: int) -> int:
    """The end of the fewest sentences from `sentence` on that hold `wanted` tokens, or `end`."""
    return min(bisect_left(starts, starts[sentence] + wanted, sentence + 1, end + 1), end)


def ranges(begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ranges joined without a loop: `lengths[0]` numbers from `begins[0]`, then the next range."""
    total = int(lengths.sum())
    steps = np.ones(total, dtype=np.int64)
    filled = lengths > 0
    begins, lengths = begins[filled], lengths[filled]
    if total:
        heads = np.cumsum(lengths)[:-1]
        steps[0] = begins[0]
        steps[heads] = begins[1:] - (begins[:-1] + lengths[:-1] - 1)
    return np.cumsum(steps)


class Draws:
    """The random numbers of one shard, drawn in blocks as one at a time costs microseconds."""

    _BLOCK = 1 << 14

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._block: list[float] = []

    def uniform(self) -> float:
        if not self._block:
            self._block = self._rng.random(self._BLOCK).tolist()
        return self._block.pop()

    def integer(self, low: int, high: int) -> int:
        """Uniform over low..high, both included."""
        return low + int(self.uniform() * (high - low + 1))

    def binomial(self, trials: int) -> int:
        """The number of heads among `trials` fair coins."""
        return int(self._rng.binomial(trials, 0.5)) if trials else 0
