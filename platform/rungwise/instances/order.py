"""The order in which training reads: a pure function of (seed, epoch, count), never stored.

Position p of a run is place p mod count of epoch p div count, and each epoch is a permutation of
the instances. The permutation is a four-round Feistel network over the smallest even number of bits
that holds the count, walked until it lands below the count (Black and Rogaway, "Ciphers with
arbitrary finite domains", CT-RSA 2002): any place is found in O(1) time and memory, for 10^10
instances as for ten. So the data position of a run is one integer, whatever the number of workers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rungwise.instances.randomness import bits

_ROUNDS = 4


def indices(positions: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """The instance at each position of a run, and with `epochs` the pass it belongs to."""
    epoch, place = np.divmod(positions.astype(np.int64), count)
    return permute(place, epoch, count, seed)


def epochs(positions: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Which pass over the instances each position belongs to, from 0."""
    return positions.astype(np.int64) // count


def permute(
    places: NDArray[np.int64], epoch: NDArray[np.int64], count: int, seed: int
) -> NDArray[np.int64]:
    """The instance at each place of its epoch: for every epoch a bijection of 0..count-1."""
    half = max(1, (max(count - 1, 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    shift = np.uint64(half)
    value = places.astype(np.uint64)
    keys = [bits(seed, epoch, turn) for turn in range(_ROUNDS)]
    outside = np.ones(value.shape, dtype=bool)
    # Cycle-walking: the network permutes 2^(2 half) < 4 count values, so a walk is four steps long
    # on average at worst, and a value below the count always comes back below it.
    while outside.any():
        left, right = value[outside] >> shift, value[outside] & mask
        for key in keys:
            left, right = right, left ^ (bits(key[outside], right) & mask)
        value[outside] = (left << shift) | right
        outside = value >= np.uint64(count)
    return value.astype(np.int64)
