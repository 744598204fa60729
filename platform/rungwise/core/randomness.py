"""Counter-based random numbers: each is a hash of its coordinates, so workers keep no state.

The mixing function is the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014; variant 13
of Stafford's constants). The idea comes from Salmon et al., "Parallel random numbers: as easy as 1,
2, 3", SC 2011.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit integers; flipping an input bit flips about half the output bits."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def bits(*coordinates: ArrayLike) -> NDArray[np.uint64]:
    """64 random bits for each broadcast tuple of non-negative integer coordinates."""
    return extend(np.zeros((), dtype=np.uint64), *coordinates)


def extend(state: NDArray[np.uint64], *coordinates: ArrayLike) -> NDArray[np.uint64]:
    """Append coordinates to hashed ones: `extend(bits(a, b), c, d)` equals `bits(a, b, c, d)`."""
    with np.errstate(over="ignore"):
        for coordinate in coordinates:
            state = mix((state ^ np.asarray(coordinate).astype(np.uint64)) + _GOLDEN)
    return state


def uniform(*coordinates: ArrayLike) -> NDArray[np.float64]:
    """A number in [0, 1) for each broadcast tuple of coordinates, from the 53 highest bits."""
    return (bits(*coordinates) >> np.uint64(11)) * np.float64(2.0**-53)
