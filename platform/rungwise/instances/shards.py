"""The shard file: token ids without masks, in Arrow IPC, read in place by row number.

    ids          list<uint16|uint32>   [CLS] A [SEP] B [SEP], unpadded
    a_length     uint16                tokens of segment 0: [CLS] A [SEP]
    is_next      uint8                 1 if B follows A in its document, 0 if not, 1 without pairs
    document_a   uint64                a hash of the id of the document of A
    document_b   uint64                the same of B

Masks are drawn when a row is read, so a shard serves every epoch. uint16 holds vocabularies up to
65,536 at two bytes a token.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


@dataclass(frozen=True)
class Shard:
    """The rows of one shard. `offsets` has one entry more than there are rows."""

    ids: NDArray[np.unsignedinteger]  # all rows behind one another
    offsets: NDArray[np.int64]
    a_length: NDArray[np.uint16]
    is_next: NDArray[np.uint8]
    document_a: NDArray[np.uint64]
    document_b: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.a_length)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row, special tokens included."""
        return np.diff(self.offsets)


def id_type(vocab_size: int) -> type[np.unsignedinteger]:
    """The narrowest of uint16 and uint32 that holds every id."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def document_hash(document_id: str) -> int:
    """64 bits that name a document in a shard."""
    return int.from_bytes(hashlib.blake2b(document_id.encode(), digest_size=8).digest(), "little")


def write(shard: Shard, path: Path) -> None:
    """Write a shard; the same rows give the same bytes."""
    table = pa.table(
        {
            "ids": pa.ListArray.from_arrays(
                pa.array(shard.offsets.astype(np.int32)), pa.array(shard.ids)
            ),
            "a_length": pa.array(shard.a_length),
            "is_next": pa.array(shard.is_next),
            "document_a": pa.array(shard.document_a),
            "document_b": pa.array(shard.document_b),
        }
    )
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def read(path: Path) -> Shard:
    """Map a shard into memory; nothing is copied until rows are touched."""
    batches = pa.ipc.open_file(pa.memory_map(str(path))).read_all().to_batches()
    batch = batches[0]
    ids = batch.column("ids")
    return Shard(
        ids=ids.values.to_numpy(),
        offsets=ids.offsets.to_numpy().astype(np.int64),
        a_length=batch.column("a_length").to_numpy(),
        is_next=batch.column("is_next").to_numpy(),
        document_a=batch.column("document_a").to_numpy(),
        document_b=batch.column("document_b").to_numpy(),
    )
