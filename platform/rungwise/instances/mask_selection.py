"""Select the tokens of a batch to mask, one by one or by unit.

The candidates of a row are ordered by random numbers with their positions in the low bits, so
sorting the numbers yields positions. masking.py defines units and spans.

B batch, T sequence, U units of a batch, K units considered per row, P tokens selected. "Flat"
positions count through a (B, T) array row by row.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rungwise.core.randomness import bits, extend

RANDOM_BITS = 53  # of the 64 bits that order candidates; the position uses the others
_NEVER = np.uint64(2**64 - 1)  # sorts after every candidate
_RANKS_AT_ONCE = 32  # span lengths drawn together


@dataclass(frozen=True)
class Draws:
    """The random streams of each row; `extend` with a position gives one number per stream."""

    select: NDArray[np.uint64]  # (B,) each
    corrupt: NDArray[np.uint64]
    replace: NDArray[np.uint64]
    round: NDArray[np.uint64]
    length: NDArray[np.uint64]

    @classmethod
    def of(cls, seed: int, epochs: NDArray[np.int64], instances: NDArray[np.int64]) -> "Draws":
        return cls(*bits(bits(seed, epochs, instances), np.arange(1, 6)[:, None]))


def fraction(draw: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The top bits of `draw`: a number in [0, 1) in units of 2^-RANDOM_BITS."""
    return draw >> np.uint64(64 - RANDOM_BITS)


def _order(allowed: NDArray[np.bool_], draws: Draws) -> tuple[NDArray[np.uint64], int]:
    """Numbers (B, T) that sort the allowed positions at random; the position is in the low bits."""
    length = allowed.shape[1]
    position = np.arange(length, dtype=np.uint64)
    position_bits = max(64 - RANDOM_BITS, (length - 1).bit_length())
    order = extend(draws.select[:, None], position)
    order &= np.uint64(2**64 - 2**position_bits)
    order |= position
    order[~allowed] = _NEVER
    return order, position_bits


def select_tokens(
    maskable: NDArray[np.bool_],  # (B, T)
    budget: NDArray[np.int64],  # (B,) tokens, at most `most`
    most: int,
    draws: Draws,
) -> NDArray[np.int64]:
    """Flat positions (P,), ascending, of `budget` random tokens of each row."""
    order, position_bits = _order(maskable, draws)
    size, length = order.shape
    most = min(most, length)
    lowest = np.sort(np.partition(order, most - 1, axis=1)[:, :most], axis=1)
    flat = (lowest & np.uint64(2**position_bits - 1)).astype(np.int64)
    flat += np.arange(size)[:, None] * length
    flat[np.arange(most) >= budget[:, None]] = order.size
    flat = np.sort(flat, axis=1)
    return flat[flat < order.size]


@dataclass(frozen=True)
class _Units:
    """The units of a batch in order; each special or padding token is a unit by itself."""

    first: NDArray[np.bool_]  # (B, T) a maskable unit begins here
    begin: NDArray[np.intp]  # (U,) flat, ascending
    sizes: NDArray[np.intp]  # (U,) tokens

    @classmethod
    def of(cls, maskable: NDArray[np.bool_], unit_starts: NDArray[np.bool_]) -> "_Units":
        starts = unit_starts | ~maskable
        starts[:, 0] = True  # a row may begin inside a word that was cut
        starts[:, 1:] |= ~maskable[:, :-1]
        begin = np.flatnonzero(starts)
        return cls(starts & maskable, begin, np.diff(begin, append=starts.size))


