"""Tokenise one file of a corpus, a section of the file at a time.

A section is some tens of megabytes of text, so that a task's memory does not grow with its shard.
Documents are in the order of a hash, so a section is a fair sample too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc  # makes most of its functions at run time: no checker knows them
import pyarrow.parquet as pq
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rungwise.core.errors import DataError
from rungwise.core.storage import Folder
from rungwise.instances import mask_units
from rungwise.instances.mask_units import MaskUnitsConfig
from rungwise.instances.text import TokenisedText
from rungwise.tokenizer import Encoded, TextEncoder
from rungwise.tokenizer.memo import int32_of

_SECTION_BYTES = 32e6
_BATCH_BYTES = 8e6
_MOST_ROWS = 2048


@dataclass(frozen=True)
class UnitsOf:
    """How to find mask units: a tokenizer, a config, and whether the corpus's `spans` count."""

    tokenizer: Tokenizer
    config: MaskUnitsConfig
    spans: bool


def sections(
    corpus: Folder,
    file: str,
    text_bytes: int,
    encoder: TextEncoder,
    unit: Literal["sentence", "document"],
    units_of: UnitsOf | None = None,
) -> Iterator[TokenisedText]:
    """Tokenise the documents of one corpus file; those without a token are left out.

    `text_bytes` is the size of the file's text in the corpus manifest. `unit` is tokenised as one
    text. `units_of` asks for the bits where mask units begin. Raises DataError if the file is
    corrupt.
    """
    columns = ["id", "sentences"]
    if units_of is not None and units_of.spans:
        columns.append("spans")
    try:
        with corpus.open(file) as stream, pq.ParquetFile(stream) as parquet:
            rows = parquet.metadata.num_rows
            # At least two documents, since a pair may need a B from another one.
            count = max(1, min(round(text_bytes / _SECTION_BYTES), rows // 2))
            ends = [rows * (number + 1) // count for number in range(count)]
            batch_rows = int(max(1, min(_MOST_ROWS, rows * _BATCH_BYTES / max(text_bytes, 1))))
            pieces: list[_Piece] = []
            done = 0
            for batch in parquet.iter_batches(batch_rows, columns=columns, use_threads=False):
                begin = 0
                while begin < len(batch):
                    part = batch.slice(begin, min(len(batch) - begin, ends[0] - done))
                    pieces.append(_piece(part, encoder, unit, units_of))
                    begin += len(part)
                    done += len(part)
                    if done == ends[0]:
                        yield _joined(pieces)
                        pieces = []
                        del ends[0]
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"cannot read {corpus.path(file)} as a corpus file: {error}") from error


@dataclass(frozen=True)
class _Piece:
    names: list[str]
    texts: NDArray[np.int64]  # of each document
    encoded: Encoded


def _piece(
    batch: pa.RecordBatch,
    encoder: TextEncoder,
    unit: Literal["sentence", "document"],
    units_of: UnitsOf | None,
) -> _Piece:
    sentences = batch.column("sentences")
    if unit == "document":
        texts = pc.binary_join(sentences, " ")  # pyright: ignore[reportAttributeAccessIssue]
        counts = np.ones(len(batch), dtype=np.int64)
    else:
        texts = sentences.flatten()
        counts = int32_of(sentences.value_lengths()).astype(np.int64)
    if units_of is None:
        encoded = encoder.encode(texts)
    else:
        spans = _spans(batch) if units_of.spans else None
        encoded = mask_units.encode(texts, encoder, units_of.tokenizer, units_of.config, spans)
    return _Piece(batch.column("id").to_pylist(), counts, encoded)


def _spans(batch: pa.RecordBatch) -> pa.ListArray | None:
    """The spans of each sentence; a document without any may have no list for its sentences."""
    spans, sentences = batch.column("spans"), batch.column("sentences")
    held = spans.value_lengths()
    if held.equals(sentences.value_lengths()):
        return spans.flatten()
    if not pc.any(pc.greater(held, 0)).as_py():  # pyright: ignore[reportAttributeAccessIssue]
        return None
    rows = [
        spans_of_document or [[]] * count
        for spans_of_document, count in zip(
            spans.to_pylist(), sentences.value_lengths().to_pylist(), strict=True
        )
    ]
    return pa.array([sentence for row in rows for sentence in row], pa.list_(pa.int32()))


def _joined(pieces: list[_Piece]) -> TokenisedText:
    length = np.concatenate([piece.encoded.lengths for piece in pieces])
    first = np.concatenate([[0], np.cumsum(np.concatenate([piece.texts for piece in pieces]))])
    filled = length > 0
    first = np.concatenate([[0], np.cumsum(filled)])[first]
    held = np.diff(first) > 0
    names = [name for piece in pieces for name in piece.names]
    starts = [piece.encoded.word_starts for piece in pieces]
    return TokenisedText(
        ids=np.concatenate([piece.encoded.ids for piece in pieces]),
        starts=np.concatenate([[0], np.cumsum(length[filled])]),
        first_sentence=np.concatenate([first[:-1][held], first[-1:]]),
        documents=[name for name, keep in zip(names, held, strict=True) if keep],
        unit_starts=np.concatenate([flags for flags in starts if flags is not None])
        if starts[0] is not None
        else None,
    )
