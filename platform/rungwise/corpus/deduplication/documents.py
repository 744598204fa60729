"""Find documents to drop (exact copies, near-duplicates), and documents with the same id.

Only keys are compared, one partition of digests and names at a time. Of equal texts, and
of texts that resemble each other (near_duplicates.py), the first by range and row is kept.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

DUPLICATE, NEAR_DUPLICATE = "duplicate", "near-duplicate"
REASONS = (DUPLICATE, NEAR_DUPLICATE)
# Shuffled rows: two per document, by text and by name, and one per mark.
_TEXT, _NAME, _MARK = range(3)
ROW_BYTES = 56
_SMALLEST = 2
_KEY = np.dtype([("high", ">u8"), ("low", ">u8")])


class Position(NamedTuple):
    """A document: its range, and its row in the tables of that range."""

    range: int
    row: int


class DocumentDecision(NamedTuple):
    """The outcome of one partition.

    `duplicates` is (N, 3) int64: range, row and index of the reason, sorted. `documents` and
    `bytes` count those that stay, `held_out_bytes` those with split keys up to a threshold;
    `smallest` are their two smallest split keys; `same_name` are two documents of one name, if any.
    """

    duplicates: np.ndarray
    documents: int
    bytes: int
    held_out_bytes: int
    smallest: list[int]
    same_name: tuple[Position, Position] | None


def key_rows(keys: pa.Table, number: int, num_partitions: int) -> pa.Table:
    """Return two rows per document of range `number`, each with its partition."""
    count = keys.num_rows
    both = pa.concat_arrays([keys[column].combine_chunks() for column in ("digest", "name")])
    # Documents of one name and one text are copies, not an error.
    texts = _words(keys["digest"].combine_chunks())["high"].astype(np.uint64)
    return _table(
        both,
        np.repeat(np.array([_TEXT, _NAME], np.int8), count),
        np.full(2 * count, number, np.int64),
        np.tile(np.arange(count), 2),
        np.concatenate([keys["split"].to_numpy(), texts]),
        np.concatenate([keys["bytes"].to_numpy(), np.zeros(count, np.int64)]),
        num_partitions,
    )


def mark_rows(marks: dict[str, str], num_partitions: int) -> pa.Table:
    """Return a row per digest marked as a near-duplicate."""
    digests = pa.array([bytes.fromhex(digest) for digest in sorted(marks)], pa.binary(16))
    zeros = np.zeros(len(digests), np.int64)
    kinds = np.full(len(digests), _MARK, np.int8)
    return _table(digests, kinds, zeros, zeros, zeros.astype(np.uint64), zeros, num_partitions)


def decide(rows: pa.Table, deduplicate: bool, threshold: int) -> DocumentDecision:
    """Decide on all documents whose digest or name is in this partition; split keys up to
    `threshold` count as held out."""
    kind = rows["kind"].to_numpy()
    keys = _words(rows["key"].combine_chunks())
    names = ("range", "row", "extra", "bytes")
    range_, row, extra, sizes = (rows[name].to_numpy() for name in names)
    order = np.lexsort((row, range_, keys["low"], keys["high"], kind))
    kind, keys, extra, sizes = kind[order], keys[order], extra[order], sizes[order]
    positions = np.stack([range_, row], axis=1)[order]
    is_text, is_name = kind == _TEXT, kind == _NAME
    texts, marks = keys[is_text], np.unique(keys[kind == _MARK])
    copies = np.append(False, texts[1:] == texts[:-1])[: len(texts)] & deduplicate
    near = np.zeros(len(texts), bool)
    if len(marks):
        # The position of an equal key, or else of the next.
        at = np.minimum(np.searchsorted(marks, texts), len(marks) - 1)
        near = (marks[at] == texts) & ~copies
    reasons = np.where(copies, REASONS.index(DUPLICATE), REASONS.index(NEAR_DUPLICATE))
    duplicates = np.column_stack([positions[is_text], reasons])[copies | near]
    split_keys, sizes = extra[is_text][~(copies | near)], sizes[is_text][~(copies | near)]
    names, texts_of_names = keys[is_name], extra[is_name]
    same = names[1:] == names[:-1]
    if deduplicate:
        same &= texts_of_names[1:] != texts_of_names[:-1]
    pairs = np.hstack([positions[is_name][:-1], positions[is_name][1:]])[same].tolist()
    pair = min(pairs, default=None)
    return DocumentDecision(
        duplicates[np.lexsort((duplicates[:, 1], duplicates[:, 0]))],
        len(split_keys),
        int(sizes.sum()),
        int(sizes[split_keys <= np.uint64(threshold)].sum()),
        np.sort(split_keys)[:_SMALLEST].tolist(),
        pair and (Position(*pair[:2]), Position(*pair[2:])),
    )


def _table(
    keys: pa.Array,
    kinds: np.ndarray,
    ranges: np.ndarray,
    rows: np.ndarray,
    extra: np.ndarray,
    sizes: np.ndarray,
    num_partitions: int,
) -> pa.Table:
    partition = _words(keys)["high"].astype(np.uint64) % np.uint64(num_partitions)
    return pa.table(
        {
            "partition": partition.astype(np.int64),
            "kind": kinds,
            "key": keys,
            "range": ranges.astype(np.int32),
            "row": rows.astype(np.int32),
            "extra": extra,  # the split key, or a part of the digest
            "bytes": sizes,
        }
    )


def _words(keys: pa.Array) -> Any:
    """View 16-byte keys as pairs of big-endian numbers, which compare alike."""
    buffer = keys.buffers()[1]
    if not len(keys):
        return np.empty(0, _KEY)
    return np.frombuffer(buffer, _KEY)[keys.offset : keys.offset + len(keys)]
