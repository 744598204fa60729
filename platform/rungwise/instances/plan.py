"""Plan where the instances of a text begin and end, so that no token is lost, and frame them as
rows `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`.

P pieces, D documents
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.instances.kind import check_bound
from rungwise.instances.shards import Shard, pack_bits

Spans = NDArray[np.int64]  # (rows, 2) begin and end in the ids of a text


@dataclass(frozen=True)
class Pieces:
    """The pieces of a text; documents from `planned` on only lend a B. Piece p is tokens
    [starts[p], starts[p + 1]), document d is pieces [first[d], first[d + 1])."""

    starts: NDArray[np.int64]  # (P + 1,)
    first: NDArray[np.int64]  # (D + 1,)
    planned: int
    num_tokens: int  # of the planned documents
    document: NDArray[np.int64]  # of each planned piece
    end: NDArray[np.int64]  # of each planned piece's document, in pieces

    @classmethod
    def of(
        cls, starts: NDArray[np.int64], first: NDArray[np.int64], planned: int | None
    ) -> "Pieces":
        planned = len(first) - 1 if planned is None else planned
        document = np.repeat(np.arange(planned), np.diff(first[: planned + 1]))
        end = first[1:][document]
        return cls(starts, first, planned, int(starts[first[planned]]), document, end)

    def gathered(
        self, begin: NDArray[np.int64], end: NDArray[np.int64], budget: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The end of the pieces from `begin` on, up to `end`, that hold at most `budget` tokens. At
        least one piece is taken."""
        last = np.searchsorted(self.starts, self.starts[begin] + budget, side="right") - 1
        return np.clip(last, begin + 1, end)

    def span(self, begin: NDArray[np.int64], end: NDArray[np.int64]) -> Spans:
        """The tokens of the pieces [begin, end)."""
        return np.stack([self.starts[begin], self.starts[end]], axis=1)


def in_rows(
    text: TokenisedText, room: int, short_rate: float, rng: np.random.Generator, planned: int | None
) -> Pieces:
    """Pieces of at most `room` tokens; `short_rate` of those of a longer sentence are shorter."""
    size = np.full(len(text.starts) - 1, room)
    return _cut(text, room, size, short_rate, rng, planned)


def in_half_rows(
    text: TokenisedText, room: int, rng: np.random.Generator, planned: int | None
) -> Pieces:
    """Pieces of at most half of `room`, so that any two neighbours make a pair. A sentence longer
    than `room` is cut smaller, so that pairs are full and A is not always half. Sizes are random:
    equal ones would reveal which pieces belong to one sentence."""
    half = room // 2
    size = np.where(np.diff(text.starts) > room, max(half // 2, 1), half)
    return _cut(text, half, size, 1.0, rng, planned)


def _cut(
    text: TokenisedText,
    longest: int,
    size: NDArray[np.int64],  # of each sentence: the largest of its pieces, if cut
    varied: float,  # share of pieces that are smaller, down to half of `size`
    rng: np.random.Generator,
    planned: int | None,
) -> Pieces:
    lengths = np.diff(text.starts)
    long = np.flatnonzero(lengths > longest)
    if not len(long):
        return Pieces.of(text.starts, text.first_sentence, planned)
    most = size[long]
    least = (most + 1) // 2
    tries = lengths[long] // least
    owner = np.repeat(np.arange(len(long)), tries)
    sizes = least[owner] + (rng.random(len(owner)) * (most - least + 1)[owner]).astype(np.int64)
    sizes = np.where(rng.random(len(owner)) < varied, sizes, most[owner])
    ends = np.cumsum(sizes)
    before = np.concatenate([[0], ends])[np.cumsum(tries) - tries]
    inside = ends - before[owner]
    cuts = (text.starts[long][owner] + inside)[inside < lengths[long][owner]]
    starts = np.sort(np.concatenate([text.starts, cuts]))
    first = np.searchsorted(starts, text.starts[text.first_sentence])
    return Pieces.of(starts, first, planned)


def targets(
    pieces: Pieces, room: int, short_rate: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """The target length of an instance from each planned piece: `room`, or short at random."""
    count = len(pieces.document)
    short = rng.random(count) < short_rate
    return np.where(short, rng.integers(2, room + 1, count), room)


def full_rows(pieces: Pieces, row_size: int, frame_size: int) -> NDArray[np.int64]:
    """The end of a packed row that begins at each planned piece and may cross documents: at most
    `row_size` tokens, including `frame_size` for each document's part."""
    number = np.cumsum(np.diff(pieces.document, prepend=-1) != 0)  # counts documents with any piece
    planned = len(number)
    begins = pieces.starts[:planned] + frame_size * number
    ends = pieces.starts[1 : planned + 1] + frame_size * number
    last = np.searchsorted(ends, begins + row_size - frame_size, side="right")
    return np.maximum(last, np.arange(planned) + 1)


def chain(after: NDArray[np.int64]) -> NDArray[np.int64]:
    """The pieces where instances begin, from piece 0 on: `after[p]` follows p."""
    following, begins, at = after.tolist(), [], 0
    while at < len(following):
        begins.append(at)
        at = following[at]
    return np.array(begins, dtype=np.int64)


def tokens_unused(pieces: Pieces, segments: list[Spans], allowed: int) -> dict[str, int]:
    """Count the planned tokens, and those in none of `segments`. Raises DataError if these exceed
    `allowed`, or if a token is in two segments."""
    spans = np.concatenate(segments)
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    twice = int(np.maximum(spans[:-1, 1] - spans[1:, 0], 0).sum())
    check_bound("plan", "text tokens in two instances", twice, "exactly", 0)
    unused = pieces.num_tokens - int((spans[:, 1] - spans[:, 0]).sum())
    check_bound("plan", "text tokens in no instance", unused, "at least", 0)
    check_bound("plan", "text tokens in no instance", unused, "at most", allowed)
    return {"text_tokens": pieces.num_tokens, "tokens_unused": unused}


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
