"""Masked pairs (BERT), masked blocks (RoBERTa) and sentence-order pairs (ALBERT)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from rungwise.core.arrays import Bools, Ints
from rungwise.core.errors import DataError
from rungwise.core.stages.artifact import PerSplit
from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.instances.kind import Built, Facts, check_bound
from rungwise.instances.masked_kind import MaskedKind
from rungwise.instances.shards import Shard, gather

Spans = Ints  # (rows, 2) begin and end in the ids of a text


@dataclass(frozen=True)
class Pieces:
    """The pieces of a text; documents from `planned` on only lend a B. Piece p is tokens
    [starts[p], starts[p + 1]), document d is pieces [first[d], first[d + 1])."""

    starts: Ints  # (P + 1,)
    first: Ints  # (D + 1,)
    planned: int
    num_tokens: int  # of the planned documents
    document: Ints  # of each planned piece
    end: Ints  # of each planned piece's document, in pieces

    @classmethod
    def of(cls, starts: Ints, first: Ints, planned: int | None) -> "Pieces":
        planned = len(first) - 1 if planned is None else planned
        document = np.repeat(np.arange(planned), np.diff(first[: planned + 1]))
        end = first[1:][document]
        return cls(starts, first, planned, int(starts[first[planned]]), document, end)

    def gathered(self, begin: Ints, end: Ints, budget: Ints) -> Ints:
        """The end of the pieces from `begin` on, up to `end`, that hold at most `budget` tokens. At
        least one piece is taken."""
        last = np.searchsorted(self.starts, self.starts[begin] + budget, side="right") - 1
        return np.clip(last, begin + 1, end)

    def span(self, begin: Ints, end: Ints) -> Spans:
        """The tokens of the pieces [begin, end)."""
        return np.stack([self.starts[begin], self.starts[end]], axis=1)


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
    size: Ints,  # of each sentence: the largest of its pieces, if cut
    varied: float,  # share of pieces that are smaller, down to half of `size`
    rng: np.random.Generator,
    planned: int | None,
) -> Pieces:
    """Cut the sentences of more than `longest` tokens into pieces."""
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


def targets(pieces: Pieces, room: int, short_rate: float, rng: np.random.Generator) -> Ints:
    """The target length of an instance from each planned piece: `room`, or short at random."""
    count = len(pieces.document)
    short = rng.random(count) < short_rate
    return np.where(short, rng.integers(2, room + 1, count), room)


def full_rows(pieces: Pieces, row_size: int, frame_size: int) -> Ints:
    """The end of a packed row that begins at each planned piece and may cross documents: at most
    `row_size` tokens, including `frame_size` for each document's part."""
    number = np.cumsum(np.diff(pieces.document, prepend=-1) != 0)  # counts documents with any piece
    planned = len(number)
    begins = pieces.starts[:planned] + frame_size * number
    ends = pieces.starts[1 : planned + 1] + frame_size * number
    last = np.searchsorted(ends, begins + row_size - frame_size, side="right")
    return np.maximum(last, np.arange(planned) + 1)


def chain(after: Ints) -> Ints:
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
    bits = np.packbits(unit_starts[0], bitorder="little") if unit_starts else None
    return Shard(ids, offsets, columns, bits)


class MaskedBlocksConfig(MaskedKind):
    """Blocks of text, masked."""

    segments: ClassVar = 1

    kind: Literal["masked_blocks"] = "masked_blocks"
    packed: bool = False  # rows hold the texts of several documents, and short_rate shortens none

    @property
    def holds_several_texts(self) -> bool:
        return self.packed

    def build(
        self, text: TokenisedText, special: SpecialIds, rng: Generator, planned: int | None = None
    ) -> Built:
        # Whole sentences of one document (DOC-SENTENCES of Liu et al. 2019, arXiv:1907.11692), or
        # packed, FULL-SENTENCES, but attention stays within each text and positions restart.
        room = self.sequence_length - 2
        short_rate = 0.0 if self.packed else self.short_rate
        size = np.full(len(text.starts) - 1, room)
        pieces = _cut(text, room, size, short_rate, rng, planned)
        begin = np.arange(len(pieces.document))
        if self.packed:
            last = full_rows(pieces, self.sequence_length, frame_size=2)
        else:
            last = pieces.gathered(begin, pieces.end, targets(pieces, room, short_rate, rng))
        begin = chain(last)
        # A text begins at each row; in packed rows, also at each document.
        opens = np.union1d(begin, np.flatnonzero(np.diff(pieces.document, prepend=-1)))
        texts = opens if self.packed else begin
        spans = pieces.span(texts, np.append(texts[1:], len(last)))
        counts = tokens_unused(pieces, [spans], allowed=0)
        columns = {"document": text.documents[pieces.document[begin]]}
        framed = frame_rows(text, [spans], special, columns)
        rows = np.append(np.searchsorted(texts, begin), len(texts))
        return Built(replace(framed, offsets=framed.offsets[rows]), counts)


