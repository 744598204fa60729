"""Tokenised text, in memory and in a memory-mapped Arrow file with a row per document.

N tokens, S sentences, D documents"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rungwise.core.errors import DataError
from rungwise.core.tokens import Ids, TokenisedText


def join_texts(parts: Sequence[TokenisedText]) -> TokenisedText:
    """Concatenate texts."""
    if len(parts) == 1:
        return parts[0]
    units = [part.unit_starts for part in parts if part.unit_starts is not None]
    labels = [part.labels for part in parts if part.labels is not None]
    return TokenisedText(
        np.concatenate([part.ids for part in parts]),
        _offsets([np.diff(part.starts) for part in parts]),
        _offsets([np.diff(part.first_sentence) for part in parts]),
        np.concatenate([part.documents for part in parts]),
        np.concatenate(units) if units else None,
        parts[0].first_document,
        np.concatenate(labels) if labels else None,
    )


def _offsets(lengths: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)


def close_documents(text: TokenisedText, end: int) -> tuple[Ids, NDArray[np.int64]]:
    """Return documents with the end symbol appended to each, and where each begins, (D + 1,)."""
    starts = text.starts[text.first_sentence]
    ids = np.insert(text.ids, starts[1:], np.array(end, dtype=text.ids.dtype))
    return ids, starts + np.arange(len(starts))


def split_documents(text: TokenisedText, end: int) -> list[list[int]]:
    """Return the ids of each document, closed by the end symbol."""
    ids, starts = close_documents(text, end)
    return [document.tolist() for document in np.split(ids, starts[1:-1])]


def document_hash(name: str) -> int:
    """Return the 64-bit hash that identifies the document of this name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def write_tokens(text: TokenisedText, path: Path) -> None:
    """Write the file of a text; equal texts give equal bytes."""
    starts = to_arrow(text.starts.astype(np.int32))
    first = to_arrow(text.first_sentence.astype(np.int32))

    def nested(tokens: pa.Array) -> pa.Array:
        return pa.ListArray.from_arrays(first, pa.ListArray.from_arrays(starts, tokens))

    columns = {"document": to_arrow(text.documents), "ids": nested(to_arrow(text.ids))}
    if text.unit_starts is not None:
        packed = pa.py_buffer(np.packbits(text.unit_starts, bitorder="little"))
        units = pa.BooleanArray.from_buffers(pa.bool_(), len(text.ids), [None, packed])
        columns["unit_starts"] = nested(units)
    if text.labels is not None:
        columns["label"] = to_arrow(text.labels)
    write_batch(columns, path)


def write_batch(columns: dict[str, pa.Array], path: Path) -> None:
    """Write an Arrow file of one batch."""
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def map_batch(path: Path, what: str) -> pa.RecordBatch:
    """Memory-map an Arrow file of one batch. Raises DataError if it is not a whole `what`."""
    try:
        return pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} is not a whole {what}: {error}") from error


def to_arrow(values: NDArray[Any]) -> pa.Array:
    """View `values` as Arrow. `pa.array` would import pandas: a quarter second."""
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


class TokensFile:
    """One file of a tokens artifact, memory-mapped."""

    def __init__(self, path: Path) -> None:
        """Raise DataError if the file is incomplete."""
        batch = map_batch(path, "file of tokens")
        ids = batch.column("ids")
        self.documents: NDArray[np.uint64] = batch.column("document").to_numpy()
        self._first_sentence = ids.offsets.to_numpy()
        self._starts = ids.values.offsets.to_numpy()
        self._ids = ids.values.values.to_numpy()
        self._labels = None
        if "label" in batch.schema.names:
            self._labels = batch.column("label").to_numpy()
        self._unit_bits = None
        if "unit_starts" in batch.schema.names:
            units = batch.column("unit_starts").values.values
            self._unit_bits = np.frombuffer(units.buffers()[1], dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def num_tokens(self) -> int:
        return len(self._ids)

    def text(self, first: int = 0, end: int | None = None, units: bool = False) -> TokenisedText:
        """Return documents `first` to `end`; with `units`, if there, where units begin."""
        end = len(self) if end is None else end
        first_sentence = self._first_sentence[first : end + 1].astype(np.int64)
        starts = self._starts[first_sentence[0] : first_sentence[-1] + 1].astype(np.int64)
        low, high = int(starts[0]), int(starts[-1])
        unit_starts = None
        if units:
            assert self._unit_bits is not None, "tokens without units (TokensConfig.units)"
            bits = self._unit_bits[low >> 3 : (high + 7) >> 3]
            unpacked = np.unpackbits(bits, count=(low & 7) + high - low, bitorder="little")
            unit_starts = unpacked[low & 7 :].view(np.bool_)
        return TokenisedText(
            self._ids[low:high],
            starts - low,
            first_sentence - first_sentence[0],
            self.documents[first:end],
            unit_starts,
            labels=None if self._labels is None else self._labels[first:end],
        )
