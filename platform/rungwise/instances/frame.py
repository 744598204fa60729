"""Frame spans of text as rows `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]` (SPEC D4), many at once.

A pair that is too long loses tokens from the longer side, at the front or the back at random
(Devlin et al. 2019).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rungwise.instances.shards import Shard, pack_bits
from rungwise.instances.text import Draws, ranges
from rungwise.tokenizer import SpecialIds
from rungwise.tokens.text import TokenisedText

# An index is four times as large as the ids it gathers, so many rows at once need much memory.
_ROWS_AT_ONCE = 1 << 14
Span = tuple[int, int]  # begin and end in the ids of a text


def truncate(a: Span, b: Span, room: int, draw: Draws) -> tuple[Span, Span, bool]:
    """Cut A and B to `room` tokens together; return them and whether anything was cut.

    Tokens go one by one from the longer side, and from B at equal length, front or back at random.
    """
    a_length, b_length = a[1] - a[0], b[1] - b[0]
    excess = a_length + b_length - room
    if excess <= 0:
        return a, b, False
    from_longer = min(abs(a_length - b_length), excess)
    rest = excess - from_longer
    cut_a = (from_longer if a_length > b_length else 0) + rest // 2
    cut_b = (from_longer if b_length >= a_length else 0) + rest - rest // 2
    front_a, front_b = draw.binomial(cut_a), draw.binomial(cut_b)
    a = (a[0] + front_a, a[1] - (cut_a - front_a))
    b = (b[0] + front_b, b[1] - (cut_b - front_b))
    return a, b, True


def pairs(
    text: TokenisedText,
    a: list[Span],
    b: list[Span],
    special: SpecialIds,
    columns: dict[str, NDArray[Any]],
) -> Shard:
    """Frame rows `[CLS] A [SEP] B [SEP]`; the column `a_length` counts `[CLS] A [SEP]`."""
    a_spans, b_spans = _array(a), _array(b)
    a_length = a_spans[:, 1] - a_spans[:, 0]
    shard = _framed(text, [a_spans, b_spans], special)
    return Shard(
        shard.ids,
        shard.offsets,
        {"a_length": (a_length + 2).astype(np.uint16), **columns},
        shard.unit_bits,
    )


def singles(
    text: TokenisedText, spans: list[Span], special: SpecialIds, columns: dict[str, NDArray[Any]]
) -> Shard:
    """Frame rows `[CLS] A [SEP]`."""
    shard = _framed(text, [_array(spans)], special)
    return Shard(shard.ids, shard.offsets, columns, shard.unit_bits)


def _framed(text: TokenisedText, segments: list[NDArray[np.int64]], special: SpecialIds) -> Shard:
    """Frame segments as rows; numpy copies every token once, without a loop over tokens."""
    cls_id, sep_id = special.require("cls", "sep")
    lengths = [segment[:, 1] - segment[:, 0] for segment in segments]
    # A row is a run of pieces: [CLS], then for each segment its tokens and a [SEP]. They are taken
    # from one array that holds the text and, behind it, the two special tokens.
    rows = len(segments[0])
    size = len(text.ids)
    one = np.ones(rows, dtype=np.int64)
    begins, counts = [np.full(rows, size)], [one]
    for segment, length in zip(segments, lengths, strict=True):
        begins += [segment[:, 0], np.full(rows, size + 1)]
        counts += [length, one]
    begin, count = np.stack(begins, axis=1), np.stack(counts, axis=1)
    offsets = np.concatenate([[0], np.cumsum(count.sum(axis=1))]).astype(np.int64)
    tokens = np.append(text.ids, np.array([cls_id, sep_id], dtype=text.ids.dtype))
    ids = np.empty(int(offsets[-1]), dtype=text.ids.dtype)
    starts = unit_starts = None
    if text.unit_starts is not None:
        starts = np.append(text.unit_starts, [True, True])
        unit_starts = np.empty(len(ids), dtype=np.bool_)
    for first in range(0, rows, _ROWS_AT_ONCE):
        batch = slice(first, first + _ROWS_AT_ONCE)
        source = ranges(begin[batch].ravel(), count[batch].ravel())
        target = slice(offsets[first], offsets[first] + len(source))
        ids[target] = tokens[source]
        if unit_starts is not None and starts is not None:
            unit_starts[target] = starts[source]
    return Shard(ids, offsets, {}, None if unit_starts is None else pack_bits(unit_starts))


def _array(spans: list[Span]) -> NDArray[np.int64]:
    return np.array(spans, dtype=np.int64).reshape(-1, 2)
