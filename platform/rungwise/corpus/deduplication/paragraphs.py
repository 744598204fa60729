"""Find repeated paragraphs of a corpus and remove them from documents.

Menus, licences and running heads repeat where whole documents do not. Digests of paragraphs are
compared, one partition at a time; the text stays where it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc  # type checkers miss functions made at run time
from pydantic import Field

from rungwise.core.configuration.config import Config
from rungwise.corpus.document import text_digest

# Bytes shuffled per paragraph: a digest and a place.
ROW_BYTES = 40


class DuplicateParagraphConfig(Config):
    """Keep only the first copy of a repeated paragraph; `lines` of a source defines paragraphs."""

    minimum_characters: int = Field(default=50, ge=1)  # shorter paragraphs may repeat
    # occurrences in the corpus up to which all copies are kept
    maximum_occurrences: int = Field(default=1, ge=1)


class Shortened(NamedTuple):
    """Documents without the paragraphs removed, which had `characters`.

    `too_short` are the rows, (N,), left with less text than a document must have.
    """

    table: pa.Table
    characters: int
    too_short: np.ndarray


def paragraph_rows(
    tables: Iterable[pa.Table],
    lost: np.ndarray,
    number: int,
    minimum_characters: int,
    num_partitions: int,
) -> pa.Table:
    """Return a row per paragraph of range `number`, except in rows `lost`, (N,) sorted."""
    digests: list[bytes] = []
    places: list[tuple[int, int, int]] = []
    without = frozenset(lost.tolist())
    row = -1
    for table in tables:
        columns = (table[name].to_pylist() for name in ("sentences", "paragraph_starts"))
        for sentences, starts in zip(*columns, strict=True):
            row += 1
            ends = () if row in without else (*starts[1:], len(sentences))
            for paragraph, end in enumerate(ends):
                text = "\n".join(sentences[starts[paragraph] : end])
                if len(text) >= minimum_characters:
                    digests.append(hashlib.blake2b(text.encode(), digest_size=16).digest())
                    places.append((number, row, paragraph))
    keys = np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)
    range_, row_, paragraph_ = np.array(places, np.int32).reshape(-1, 3).T
    partition = (keys[:, 0] % np.uint64(num_partitions)).astype(np.int64)
    columns = (partition, keys[:, 0], keys[:, 1], range_, row_, paragraph_)
    names = ("partition", "low", "high", "range", "row", "paragraph")
    return pa.table(dict(zip(names, columns, strict=True)))


def find_repeats(rows: pa.Table, maximum_occurrences: int) -> np.ndarray:
    """Return the paragraphs of this partition to remove, (N, 3): range, row, paragraph, sorted."""
    low, high = rows["low"].to_numpy(), rows["high"].to_numpy()
    places = np.stack([rows[name].to_numpy() for name in ("range", "row", "paragraph")], axis=1)
    order = np.lexsort((*places.T[::-1], low, high))
    low, high, places = low[order], high[order], places[order].astype(np.int64)
    first = np.append(True, (low[1:] != low[:-1]) | (high[1:] != high[:-1]))[: len(low)]
    group = np.cumsum(first) - 1
    again = places[~first & (np.bincount(group) > maximum_occurrences)[group]]
    return again[np.lexsort(again.T[::-1])]


def remove_paragraphs(table: pa.Table, cut: np.ndarray, minimum_characters: int) -> Shortened:
    """Remove paragraphs `cut`, (N, 2): row and paragraph, from a table of `RangeBuilder`."""
    if not len(cut):
        return Shortened(table, 0, np.empty(0, np.int64))
    table = table.combine_chunks()
    sentences, starts, spans = (
        table[name].chunk(0) for name in ("sentences", "paragraph_starts", "spans")
    )
    of_row, of_starts = sentences.offsets.to_numpy(), starts.offsets.to_numpy()
    rows = np.repeat(np.arange(len(table)), np.diff(of_starts))
    # The first sentence of each paragraph, and the one after its last.
    begins = starts.flatten().to_numpy() + of_row[rows]
    ends = np.append(begins[1:], of_row[-1])
    cut_paragraphs = of_starts[cut[:, 0]] - of_starts[0] + cut[:, 1]
    keep_paragraph = np.ones(len(rows), bool)
    keep_paragraph[cut_paragraphs] = False
    keep = np.repeat(keep_paragraph, ends - begins)
    kept_before = np.append(0, np.cumsum(keep))
    begins, ends = begins - of_row[0], ends - of_row[0]
    flat = sentences.flatten()
    characters = pc.sum(pc.utf8_length(flat.filter(pa.array(~keep)))).as_py()  # pyright: ignore[reportAttributeAccessIssue]
    new_starts = kept_before[begins] - kept_before[of_row[rows] - of_row[0]]
    # Spans have an entry per sentence, or none for the whole document.
    has_spans = np.repeat(np.diff(spans.offsets.to_numpy()) > 0, np.diff(of_row))
    kept_spans = spans.flatten().filter(pa.array(keep[has_spans]))
    span_ends = np.append(0, np.cumsum(keep & has_spans))
    columns = {
        "sentences": _listed(kept_before[of_row - of_row[0]], flat.filter(pa.array(keep))),
        "paragraph_starts": _listed(
            np.append(0, np.cumsum(keep_paragraph))[of_starts - of_starts[0]],
            pa.array(new_starts[keep_paragraph], pa.int32()),
        ),
        "spans": _listed(span_ends[of_row - of_row[0]], kept_spans),
    }
    digests, sizes = table["digest"].to_pylist(), table["bytes"].to_pylist()
    too_short = []
    for row in np.unique(cut[:, 0]).tolist():
        left = columns["sentences"][row].as_py()
        text = " ".join(left)
        digests[row], sizes[row] = text_digest(left), len(text.encode())
        if len(text) < minimum_characters:
            too_short.append(row)
    columns |= {"digest": pa.array(digests), "bytes": pa.array(sizes, pa.int64())}
    for name, column in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return Shortened(table, characters, np.array(too_short, np.int64))


def _listed(offsets: np.ndarray, values: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