_OWED_AT_MOST = 8  # surplus of NotNext pairs at which single sentences are split
_PAIRS_A_DEBT = 32  # the surplus allowed grows by one per so many pairs
_TIMES_DRAWN = 8  # draws of a B whose first sentence is too long, before it is cut


class MaskedPairsConfig(MaskedKind):
    """Pairs of texts, masked, for next-sentence prediction, as in BERT."""

    needs_other_documents: ClassVar = True

    kind: Literal["masked_pairs"] = "masked_pairs"

    def check_documents(self, documents: PerSplit) -> None:
        if min(documents.train, documents.validation) < 2:
            raise DataError(
                f"next-sentence pairs need documents to draw B from, but the corpus holds "
                f"{documents.train} for training and {documents.validation} held out; set "
                "instances.kind=masked_blocks (and pretrain.objective=mlm), or add documents"
            )

    def build(
        self, text: TokenisedText, special: SpecialIds, rng: Generator, planned: int | None = None
    ) -> Built:
        # As Devlin et al. 2019, appendix A.2, but where google-research/bert truncates, a pair and
        # a random B end before the sentence that would overshoot, and long sentences are cut into
        # pieces: no token is lost, and lengths do not reveal the label. Targets are drawn per pair.
        # A document that ends in a single sentence can only give NotNext; a later pair is made
        # IsNext in return, or, if too many are owed, the sentence is split.
        room = self.sequence_length - 3
        pieces = in_half_rows(text, room, rng, planned)
        target = targets(pieces, room, self.short_rate, rng)
        first = np.arange(len(target))
        last = pieces.gathered(first, pieces.end, target)
        last = np.minimum(np.maximum(last, first + 2), pieces.end)
        middle = first + rng.integers(1, np.maximum(last - first, 2))
        lengths = np.diff(pieces.starts[: len(first) + 1])
        first, is_next = _chain(last, middle, lengths, rng.random(len(first)) < 0.5)

        lone = last[first] - first == 1
        begin, cut, end = (pieces.starts[at] for at in (first, middle[first], last[first]))
        split = lone & is_next
        cut[split] = rng.integers(begin[split] + 1, end[split])
        a, b = np.stack([begin, cut], axis=1), np.stack([cut, end], axis=1)
        counts = tokens_unused(pieces, [a, b[is_next]], allowed=0)

        document = pieces.document[first]
        other = document.copy()
        free = room - (cut - begin)
        target_b = np.maximum(target[first] - (cut - begin), end - cut)
        elsewhere = np.flatnonzero(~is_next)
        limit = np.where(lone, free, target_b)[elsewhere]
        other[elsewhere], at = _other_places(pieces, document[elsewhere], limit, rng)
        to = pieces.gathered(at, pieces.first[other[elsewhere] + 1], target_b[elsewhere])
        spans = pieces.span(at, to)
        too_long = spans[:, 1] - spans[:, 0] > free[elsewhere]
        spans[:, 1] = np.minimum(spans[:, 1], spans[:, 0] + free[elsewhere])
        b[elsewhere] = spans
        columns = {
            "is_next": is_next.astype(np.uint8),
            "document_a": text.documents[document],
            "document_b": text.documents[other],
        }
        shard = frame_rows(text, [a, b], special, columns)
        return Built(shard, counts | {"b_cut": int(too_long.sum())})

    def check(self, shard: Shard, facts: Facts) -> dict[str, Any]:
        same = shard.columns["document_a"] == shard.columns["document_b"]
        is_next = shard.columns["is_next"].astype(bool)
        for figure, count in (
            ("NotNext pairs with B from the document of A", int((same & ~is_next).sum())),
            ("IsNext pairs with B from another document", int((~same & is_next).sum())),
        ):
            facts.check(figure, count, "exactly", 0)
        return super().check(shard, facts)

    def statistics(self, totals: dict[str, Any]) -> dict[str, int | float]:
        b_cut_share = totals["b_cut"] / totals["instances"]
        return {**super().statistics(totals), "b_cut_share": b_cut_share}


