"""The shard file: token ids without masks, in Arrow IPC, memory-mapped and read by row.

ids           list<uint16|uint32>   a row's tokens, unpadded
unit_starts   list<bool>            where a word or span begins; only if masking asks for units
...           one number per row    columns of the kind of instance, such as a_length or is_next
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rungwise.core.arrays import Bools, Ints
from rungwise.tokenizer.token_text import map_batch, to_arrow, write_batch

# Bounds memory: an index is four times as large as the ids it gathers.
_ROWS_AT_ONCE = 1 << 11


@dataclass(frozen=True)
class Shard:
    """The rows of one shard. `offsets` has one entry more than there are rows."""

    ids: NDArray[np.unsignedinteger]  # all rows concatenated
    offsets: NDArray[np.integer]
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # one value per row, by name
    unit_bits: NDArray[np.uint8] | None = None  # bit i % 8 of byte i // 8 belongs to token i

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Ints:
        """Tokens of each row, special tokens included."""
        return np.diff(self.offsets).astype(np.int64)


def join_shards(parts: Sequence[Shard]) -> Shard:
    """Concatenate the rows of several shards."""
    if len(parts) == 1:
        return parts[0]
    lengths = [np.diff(part.offsets) for part in parts]
    bits = None
    if parts[0].unit_bits is not None:
        # Unpack first, because parts end within a byte.
        starts = [
            np.unpackbits(part.unit_bits, count=len(part.ids), bitorder="little")
            for part in parts
            if part.unit_bits is not None
        ]
        bits = np.packbits(np.concatenate(starts), bitorder="little")
    return Shard(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64),
        {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns},
        bits,
    )


def write_shard(shard: Shard, path: Path) -> None:
    """Write a shard; the same rows give the same bytes."""
    offsets = to_arrow(shard.offsets.astype(np.int32))
    columns: dict[str, pa.Array] = {"ids": pa.ListArray.from_arrays(offsets, to_arrow(shard.ids))}
    if shard.unit_bits is not None:
        bits = pa.BooleanArray.from_buffers(
            pa.bool_(), len(shard.ids), [None, pa.py_buffer(shard.unit_bits)]
        )
        columns["unit_starts"] = pa.ListArray.from_arrays(offsets, bits)
    columns |= {name: to_arrow(values) for name, values in shard.columns.items()}
    write_batch(columns, path)


def read_shard(path: Path) -> Shard:
    """Memory-map a shard without copying. Raises DataError if the file is not a whole shard."""
    batch = map_batch(path, "shard")
    ids = batch.column("ids")
    bits = None
    if "unit_starts" in batch.schema.names:
        bits = np.frombuffer(batch.column("unit_starts").values.buffers()[1], dtype=np.uint8)
    return Shard(
        ids=ids.values.to_numpy(),
        offsets=ids.offsets.to_numpy(),
        columns={
            name: batch.column(name).to_numpy()
            for name in batch.schema.names
            if name not in ("ids", "unit_starts")
        },
        unit_bits=bits,
    )


@dataclass(frozen=True)
class PaddedRows:
    """Some rows of a split. Positions from `lengths` on are padding."""

    instances: Ints  # (B,) index of each row in its split
    ids: NDArray[np.integer]  # (B, T)
    lengths: Ints  # (B,)
    columns: Mapping[str, NDArray[Any]]  # (B,) each
    unit_starts: Bools | None  # (B, T); False in padding


def pad_rows(
    shard: Shard, local: Ints, instances: Ints, sequence_length: int, pad_id: int
) -> PaddedRows:
    """The rows `local` of one shard, in this order, padded to `sequence_length`."""
    begin = shard.offsets[local].astype(np.int64)
    lengths = shard.offsets[local + 1] - begin
    padding = np.arange(sequence_length) >= lengths[:, None]
    place = begin[:, None] + np.arange(sequence_length)
    place[padding] = 0  # of any token
    ids = shard.ids[place]
    ids[padding] = pad_id
    starts = None
    if shard.unit_bits is not None:
        starts = (shard.unit_bits[place >> 3] >> (place & 7) & 1).astype(bool) & ~padding
    columns = {name: values[local] for name, values in shard.columns.items()}
    return PaddedRows(instances, ids, lengths, columns, starts)


def join_rows(parts: Sequence[PaddedRows], places: Sequence[Ints]) -> PaddedRows:
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


def gather(sources: Sequence[NDArray[Any]], begin: Ints, lengths: Ints) -> list[NDArray[Any]]:
    """Concatenate stretches with these beginnings and lengths, (rows, stretches) each, row by row:
    an array for each source."""
    ends = np.append(0, np.cumsum(lengths.sum(axis=1)))
    joined = [np.empty(int(ends[-1]), dtype=source.dtype) for source in sources]
    for first in range(0, len(begin), _ROWS_AT_ONCE):
        batch = slice(first, first + _ROWS_AT_ONCE)
        index = ranges(begin[batch].ravel(), lengths[batch].ravel())
        for result, source in zip(joined, sources, strict=True):
            result[ends[first] : ends[first] + len(index)] = source[index]
    return joined


def ranges(begins: Ints, lengths: Ints) -> Ints:
    """Concatenate ranges: `lengths[0]` numbers from `begins[0]`, then the next range."""
    before = np.cumsum(lengths) - lengths
    joined = np.repeat(begins - before, lengths)
    joined += np.arange(len(joined))
    return joined
