"""Frame segments of text as rows `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rungwise.instances.plan import Spans
from rungwise.instances.shards import Shard, pack_bits
from rungwise.tokenizer import SpecialIds
from rungwise.tokens.text import TokenisedText

# Bounds memory: an index is four times as large as the ids it gathers.
_ROWS_AT_ONCE = 1 << 11


def frame_rows(
    text: TokenisedText,
    segments: list[Spans],
    special: SpecialIds,
    columns: Mapping[str, NDArray[Any]],
) -> Shard:
    """Frame one or two segments per row; with two, the column `a_length` counts `[CLS] A [SEP]`.
    numpy copies every token once, without a Python loop over tokens."""
    cls_id, sep_id = special.require("cls", "sep")
    lengths = [segment[:, 1] - segment[:, 0] for segment in segments]
    # A row is a run of stretches: [CLS], then for each segment its tokens and a [SEP]. All are
    # taken from one array: the text, followed by the two special tokens.
    count, size = len(segments[0]), len(text.ids)
    one = np.ones(count, dtype=np.int64)
    begins, sizes = [np.full(count, size)], [one]
    for segment, length in zip(segments, lengths, strict=True):
        begins += [segment[:, 0], np.full(count, size + 1)]
        sizes += [length, one]
    begin, stretch = np.stack(begins, axis=1), np.stack(sizes, axis=1)
    offsets = np.concatenate([[0], np.cumsum(stretch.sum(axis=1))]).astype(np.int64)
    sources: list[NDArray[Any]] = [np.append(text.ids, np.array([cls_id, sep_id], text.ids.dtype))]
    if text.unit_starts is not None:
        sources.append(np.append(text.unit_starts, [True, True]))
    ids, *unit_starts = gather(sources, begin, stretch)
    if len(segments) == 2:
        columns = {"a_length": (lengths[0] + 2).astype(np.uint16), **columns}
    return Shard(ids, offsets, columns, pack_bits(unit_starts[0]) if unit_starts else None)


def gather(
    sources: Sequence[NDArray[Any]], begin: NDArray[np.int64], lengths: NDArray[np.int64]
) -> list[NDArray[Any]]:
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


def ranges(begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Concatenate ranges: `lengths[0]` numbers from `begins[0]`, then the next range."""
    before = np.cumsum(lengths) - lengths
    joined = np.repeat(begins - before, lengths)
    joined += np.arange(len(joined))
    return joined
