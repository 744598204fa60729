"""Find repeated paragraphs of a corpus and remove them from documents.

Menus, licences and running heads repeat where whole documents do not. Digests of paragraphs are
compared, one partition at a time; the text stays where it is.
"""

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc  # type checkers miss functions made at run time
from pydantic import Field

from rungwise.core.configuration.config import Config
from rungwise.corpus.document import text_digest, text_length

# Bytes shuffled per paragraph: a digest and a place.
ROW_BYTES = 40


class DuplicateParagraphConfig(Config):
    """Keep only the first copy of a repeated paragraph; `lines` of a source defines paragraphs."""

    minimum_characters: int = Field(default=50, ge=1)  # shorter paragraphs may repeat
    # occurrences in the corpus up to which all copies are kept
    maximum_occurrences: int = Field(default=1, ge=1)


class ShorterTable(NamedTuple):
    """Documents without the paragraphs removed, which had `characters`.

    `too_short` are the rows, (N,), whose remaining text is too short for a document.
    """

    table: pa.Table
    characters: int
    too_short: np.ndarray


def paragraph_rows(
    tables: Iterable[pa.Table],
    duplicates: np.ndarray,
    number: int,
    minimum_characters: int,
    num_partitions: int,
) -> pa.Table:
    """Return a row per paragraph of range `number`, except in the rows `duplicates`, (N,)."""
    digests: list[bytes] = []
    positions: list[tuple[int, int, int]] = []
    dropped = frozenset(duplicates.tolist())
    row = -1
    for table in tables:
        columns = (table[name].to_pylist() for name in ("sentences", "paragraph_starts"))
        for sentences, starts in zip(*columns, strict=True):
            row += 1
            ends = () if row in dropped else (*starts[1:], len(sentences))
            for paragraph, end in enumerate(ends):
                text = "\n".join(sentences[starts[paragraph] : end])
                if text_length(text) >= minimum_characters:
                    digests.append(hashlib.blake2b(text.encode(), digest_size=16).digest())
                    positions.append((number, row, paragraph))
    keys = np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)
    partition = (keys[:, 0] % np.uint64(num_partitions)).astype(np.int64)
    columns = (partition, *keys.T, *np.array(positions, np.int32).reshape(-1, 3).T)
    names = ("partition", "low", "high", "range", "row", "paragraph")
    return pa.table(dict(zip(names, map(np.ascontiguousarray, columns), strict=True)))


def find_repeats(rows: pa.Table, maximum_occurrences: int) -> np.ndarray:
    """Return the paragraphs of this partition to remove, (N, 3): range, row, paragraph, sorted."""
    names = ("low", "high", "range", "row", "paragraph")
    low, high, *positions = (rows[name].to_numpy() for name in names)
    order = np.lexsort((*positions[::-1], low, high))
    low, high = low[order], high[order]
    positions = np.stack(positions, axis=1)[order].astype(np.int64)
    is_first = np.append(True, (low[1:] != low[:-1]) | (high[1:] != high[:-1]))[: len(low)]
    group = np.cumsum(is_first) - 1
    repeats = positions[~is_first & (np.bincount(group) > maximum_occurrences)[group]]
    return repeats[np.lexsort(repeats.T[::-1])]


def remove_paragraphs(
    table: pa.Table, repeats: np.ndarray, minimum_characters: int
) -> ShorterTable:
    """Remove paragraphs `repeats`, (N, 2): row and paragraph, from a table of `RangeBuilder`."""
    if not len(repeats):
        return ShorterTable(table, 0, np.empty(0, np.int64))
    table = table.combine_chunks()
    sentences, starts = (table[name].chunk(0) for name in ("sentences", "paragraph_starts"))
    bounds = _paragraph_bounds(sentences, starts)
    stays = np.ones(len(bounds) - 1, bool)
    start_offsets = starts.offsets.to_numpy()
    stays[start_offsets[repeats[:, 0]] - start_offsets[0] + repeats[:, 1]] = False
    return keep_sentences(table, np.repeat(stays, np.diff(bounds)), minimum_characters)


def keep_sentences(
    table: pa.Table, sentence_stays: np.ndarray, minimum_characters: int
) -> ShorterTable:
    """Keep the sentences (S,) of a table of `RangeBuilder`, and the paragraphs that have any."""
    table = table.combine_chunks()
    sentences, starts, spans = (
        table[name].chunk(0) for name in ("sentences", "paragraph_starts", "spans")
    )
    row_offsets, start_offsets = sentences.offsets.to_numpy(), starts.offsets.to_numpy()
    rows = np.repeat(np.arange(len(table)), np.diff(start_offsets))
    row_begins = row_offsets - row_offsets[0]
    bounds = _paragraph_bounds(sentences, starts)
    before = np.append(0, np.cumsum(sentence_stays))
    stays = before[bounds[1:]] > before[bounds[:-1]]
    flat = sentences.flatten()
    characters = pc.sum(pc.utf8_length(flat.filter(pa.array(~sentence_stays)))).as_py()  # pyright: ignore[reportAttributeAccessIssue]
    new_starts = before[bounds[:-1]] - before[row_begins[rows]]
    # Spans have an entry per sentence, or none for the whole document.
    has_spans = np.repeat(np.diff(spans.offsets.to_numpy()) > 0, np.diff(row_offsets))
    span_ends = np.append(0, np.cumsum(sentence_stays & has_spans))
    columns = {
        "sentences": _lists(before[row_begins], flat.filter(pa.array(sentence_stays))),
        "paragraph_starts": _lists(
            np.append(0, np.cumsum(stays))[start_offsets - start_offsets[0]],
            pa.array(new_starts[stays], pa.int32()),
        ),
        "spans": _lists(
            span_ends[row_begins], spans.flatten().filter(pa.array(sentence_stays[has_spans]))
        ),
    }
    digests, sizes = table["digest"].to_pylist(), table["bytes"].to_pylist()
    too_short = []
    shorter = np.diff(before[row_begins]) < np.diff(row_begins)
    for row in np.flatnonzero(shorter).tolist():
        remainder = columns["sentences"][row].as_py()
        text = " ".join(remainder)
        digests[row], sizes[row] = text_digest(remainder), len(text.encode())
        if text_length(text) < minimum_characters:
            too_short.append(row)
    columns |= {"digest": pa.array(digests), "bytes": pa.array(sizes, pa.int64())}
    for name, column in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return ShorterTable(table, characters or 0, np.array(too_short, np.int64))


def _paragraph_bounds(sentences: pa.ListArray, starts: pa.ListArray) -> np.ndarray:
    """Return the first sentence of each paragraph of a table, and the number of sentences."""
    row_offsets, start_offsets = sentences.offsets.to_numpy(), starts.offsets.to_numpy()
    begins = np.repeat(row_offsets[:-1] - row_offsets[0], np.diff(start_offsets))
    return np.append(starts.flatten().to_numpy() + begins, row_offsets[-1] - row_offsets[0])


def _lists(offsets: np.ndarray, values: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
