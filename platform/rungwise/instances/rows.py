"""Rows of a shard as padded rectangular arrays, from which each kind makes its batches.

B batch, T sequence
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from rungwise.instances.shards import Shard


@dataclass(frozen=True)
class PaddedRows:
    """Some rows of a split. Positions from `lengths` on are padding."""

    instances: NDArray[np.int64]  # (B,) index of each row in its split
    ids: NDArray[np.integer]  # (B, T)
    lengths: NDArray[np.int64]  # (B,)
    columns: Mapping[str, NDArray[Any]]  # (B,) each
    unit_starts: NDArray[np.bool_] | None  # (B, T); False in padding


def pad_rows(
    shard: Shard,
    local: NDArray[np.int64],
    instances: NDArray[np.int64],
    sequence_length: int,
    pad_id: int,
) -> PaddedRows:
    """The rows `local` of one shard, in this order, padded to `sequence_length`."""
    begin = shard.offsets[local].astype(np.int64)
    lengths = shard.offsets[local + 1] - begin
    padding = np.arange(sequence_length) >= lengths[:, None]
    ids = _windows(shard.ids, begin, sequence_length)
    ids[padding] = pad_id
    starts = None
    if shard.unit_bits is not None:
        starts = _bit_windows(shard.unit_bits, begin, sequence_length)
        starts[padding] = False
    columns = {name: values[local] for name, values in shard.columns.items()}
    return PaddedRows(instances, ids, lengths, columns, starts)


def join_rows(parts: Sequence[PaddedRows], places: Sequence[NDArray[np.int64]]) -> PaddedRows:
    """Join rows of several shards in one batch; `places` are the positions of each part's rows."""
    if len(parts) == 1:
        return parts[0]

    def put(arrays: list[NDArray[Any]]) -> NDArray[Any]:
        whole = np.empty((sum(map(len, places)), *arrays[0].shape[1:]), arrays[0].dtype)
        for array, place in zip(arrays, places, strict=True):
            whole[place] = array
        return whole

    starts = [part.unit_starts for part in parts if part.unit_starts is not None]
    return PaddedRows(
        put([part.instances for part in parts]),
        put([part.ids for part in parts]),
        put([part.lengths for part in parts]),
        {name: put([part.columns[name] for part in parts]) for name in parts[0].columns},
        put(starts) if starts else None,
    )


def _windows(flat: NDArray[Any], begin: NDArray[np.int64], width: int) -> NDArray[Any]:
    """`flat[b : b + width]` for each b in `begin` (B,), without an index for each element. Values
    past the end of `flat` are arbitrary."""
    if len(flat) < width:
        flat = np.concatenate([flat, np.zeros(width - len(flat), flat.dtype)])
    last = len(flat) - width
    windows = sliding_window_view(flat, width)[np.minimum(begin, last)]
    for row in np.flatnonzero(begin > last):  # the last rows of a shard
        tail = flat[begin[row] :]
        windows[row, : len(tail)] = tail
    return windows


def _bit_windows(
    bits: NDArray[np.uint8], begin: NDArray[np.int64], width: int
) -> NDArray[np.bool_]:
    """`width` packed bits from each bit position in `begin` (B,), as booleans."""
    whole = _windows(bits, begin >> 3, width // 8 + 2)
    unpacked = np.unpackbits(whole, axis=1, bitorder="little")
    first = np.arange(len(begin)) * unpacked.shape[1] + (begin & 7)
    return _windows(unpacked.ravel(), first, width).view(np.bool_)