def select_units(
    maskable: NDArray[np.bool_],  # (B, T)
    unit_starts: NDArray[np.bool_],  # (B, T)
    budget: NDArray[np.int64],  # (B,) tokens, at most `most`
    most: int,
    draws: Draws,
    span_shares: NDArray[np.float64] | None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Select whole units, or with `span_shares` spans of them, up to `budget` tokens per row.

    `span_shares` are the shares of spans of at most 1, 2, ... units, the last of them 1.
    Returns flat positions (P,) of the tokens, ascending, and where each one's unit or span begins.
    """
    units = _Units.of(maskable, unit_starts)
    order, position_bits = _order(units.first, draws)
    available = units.first.sum(axis=1)
    all_ranks = int(available.max(initial=0))
    first_of = np.full(len(units.begin), -1, dtype=np.int32)
    # The first few ranks nearly always suffice; sorting and looking up all costs twice as much.
    for ranks in (min(2 * most, all_ranks), all_ranks):
        ranked = _in_random_order(units, order, position_bits, ranks)
        if span_shares is None:
            first_of, room = _take_units(units, ranked, budget)
        else:
            first_of, room = _take_spans(units, ranked, budget, draws, span_shares)
        if not ((room > 0) & (available > ranks)).any():
            break
    return _selected_tokens(units, first_of)


def _in_random_order(
    units: _Units, order: NDArray[np.uint64], position_bits: int, ranks: int
) -> NDArray[np.int32]:
    """The first K maskable units of each row (B, K) in random order, -1 after the last."""
    size, length = order.shape
    if ranks < length:
        order = np.partition(order, ranks, axis=1)[:, :ranks]
    order = np.sort(order, axis=1)
    unit_at = np.empty(size * length, dtype=np.int32)
    unit_at[units.begin] = np.arange(len(units.begin), dtype=np.int32)
    flat = (order & np.uint64(2**position_bits - 1)).astype(np.int32)
    flat += np.arange(size, dtype=np.int32)[:, None] * length
    return np.where(order == _NEVER, -1, unit_at.take(flat, mode="clip"))


def _take_units(
    units: _Units, ranked: NDArray[np.int32], budget: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Take units in order, skipping those larger than the room left. Returns for each unit (U,) the
    first unit of the group it is selected with, or -1, and the room (B,) left over."""
    sizes = np.where(ranked < 0, units.first.size, units.sizes[ranked])  # (B, K)
    total = np.cumsum(sizes, axis=1)
    fits = total <= budget[:, None]
    parts = [ranked[fits]]
    rank = fits.sum(axis=1)  # of the first unit that is too large
    room = budget - np.where(fits, sizes, 0).sum(axis=1)
    row = np.flatnonzero(room)
    ranks = np.arange(ranked.shape[1])
    # Each pass takes one unit in every remaining row; the room left is below the largest unit.
    while len(row):
        fits = (sizes[row] <= room[row, None]) & (ranks > rank[row, None])
        has_fit = fits.any(axis=1)
        row, at = row[has_fit], fits[has_fit].argmax(axis=1)
        parts.append(ranked[row, at])
        room[row] -= sizes[row, at]
        rank[row] = at
        row = row[room[row] > 0]
    first_of = np.full(len(units.begin), -1, dtype=np.int32)
    selection = np.concatenate(parts)
    first_of[selection] = selection
    return first_of, room


def _take_spans(
    units: _Units,
    ranked: NDArray[np.int32],
    budget: NDArray[np.int64],
    draws: Draws,
    span_shares: NDArray[np.float64],
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Take spans that begin at units in random order; returns the same as `_take_units`.

    A span ends early, after a whole unit, at a special token, at an earlier span, or when the
    budget of tokens is reached.
    """
    length = units.first.shape[1]
    most = len(span_shares)
    words = np.arange(most)
    # Padding, as windows may reach past the last unit.
    beyond = np.zeros(most, dtype=np.intp)
    sizes = np.append(units.sizes, beyond)
    begin = np.append(units.begin, beyond + units.first.size)
    free = np.append(units.first.reshape(-1)[units.begin], beyond.astype(bool))
    first_of = np.full(len(begin), -1, dtype=np.int32)
    room = budget.copy()
    row = np.flatnonzero(room)
    span_sizes = np.empty((0, 0))
    for rank in range(ranked.shape[1]):
        row = row[(room[row] > 0) & (ranked[row, rank] >= 0)]
        if not len(row):
            break
        if rank % _RANKS_AT_ONCE == 0:
            position = begin[ranked[:, rank : rank + _RANKS_AT_ONCE]] % length
            span_sizes = span_lengths(extend(draws.length[:, None], position), span_shares)
        first = ranked[row, rank]
        window = first[:, None] + words  # (rows, words)
        inside = free[window] & (words < span_sizes[row, rank % _RANKS_AT_ONCE, None])
        inside &= begin[window] < (row[:, None] + 1) * length
        inside &= np.cumsum(sizes[window], axis=1) <= room[row, None]
        inside = np.logical_and.accumulate(inside, axis=1)
        members = window[inside]
        first_of[members] = np.repeat(first, inside.sum(axis=1))
        free[members] = False
        room[row] -= np.where(inside, sizes[window], 0).sum(axis=1)
    return first_of[: len(units.begin)], room


def span_lengths(draw: NDArray[np.uint64], span_shares: NDArray[np.float64]) -> NDArray[np.intp]:
    """The number of units of a span, for each 64 random bits."""
    return 1 + np.searchsorted(span_shares[:-1] * 2.0**RANDOM_BITS, fraction(draw), side="right")


def _selected_tokens(
    units: _Units, first_of: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Flat positions (P,) of the tokens of selected units, and where each one's group begins."""
    selection = np.flatnonzero(first_of >= 0)
    sizes = units.sizes[selection]
    ends = np.cumsum(sizes)
    within = np.arange(int(sizes.sum())) - np.repeat(ends - sizes, sizes)
    flat = np.repeat(units.begin[selection], sizes) + within
    return flat, np.repeat(units.begin[first_of[selection]], sizes)
