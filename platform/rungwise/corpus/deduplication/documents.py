"""Find documents to drop (exact copies, near-duplicates), and documents with the same id.

Only keys are compared, one partition of digests and names at a time. Of equal texts, the first by
range and row is kept. A document that resembles another (near_duplicates.py) is dropped whichever
comes first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

DUPLICATE, NEAR_DUPLICATE = "duplicate", "near-duplicate"
REASONS = (DUPLICATE, NEAR_DUPLICATE)
# Shuffled rows: two per document, by text and by name, and one per mark.
_TEXT, _NAME, _MARK = range(3)
ROW_BYTES = 48
# Held out of a corpus too small for its fraction; next-sentence pairs need two.
_HELD_OUT, _FEWEST = 2, 4
_KEY = np.dtype([("high", ">u8"), ("low", ">u8")])


class Position(NamedTuple):
    """A document: its range, and its row among those kept there."""

    range: int
    row: int


class Decision(NamedTuple):
    """The outcome of one partition.

    `lost` is (N, 3) int64: range, row and index of the reason, sorted. `held_out` holds the
    smallest split keys of the documents left; `doubled` two documents of one name, if any.
    """

    lost: np.ndarray
    documents: int
    held_out: list[int]
    doubled: tuple[Position, Position] | None


def key_rows(keys: pa.Table, number: int, num_partitions: int) -> pa.Table:
    """Return two rows per document of range `number`, each with its partition."""
    count = keys.num_rows
    rows = np.tile(np.arange(count, dtype=np.int64), 2)
    both = pa.concat_arrays([keys[column].combine_chunks() for column in ("digest", "name")])
    # Documents of one name and one text are copies, not an error.
    texts = _words(keys["digest"].combine_chunks())["high"].astype(np.uint64)
    return _table(
        both,
        np.repeat(np.array([_TEXT, _NAME], np.int8), count),
        np.full(2 * count, number, np.int64),
        rows,
        np.concatenate([keys["split"].to_numpy(), texts]),
        num_partitions,
    )


def mark_rows(marks: dict[str, str], num_partitions: int) -> pa.Table:
    """Return a row per digest marked as a near-duplicate."""
    digests = pa.array([bytes.fromhex(digest) for digest in sorted(marks)], pa.binary(16))
    nothing = np.zeros(len(digests), np.int64)
    kinds = np.full(len(digests), _MARK, np.int8)
    return _table(digests, kinds, nothing, nothing, nothing.astype(np.uint64), num_partitions)


def decide(rows: pa.Table, deduplicate: bool) -> Decision:
    """Decide on all documents whose digest or name is in this partition."""
    kind = rows["kind"].to_numpy()
    keys = _words(rows["key"].combine_chunks())
    range_, row, extra = (rows[name].to_numpy() for name in ("range", "row", "extra"))
    order = np.lexsort((row, range_, keys["low"], keys["high"], kind))
    kind, keys, range_, row, extra = (a[order] for a in (kind, keys, range_, row, extra))
    of_text, of_name = kind == _TEXT, kind == _NAME
    texts, marked = keys[of_text], np.unique(keys[kind == _MARK])
    again = np.append(False, texts[1:] == texts[:-1])[: len(texts)]
    if not deduplicate:
        again[:] = False
    # The position of an equal key, or else of the next.
    at = np.searchsorted(marked, texts) if len(marked) else np.zeros(len(texts), np.int64)
    near = marked[np.minimum(at, len(marked) - 1)] == texts if len(marked) else at > 0
    near &= ~again
    places = np.stack([range_[of_text], row[of_text]], axis=1)
    reasons = np.where(again, REASONS.index(DUPLICATE), REASONS.index(NEAR_DUPLICATE))
    lost = np.column_stack([places, reasons])[again | near]
    kept = extra[of_text][~(again | near)]
    names, text_of = keys[of_name], extra[of_name]
    twice = names[1:] == names[:-1]
    if deduplicate:
        twice &= text_of[1:] != text_of[:-1]
    named = np.stack([range_[of_name], row[of_name]], axis=1)
    pairs = [
        (tuple(named[at].tolist()), tuple(named[at + 1].tolist())) for at in np.nonzero(twice)[0]
    ]
    doubled = min(pairs, default=None)
    return Decision(
        lost[np.lexsort((lost[:, 1], lost[:, 0]))],
        len(kept),
        np.sort(kept)[:_HELD_OUT].tolist(),
        doubled and (Position(*doubled[0]), Position(*doubled[1])),
    )


def held_out_threshold(fraction: float, documents: int, smallest: list[int]) -> int:
    """Return the largest split key held out: at least two documents, or one if fewer than four."""
    least = _HELD_OUT if documents >= _FEWEST else 1
    return max(int(fraction * 2**64) - 1, *sorted(smallest)[:least][-1:], 0)


def _table(
    keys: pa.Array,
    kinds: np.ndarray,
    ranges: np.ndarray,
    rows: np.ndarray,
    extra: np.ndarray,
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
        }
    )


def _words(keys: pa.Array) -> Any:
    """View 16-byte keys as pairs of big-endian numbers, which compare alike."""
    buffer = keys.buffers()[1]
    if not len(keys):
        return np.empty(0, _KEY)
    return np.frombuffer(buffer, _KEY)[keys.offset : keys.offset + len(keys)]
