"""Masked pairs (BERT), masked blocks (RoBERTa) and sentence-order pairs (ALBERT)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rungwise.core.arrays import Bools, Ints
from rungwise.core.errors import BlockError, DataError
from rungwise.core.stages.artifact import PerSplit
from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.instances.batch import MaskedBatch
from rungwise.instances.kind import Built, ContractShare, Facts, Kind, check_bound, check_shares
from rungwise.instances.masking import MaskingConfig, Vocabulary, expected_predictions, mask
from rungwise.instances.shards import PaddedRows, Shard, gather, pad_rows
from rungwise.tokenizer.mask_units import MaskUnitsConfig
from rungwise.tokenizer.token_stage import TokensConfig
from rungwise.tokenizer.token_text import document_hash

_ROWS_AT_ONCE = 1024
_TOKENS_MASKED = 1 << 19
_TOKENS_A_SPAN = 10.0  # which share one 80/10/10 draw
_LABELS = {"is_next": "share of IsNext pairs", "in_order": "share of pairs in order"}
Spans = Ints  # (rows, 2) begin and end in the ids of a text
_OWED_AT_MOST = 8  # surplus of NotNext pairs at which single sentences are split
_PAIRS_A_DEBT = 32  # the surplus allowed grows by one per so many pairs
_TIMES_DRAWN = 8  # draws of a B whose first sentence is too long, before it is cut


class MaskedKind(Kind):
    """The keys of every masked kind."""

    segments: ClassVar[int] = 2  # of each text of a row

    # tokens per row, special tokens included
    sequence_length: int = Field(default=128, ge=8, le=65_535)
    # share of the rows with a shorter, random target length
    short_rate: float = Field(default=0.1, ge=0, le=1)
    masking: MaskingConfig = MaskingConfig()  # which tokens to mask, and how
    mask_units: MaskUnitsConfig = MaskUnitsConfig()  # what counts as a word in masking

    @model_validator(mode="after")
    def _room_for_predictions(self) -> Self:
        rate = self.masking.rate
        needed = math.floor(rate * (self.sequence_length - 3))
        if needed > self.masking.max_predictions:
            raise BlockError(
                f"masking.rate {rate} of sequence_length {self.sequence_length} is "
                f"{needed} predictions, more than masking.max_predictions "
                f"{self.masking.max_predictions}",
                {"masking.max_predictions": needed + 1},
            )
        return self

    @property
    def length(self) -> int:
        return self.sequence_length

    @property
    def masked_per_row(self) -> float:
        return min(self.masking.rate * self.sequence_length, self.masking.max_predictions)

    @property
    def tokens(self) -> TokensConfig:
        if self.masking.unit == "token":
            return TokensConfig()
        return TokensConfig(units=True, mask_units=self.mask_units)

    @property
    def identity(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"mask_units"})

    def check(self, shard: Shard, facts: Facts) -> dict[str, Any]:
        """Check frame, masks and labels of a shard. The counts are those of `check_rows`, the sums
        of labels, `too_small_to_say` (0 or 1), and those of the masks drawn."""
        cls_id, sep_id = facts.special.require("cls", "sep")
        rows = len(shard)
        first, last = shard.offsets[:-1], shard.offsets[1:] - 1
        texts = rows
        if self.holds_several_texts:
            opens, closes = shard.ids[1:] == cls_id, shard.ids[:-1] == sep_id
            apart = int((opens != closes).sum())
            facts.check("[SEP] and [CLS] that are not neighbours", apart, "exactly", 0)
            texts = 1 + int(opens.sum())
        symbols = {cls_id: texts, sep_id: self.segments * texts}
        counts = facts.check_rows(shard, self.length, symbols)
        begin = int((shard.ids[first] == cls_id).sum())
        facts.check("instances that begin with [CLS]", begin, "exactly", rows)
        ends = shard.ids[last] == sep_id
        if "a_length" in shard.columns:
            middle = first + shard.columns["a_length"].astype(np.int64) - 1
            ends &= shard.ids[np.clip(middle, 0, len(shard.ids) - 1)] == sep_id
        what = "instances whose A and last segment end with [SEP]"
        facts.check(what, int(ends.sum()), "exactly", rows)
        counts |= self._count_masks(shard, facts)
        counts |= {
            name: int(shard.columns[name].sum()) for name in _LABELS if name in shard.columns
        }
        most = counts["most_predictions"]
        facts.check("predictions of an instance", most, "at most", self.masking.max_predictions)
        counts["too_small_to_say"] = int(bool(check_shares(facts.name, self.shares(counts))))
        return counts

    def shares(self, counts: dict[str, Any]) -> list[ContractShare]:
        """The shares that the counts of a shard, or their sums over all shards, must keep."""
        masking = self.masking
        candidates, selected = counts["candidates"], counts["selected"]
        to_mask, to_random, rows = counts["to_mask"], counts["to_random"], counts["instances"]
        a_draw = _TOKENS_A_SPAN if masking.unit == "span" else 1.0
        rate = counts["expected"] / max(candidates, 1)
        prefix = "share of selected made"
        return [
            ContractShare("share of tokens selected", selected, candidates, rate, 0.003, a_draw),
            ContractShare(f"{prefix} [MASK]", to_mask, selected, masking.mask_share, 0.01, a_draw),
            ContractShare(
                f"{prefix} random", to_random, selected, masking.random_share, 0.01, a_draw
            ),
            *(
                ContractShare(figure, counts[label], rows, 0.5, 0.01)
                for label, figure in _LABELS.items()
                if label in counts
            ),
        ]

    def statistics(self, totals: dict[str, Any]) -> dict[str, int | float]:
        selected, instances = max(totals["selected"], 1), max(totals["instances"], 1)
        labels = {f"{name}_share": totals[name] / instances for name in _LABELS if name in totals}
        return {
            "selected_share": totals["selected"] / max(totals["candidates"], 1),
            "mask_share": totals["to_mask"] / selected,
            "random_share": totals["to_random"] / selected,
            "kept_share": totals["kept"] / selected,
            "most_predictions": totals["most_predictions"],
            "fill": totals["tokens"] / (instances * self.sequence_length),
            **self.count_unused_tokens(totals),
            "shards_too_small_to_say": totals["too_small_to_say"],
            **labels,
        }

    def headline(self, totals: dict[str, Any], statistics: dict[str, Any]) -> str:
        """One line: `mlm 15.0% (80.0/10.0/10.0)`, label balance, unused text, unchecked shares."""
        too_small = check_shares("all shards", self.shares(totals))
        text = (
            f"mlm {statistics['selected_share']:.1%} ({statistics['mask_share'] * 100:.1f}/"
            f"{statistics['random_share'] * 100:.1f}/{statistics['kept_share'] * 100:.1f})"
        )
        for key, name in (("is_next_share", "nsp"), ("in_order_share", "in order")):
            if key in statistics:
                text += f"  {name} {statistics[key]:.1%}"
        text += f"  {statistics['unused_share']:.2%} of the text unused"
        if too_small:
            text += f"  too few instances to check the {', the '.join(too_small)}"
        return text

    def batch(self, rows: PaddedRows, epochs: Ints, seed: int, vocab: Vocabulary) -> MaskedBatch:
        """Mask the rows for these epochs (B,), or for epoch 0 if masking is static."""
        masked = mask(rows, epochs, seed, vocab, self.masking)
        column = np.arange(rows.ids.shape[1])[None, :]
        real = column < rows.lengths[:, None]
        segments = np.zeros(rows.ids.shape, dtype=np.int64)
        if "a_length" in rows.columns:
            in_b = column >= rows.columns["a_length"].astype(np.int64)[:, None]
            segments = (in_b & real).astype(np.int64)
        label = rows.columns.get("is_next", rows.columns.get("in_order"))
        document = positions = None
        if self.holds_several_texts:
            opens = (rows.ids == vocab.special.cls) & real
            document = np.cumsum(opens, axis=1) * real
            begins = np.where(opens | (column == rows.lengths[:, None]), column, 0)
            positions = column - np.maximum.accumulate(begins, axis=1)
        return MaskedBatch(
            masked.ids,
            segments,
            rows.lengths,
            masked.positions,
            masked.targets,
            masked.weights,
            np.ones(len(rows.ids), np.int64) if label is None else label.astype(np.int64),
            document,
            positions,
        )

    def _count_masks(self, shard: Shard, facts: Facts) -> dict[str, int]:
        """Draw the masks of epoch 0, and count what became of which tokens. Rows are numbered from
        a place of the shard's own: small shards that shared draws would share their luck too."""
        names = ("candidates", "selected", "to_mask", "to_random", "kept", "most_predictions")
        counts: dict[str, int] = dict.fromkeys(names, 0)
        expected = 0.0
        vocab = Vocabulary(facts.vocab_size, facts.special)
        ordinary = np.ones(facts.vocab_size, dtype=bool)
        ordinary[list(facts.special.ids)] = False
        sample = np.arange(0, len(shard), max(1, len(shard.ids) // _TOKENS_MASKED))
        first_number = document_hash(facts.name) >> 2
        for begin in range(0, len(sample), _ROWS_AT_ONCE):
            local = sample[begin : begin + _ROWS_AT_ONCE]
            rows = pad_rows(shard, local, first_number + local, self.length, vocab.id_of("pad"))
            masked = mask(rows, np.zeros_like(local), facts.seed, vocab, self.masking)
            real = masked.weights > 0
            now = np.take_along_axis(masked.ids, masked.positions, axis=1)[real]
            before = masked.targets[real]
            candidates = ordinary[rows.ids].sum(axis=1)  # padding is special
            expected += float(expected_predictions(candidates, self.masking).sum())
            counts["candidates"] += int(candidates.sum())
            counts["selected"] += int(real.sum())
            is_mask = now == vocab.id_of("mask")
            counts["to_mask"] += int(is_mask.sum())
            counts["to_random"] += int((~is_mask & (now != before)).sum())
            counts["kept"] += int((now == before).sum())
            most = int(real.sum(axis=1).max(initial=0))
            counts["most_predictions"] = max(counts["most_predictions"], most)
        return {**counts, "expected": round(expected)}


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
    def of(cls, starts: Ints, first: Ints, planned: int) -> "Pieces":
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


def in_half_rows(text: TokenisedText, room: int, rng: np.random.Generator, planned: int) -> Pieces:
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
    planned: int,
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

    def make(self, text: TokenisedText, special: SpecialIds, rng: Generator, planned: int) -> Built:
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

    def make(self, text: TokenisedText, special: SpecialIds, rng: Generator, planned: int) -> Built:
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

    def make(self, text: TokenisedText, special: SpecialIds, rng: Generator, planned: int) -> Built:
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
