"""Integer sums by key in sorted arrays; merging shards in any grouping gives the same bytes.

N distinct keys, V vocabulary
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rungwise.core.tokens import TokenisedText


@dataclass(frozen=True, eq=False)
class SparseSums:
    """Distinct keys in ascending order, and an integer for each."""

    keys: NDArray[np.int64]  # (N,)
    sums: NDArray[np.int64]  # (N,)


def merge_sums(tables: Sequence[SparseSums]) -> SparseSums:
    """Sum tables; their keys may repeat and need not be sorted."""
    keys = np.concatenate([table.keys for table in tables])
    sums = np.concatenate([table.sums for table in tables])
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return SparseSums(keys[starts], np.add.reduceat(sums[order], starts) if len(starts) else sums)


def split_sums(table: SparseSums, parts: int) -> list[SparseSums]:
    """Partition a table by key: equal keys of two tables share a part."""
    part = table.keys % parts
    return [SparseSums(table.keys[part == p], table.sums[part == p]) for p in range(parts)]


def count_neighbours(
    text: TokenisedText,
    bounds: NDArray[np.int64],
    counts_V: NDArray[np.int64],
    amounts: Sequence[int],
) -> SparseSums:
    """Count pairs of words between two of the bounds; two at distance d, up to the length of
    `amounts`, add `amounts[d - 1]` to the key row·V + column with row ≤ column. Words with a count
    of 0 are removed first."""
    is_frequent = counts_V[text.ids] > 0
    words = text.ids[is_frequent].astype(np.int64)
    unit = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))[is_frequent]
    tables = [SparseSums(words[:0], words[:0])]
    for distance, amount in enumerate(amounts[: max(0, len(words) - 1)], start=1):
        same = unit[distance:] == unit[:-distance]
        left, right = words[:-distance][same], words[distance:][same]
        pairs = np.minimum(left, right) * len(counts_V) + np.maximum(left, right)
        tables.append(merge_sums([SparseSums(pairs, np.full(len(pairs), amount))]))
    return merge_sums(tables)
