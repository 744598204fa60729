"""Rows of a shard as rectangular arrays, padded: what reading gives before a kind makes batches.

B batch, T sequence
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rungwise.instances.shards import Shard


@dataclass(frozen=True)
class Rows:
    """Some rows of a split. Positions from `lengths` on are padding."""

    instances: NDArray[np.int64]  # (B,) index of each row in its split
    ids: NDArray[np.int64]  # (B, T)
    lengths: NDArray[np.int64]  # (B,)
    columns: Mapping[str, NDArray[Any]]  # (B,) each
    unit_starts: NDArray[np.bool_] | None  # (B, T); False in padding


def padded(
    shard: Shard,
    local: NDArray[np.int64],
    instances: NDArray[np.int64],
    sequence_length: int,
    pad_id: int,
) -> Rows:
    """These rows of one shard, in this order."""
    begin = shard.offsets[local].astype(np.int64)
    lengths = shard.offsets[local + 1] - begin
    column = np.arange(sequence_length)
    # Past its end a row reads on into the next ones, and past the last row the last token again.
    tokens = np.minimum(begin[:, None] + column, len(shard.ids) - 1)
    padding = column >= lengths[:, None]
    ids = shard.ids[tokens].astype(np.int64)
    ids[padding] = pad_id
    starts = None
    if shard.unit_bits is not None:
        starts = shard.unit_starts(tokens)
        starts[padding] = False
    columns = {name: values[local] for name, values in shard.columns.items()}
    return Rows(instances, ids, lengths, columns, starts)


def joined(parts: Sequence[Rows], places: Sequence[NDArray[np.int64]]) -> Rows:
    """Rows of several shards as one batch; `places` says where the rows of each part belong."""
    if len(parts) == 1:
        return parts[0]
    back = np.argsort(np.concatenate(places))

    def gather(arrays: list[NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate(arrays)[back]

    starts = [part.unit_starts for part in parts if part.unit_starts is not None]
    return Rows(
        gather([part.instances for part in parts]),
        gather([part.ids for part in parts]),
        gather([part.lengths for part in parts]),
        {name: gather([part.columns[name] for part in parts]) for name in parts[0].columns},
        gather(starts) if starts else None,
    )
