"""Counts of n-grams in sorted arrays: counted by shard, partitioned, and summed in any grouping.

    count_ngrams    the n-grams of one order in one shard
    split_table     partition a table by a hash of its last two tokens, for parallel tasks
    merge_tables    sum tables

Only n-grams of the highest order are counted. Those that begin a sentence are padded with start
symbols: `<s> <s> a b` stands for `<s> a b`, so the table determines every lower order. Rows are
sorted by their last token, then by the one before and so on, so the n-grams of any lower order are
runs of rows.

N n-grams, O order
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rungwise.core.errors import DataError

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

Ids = NDArray[np.unsignedinteger]


@dataclass(frozen=True, eq=False)
class Table:
    """Distinct n-grams of one order, sorted from the last token to the first, and their counts."""

    ngrams: Ids  # (N, O), oldest token first, in the type of the shard's ids
    counts: NDArray[np.int64]  # (N,)

    def __len__(self) -> int:
        return len(self.counts)


def count_ngrams(ids: Ids, offsets: NDArray[np.integer], order: int, start_id: int) -> Table:
    """Count the n-grams of `order` in one shard of sentences, each closed by the end symbol. Raises
    DataError if a sentence contains the start symbol."""
    if (ids == start_id).any():
        raise DataError(
            f"expected no start symbol (id {start_id}) inside a sentence, found one at token "
            f"{int((ids == start_id).argmax())} of the shard; remove it from the corpus"
        )
    place = np.arange(len(ids)) - np.repeat(offsets[:-1], np.diff(offsets))  # in its sentence
    ngrams = np.full((len(ids), order), start_id, ids.dtype)
    for distance, column in enumerate(ngrams.T[::-1]):
        inside = place[distance:] >= distance
        column[distance:][inside] = ids[: len(ids) - distance][inside]
    return merge_tables([Table(ngrams, np.ones(len(ids), np.int64))])


def merge_tables(tables: Sequence[Table]) -> Table:
    """Sum tables of one order, rows in any order; however merges are grouped, the same bytes."""
    ngrams = np.concatenate([table.ngrams for table in tables])
    counts = np.concatenate([table.counts for table in tables])
    order, is_first = sort_rows(ngrams.T[::-1])
    starts = np.flatnonzero(is_first)
    return Table(np.take(ngrams, order[starts], axis=0), sum_runs(counts[order], starts))


def split_table(table: Table, parts: int) -> list[Table]:
    """Partition a table: n-grams that end with the same two tokens share a part."""
    if parts == 1:
        return [table]
    hashes = np.zeros(len(table), np.uint64)
    for column in table.ngrams.T[-2:]:
        hashes = (hashes ^ column) * _MULTIPLIER
        hashes ^= hashes >> np.uint64(32)
    part = hashes % np.uint64(parts)
    return [Table(table.ngrams[part == p], table.counts[part == p]) for p in range(parts)]


def sort_rows(columns: Sequence[Ids] | Ids) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return the permutation that sorts rows by their first column, then by the next and so on, and
    which sorted rows differ from the previous."""
    bits = max(1, *(int(column.max(initial=0)).bit_length() for column in columns))
    fit = 64 // bits
    key = _pack(columns[:fit], bits)
    order = np.argsort(key)
    is_first = _changes(key[order])
    while len(columns := columns[fit:]):
        # Of rows that are equal so far, the next columns decide.
        tied = ~is_first
        tied[:-1] |= tied[1:]
        places = np.flatnonzero(tied)
        group = np.cumsum(is_first)[places].astype(np.uint64)
        fit = min(len(columns), (64 - int(group.max(initial=0)).bit_length()) // bits)
        rows = order[places]
        key = group << np.uint64(fit * bits) | _pack([c[rows] for c in columns[:fit]], bits)
        ascending = np.argsort(key)
        order[places] = rows[ascending]
        is_first[places] |= _changes(key[ascending])
    return order, is_first


def _pack(columns: Sequence[Ids] | Ids, bits: int) -> NDArray[np.uint64]:
    key = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        key = (key << np.uint64(bits)) | column
    return key


def _changes(values: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which values differ from the previous."""
    changes = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=changes[1:])
    return changes


def sum_runs(values: NDArray[np.int64], starts: NDArray[np.intp]) -> NDArray[np.int64]:
    """Return the sums of the runs that begin at `starts`."""
    return np.add.reduceat(values, starts) if len(starts) else values[:0]
