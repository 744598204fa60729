"""Integer sums by key in sorted arrays; merging shards in any grouping gives the same bytes.

N distinct keys
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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
