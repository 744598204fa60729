"""The merges of Brown clustering, compiled by numba on first use and cached beside this file.

Clusters in view have a slot each. A word enters, then the two clusters whose merge loses least
mutual information become one; at last pairs merge down to one cluster (Liang 2005, "Semi-Supervised
Learning for Natural Language", section 4.2). With F(n) = n ln n and n[a, b] the adjacent pairs of
words of two clusters, the loss of merging a and b, times the number of all pairs, is

    sum over the other clusters c in view of F(n[a, c]) + F(n[b, c]) - F(n[a, c] + n[b, c])

and of columns, plus what the counts of a and b and their sizes lose. The sums are kept up to date.

V words, S slots, N distinct pairs of adjacent words
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
_COMPILED: dict[str, Any] = {"nogil": True, "cache": True}  # floats are summed as written


@njit(**_COMPILED)
def _f(count: int, table: Floats) -> Any:
    """Return n ln n; `table` has it for small n."""
    return table[count] if count < len(table) else count * np.log(count)


@njit(**_COMPILED)
def _loss(one: int, other: int, table: Floats) -> Any:
    return _f(one, table) + _f(other, table) - _f(one + other, table)


@njit(**_COMPILED)
def _add(sign: float, slot: int, pairs: Integers, losses: Floats, table: Floats) -> None:
    """Add what a cluster contributes to the losses of all pairs of others."""
    for counts in pairs[:, slot]:
        neighbours = np.flatnonzero(counts)
        for place, a in enumerate(neighbours):
            for b in neighbours[place + 1 :]:
                losses[a, b] += sign * _loss(counts[a], counts[b], table)


@njit(**_COMPILED)
def _fill(
    slot: int, pairs: Integers, sizes: Integers, losses: Floats, logs: Floats, table: Floats
) -> None:
    """Calculate what depends on a cluster whose counts are new."""
    sums = np.zeros(len(losses))
    for side in range(2):
        counts = pairs[side, slot]
        for c in np.flatnonzero(counts):
            facing = pairs[1 - side, c]
            for b in range(len(sums)):
                if facing[b] and c != slot and c != b:
                    sums[b] += _loss(counts[c], facing[b], table)
    for b in range(len(sums)):
        total = 0
        for row, column in ((slot, slot), (slot, b), (b, slot), (b, b)):
            total += pairs[0, row, column]
            sums[b] += _f(pairs[0, row, column], table)
        first, last = min(slot, b), max(slot, b)
        losses[first, last] = sums[b] - _f(total, table)
        for side in range(2):
            size = sizes[side, slot] + (0 if b == slot else sizes[side, b])
            logs[side, first, last] = np.log(max(1, size))


@njit(**_COMPILED)
def _cheapest(in_view: NDArray[np.bool_], pairs: Integers, losses: Floats, logs: Floats) -> Any:
    """Return the two slots whose merge loses least, the first of equals."""
    slots = np.flatnonzero(in_view)
    out, into = pairs[0].sum(axis=1), pairs[1].sum(axis=1)
    apart = out * np.diag(logs[0]) + into * np.diag(logs[1])
    best, first, last = np.inf, -1, -1
    for place, a in enumerate(slots):
        for b in slots[place + 1 :]:
            own = (out[a] + out[b]) * logs[0, a, b] + (into[a] + into[b]) * logs[1, a, b]
            loss = losses[a, b] + own - apart[a] - apart[b]
            if loss < best:
                best, first, last = loss, a, b
    return first, last


@njit(**_COMPILED)
def merge_words(
    starts: Integers,  # (2, V + 1) where the neighbours of each word begin, on the right and left
    words: Integers,  # (2, N) the neighbours
    counts: Integers,  # (2, N) of the pairs
    classes: int,  # at least 1 and at most V
    table: Floats,  # n ln n of small n
) -> Any:
    """Cluster words, which enter in this order. Return the slot of each (V,) after the last, and
    the merges from then on (C - 1, 2): the second slot of each becomes part of the first."""
    size, slots = starts.shape[1] - 1, classes + 1
    slot_of, in_view = np.full(size, -1, np.int64), np.zeros(slots, np.bool_)
    pairs = np.zeros((2, slots, slots), np.int64)  # and its transpose
    sizes = np.zeros((2, slots), np.int64)  # pairs of the whole text, on the right and left
    losses, logs = np.zeros((slots, slots)), np.zeros((2, slots, slots))
    merges = np.zeros((classes - 1, 2), np.int64)
    slot = 0
    for step in range(size + classes - 1):
        if step < size:
            slot_of[step], in_view[slot] = slot, True
            for side in range(2):
                for at in range(starts[side, step], starts[side, step + 1]):
                    sizes[side, slot] += counts[side, at]
                    other = slot_of[words[side, at]]
                    if other >= 0 and not (side and other == slot):
                        pairs[side, slot, other] += counts[side, at]
                        pairs[1 - side, other, slot] += counts[side, at]
            _add(1.0, slot, pairs, losses, table)
            _fill(slot, pairs, sizes, losses, logs, table)
            if step < classes:
                slot += 1
                continue
        a, b = _cheapest(in_view, pairs, losses, logs)
        _add(-1.0, a, pairs, losses, table)
        _add(-1.0, b, pairs, losses, table)
        sizes[:, a] += sizes[:, b]
        pairs[:, a] += pairs[:, b]
        pairs[:, :, a] += pairs[:, :, b]
        sizes[:, b], pairs[:, b], pairs[:, :, b], in_view[b] = 0, 0, 0, False
        _add(1.0, a, pairs, losses, table)
        _fill(a, pairs, sizes, losses, logs, table)
        if step < size:
            slot_of[slot_of == b] = a
            slot = b
        else:
            merges[step - size] = a, b
    return slot_of, merges