def _chain(last: Ints, middle: Ints, lengths: Ints, random: Bools) -> tuple[Ints, Bools]:
    """The first piece of each pair, and whether its B follows A. For a pair from piece p on,
    `middle[p]` is the first piece of B if B follows, and of the next pair if not; `last[p]` is the
    end; `random[p]` asks for a random B."""
    ends, middles, tokens, coins = (x.tolist() for x in (last, middle, lengths, random))
    first: list[int] = []
    is_next: list[bool] = []
    at = owed = 0
    while at < len(ends):
        first.append(at)
        follows = not coins[at]
        if ends[at] - at > 1:
            if owed and not follows:
                owed -= 1
                follows = True
        elif follows and (
            tokens[at] == 1 or owed < min(_OWED_AT_MOST, 1 + len(first) // _PAIRS_A_DEBT)
        ):
            owed += 1
            follows = False
        is_next.append(follows)
        at = ends[at] if follows else middles[at]
    return np.array(first, dtype=np.int64), np.array(is_next, dtype=bool)


def _other_places(pieces: Pieces, document: Ints, limit: Ints, rng: Generator) -> tuple[Ints, Ints]:
    """A place for the B of each document: another document (a lent one, if any), and its piece. A
    piece of more than `limit` tokens is drawn again with its document, `_TIMES_DRAWN` times."""
    other, at = np.empty_like(document), np.empty_like(document)
    todo = np.arange(len(document))
    documents = len(pieces.first) - 1
    for _ in range(_TIMES_DRAWN):
        if pieces.planned < documents:
            choice = rng.integers(pieces.planned, documents, len(todo))
        else:
            choice = rng.integers(0, documents - 1, len(todo))
            choice += choice >= document[todo]
        other[todo] = choice
        at[todo] = rng.integers(pieces.first[choice], pieces.first[choice + 1])
        todo = todo[pieces.starts[at[todo] + 1] - pieces.starts[at[todo]] > limit[todo]]
    return other, at


class SentenceOrderConfig(MaskedKind):
    """Pairs of consecutive texts, masked, half of them swapped, as in ALBERT."""

    kind: Literal["sentence_order"] = "sentence_order"

    def build(
        self, text: TokenisedText, special: SpecialIds, rng: Generator, planned: int | None = None
    ) -> Built:
        # Lan et al. 2020, ALBERT, arXiv:1909.11942. A pair that would leave a lone sentence behind
        # gives it its own last one, or absorbs it; a document of one sentence is cut in two. A
        # document of one token has no order; such tokens are left out and counted.
        room = self.sequence_length - 3
        pieces = in_half_rows(text, room, rng, planned)
        begin = np.arange(len(pieces.document))
        target = targets(pieces, room, self.short_rate, rng)
        last = np.minimum(
            np.maximum(pieces.gathered(begin, pieces.end, target), begin + 2), pieces.end
        )
        lone_left = last == pieces.end - 1
        fits = pieces.starts[pieces.end] - pieces.starts[begin] <= room
        last = np.where(
            lone_left & (last - begin > 2), last - 1, np.where(lone_left & fits, pieces.end, last)
        )

        begin = chain(last)
        first, end = pieces.starts[begin], pieces.starts[last[begin]]
        count = last[begin] - begin
        middle = np.where(
            count > 1,
            pieces.starts[begin + rng.integers(1, np.maximum(count, 2))],
            (first + end) // 2,
        )
        divisible = middle > first
        spans = np.stack([first, middle, middle, end], axis=1)[divisible]
        counts = tokens_unused(pieces, [spans[:, :2], spans[:, 2:]], allowed=pieces.planned)
        in_order = rng.random(len(spans)) < 0.5
        turned = np.where(in_order[:, None], spans, spans[:, [2, 3, 0, 1]])
        columns = {
            "in_order": in_order.astype(np.uint8),
            "document": text.documents[pieces.document[begin[divisible]]],
        }
        return Built(frame_rows(text, [turned[:, :2], turned[:, 2:]], special, columns), counts)
