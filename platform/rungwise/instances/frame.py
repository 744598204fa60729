"""Frame segments of text as rows `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rungwise.instances.plan import Spans
from rungwise.instances.shards import Shard, pack_bits
from rungwise.tokenizer import SpecialIds
from rungwise.tokens.text import TokenisedText

# Bounds memory: an index is four times as large as the ids it gathers.
_ROWS_AT_ONCE = 1 << 11


def rows(
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
    begins, taken = [np.full(count, size)], [one]
    for segment, length in zip(segments, lengths, strict=True):
        begins += [segment[:, 0], np.full(count, size + 1)]
        taken += [length, one]
    begin, stretch = np.stack(begins, axis=1), np.stack(taken, axis=1)
    offsets = np.concatenate([[0], np.cumsum(stretch.sum(axis=1))]).astype(np.int64)
    tokens = np.append(text.ids, np.array([cls_id, sep_id], dtype=text.ids.dtype))
    ids = np.empty(int(offsets[-1]), dtype=text.ids.dtype)
    starts = unit_starts = None
    if text.unit_starts is not None:
        starts = np.append(text.unit_starts, [True, True])
        unit_starts = np.empty(len(ids), dtype=np.bool_)
    for first in range(0, count, _ROWS_AT_ONCE):
        batch = slice(first, first + _ROWS_AT_ONCE)
        source = ranges(begin[batch].ravel(), stretch[batch].ravel())
        target = slice(offsets[first], offsets[first] + len(source))
        ids[target] = tokens[source]
        if unit_starts is not None and starts is not None:
            unit_starts[target] = starts[source]
    if len(segments) == 2:
        columns = {"a_length": (lengths[0] + 2).astype(np.uint16), **columns}
    return Shard(ids, offsets, columns, None if unit_starts is None else pack_bits(unit_starts))


def ranges(begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Concatenate ranges: `lengths[0]` numbers from `begins[0]`, then the next range."""
    before = np.cumsum(lengths) - lengths
    joined = np.repeat(begins - before, lengths)
    joined += np.arange(len(joined))
    return joined
