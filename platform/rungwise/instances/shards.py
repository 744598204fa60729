"""The shard file: token ids without masks, in Arrow IPC, memory-mapped and read by row.

    ids           list<uint16|uint32>   a row's tokens, unpadded
    unit_starts   list<bool>            where a word or span begins; only if masking asks for units
    ...           one number per row    columns of the kind of instance, such as a_length or is_next

Masks are drawn when a row is read, so a shard serves every epoch. Vocabularies up to 65,536 take
two bytes per token (uint16); one more bit marks where words begin.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rungwise.core.errors import DataError
from rungwise.tokens.text import to_arrow


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
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row, special tokens included."""
        return np.diff(self.offsets).astype(np.int64)


def pack_bits(starts: NDArray[np.bool_]) -> NDArray[np.uint8]:
    return np.packbits(starts, bitorder="little")


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


def id_type(vocab_size: int) -> type[np.unsignedinteger]:
    """The narrowest of uint16 and uint32 that holds every id."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


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
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def read_shard(path: Path) -> Shard:
    """Memory-map a shard without copying. Raises DataError if the file is not a whole shard."""
    try:
        batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} is not a whole shard: {error}") from error
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
