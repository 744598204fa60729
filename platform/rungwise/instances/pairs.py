"""Masked pairs (BERT), masked blocks (RoBERTa) and sentence-order pairs (ALBERT)."""

from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field

from rungwise.core.errors import DataError
from rungwise.core.stages.summary import PerSplit
from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.instances import plan
from rungwise.instances.kind import Built, Facts, Figure, check_bound
from rungwise.instances.masked_kind import MaskedKind
from rungwise.instances.masking import Vocabulary
from rungwise.instances.plan import Pieces
from rungwise.instances.shards import Shard


class MaskedBlocksConfig(MaskedKind):
    """Blocks of text, masked."""

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
        pieces = plan.in_rows(text, room, short_rate, rng, planned)
        begin = np.arange(len(pieces.document))
        if self.packed:
            last = plan.full_rows(pieces, self.sequence_length, frame_size=2)
        else:
            last = pieces.gathered(begin, pieces.end, plan.targets(pieces, room, short_rate, rng))
        begin = plan.chain(last)
        # A text begins at each row; in packed rows, also at each document.
        opens = np.union1d(begin, np.flatnonzero(np.diff(pieces.document, prepend=-1)))
        texts = opens if self.packed else begin
        spans = pieces.span(texts, np.append(texts[1:], len(last)))
        counts = plan.tokens_unused(pieces, [spans], allowed=0)
        columns = {"document": text.documents[pieces.document[begin]]}
        framed = plan.frame_rows(text, [spans], special, columns)
        rows = np.append(np.searchsorted(texts, begin), len(texts))
        return Built(replace(framed, offsets=framed.offsets[rows]), counts)

    @property
    def segments(self) -> int | None:
        return None if self.packed else 1

    def opens_text(self, vocabulary: Vocabulary) -> int | None:
        return vocabulary.special.cls if self.packed else None


_OWED_AT_MOST = 8  # surplus of NotNext pairs at which single sentences are split
_PAIRS_A_DEBT = 32  # the surplus allowed grows by one per so many pairs
_TIMES_DRAWN = 8  # draws of a B whose first sentence is too long, before it is cut


class MaskedPairsConfig(MaskedKind):
    """Pairs of texts, masked, for next-sentence prediction, as in BERT."""

    needs_other_documents: ClassVar = True
    answers: ClassVar = ("B is from another document", "B follows A in its document")

    kind: Literal["masked_pairs"] = "masked_pairs"
    dupe_factor: int = Field(default=1, ge=1)  # passes over the text, each with different pairs

    @property
    def passes(self) -> int:
        return self.dupe_factor

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
        documents = len(text.first_sentence) - 1
        if documents < 2:
            raise DataError(
                "a next-sentence pair needs a B from another document, but a shard holds "
                f"{documents} document; set instances.kind=masked_blocks, add documents, or "
                "raise corpus.shard_megabytes"
            )
        # As Devlin et al. 2019, appendix A.2, but where google-research/bert truncates, a pair and
        # a random B end before the sentence that would overshoot, and long sentences are cut into
        # pieces: no token is lost, and lengths do not reveal the label. Targets are drawn per pair.
        # A document that ends in a single sentence can only give NotNext; a later pair is made
        # IsNext in return, or, if too many are owed, the sentence is split.
        room = self.sequence_length - 3
        pieces = plan.in_half_rows(text, room, rng, planned)
        target = plan.targets(pieces, room, self.short_rate, rng)
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
        counts = plan.tokens_unused(pieces, [a, b[is_next]], allowed=0)

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
        shard = plan.frame_rows(text, [a, b], special, columns)
        return Built(shard, counts | {"b_cut": int(too_long.sum())})

    def check(self, shard: Shard, facts: Facts) -> dict[str, Any]:
        same = shard.columns["document_a"] == shard.columns["document_b"]
        is_next = shard.columns["is_next"].astype(bool)
        for figure, count in (
            ("NotNext pairs with B from the document of A", int((same & ~is_next).sum())),
            ("IsNext pairs with B from another document", int((~same & is_next).sum())),
        ):
            check_bound(facts.name, figure, count, "exactly", 0)
        return super().check(shard, facts)

    def statistics(self, totals: dict[str, Any]) -> dict[str, int | float]:
        b_cut_share = totals["b_cut"] / totals["instances"]
        return {**super().statistics(totals), "b_cut_share": b_cut_share}

    def label_figures(self, statistics: dict[str, Any]) -> list[Figure]:
        return [Figure("pairs where B follows A", statistics["is_next_share"], 0.5, "50%")]


def _chain(
    last: NDArray[np.int64],
    middle: NDArray[np.int64],
    lengths: NDArray[np.int64],
    random: NDArray[np.bool_],
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
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


def _other_places(
    pieces: Pieces, document: NDArray[np.int64], limit: NDArray[np.int64], rng: Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
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

    answers: ClassVar = ("A and B are swapped", "A and B are in order")

    kind: Literal["sentence_order"] = "sentence_order"

    def build(
        self, text: TokenisedText, special: SpecialIds, rng: Generator, planned: int | None = None
    ) -> Built:
        # Lan et al. 2020, ALBERT, arXiv:1909.11942. A pair that would leave a lone sentence behind
        # gives it its own last one, or absorbs it; a document of one sentence is cut in two. A
        # document of one token has no order; such tokens are left out and counted.
        room = self.sequence_length - 3
        pieces = plan.in_half_rows(text, room, rng, planned)
        begin = np.arange(len(pieces.document))
        target = plan.targets(pieces, room, self.short_rate, rng)
        last = np.minimum(
            np.maximum(pieces.gathered(begin, pieces.end, target), begin + 2), pieces.end
        )
        lone_left = last == pieces.end - 1
        fits = pieces.starts[pieces.end] - pieces.starts[begin] <= room
        last = np.where(
            lone_left & (last - begin > 2), last - 1, np.where(lone_left & fits, pieces.end, last)
        )

        begin = plan.chain(last)
        first, end = pieces.starts[begin], pieces.starts[last[begin]]
        count = last[begin] - begin
        middle = np.where(
            count > 1,
            pieces.starts[begin + rng.integers(1, np.maximum(count, 2))],
            (first + end) // 2,
        )
        divisible = middle > first
        spans = np.stack([first, middle, middle, end], axis=1)[divisible]
        counts = plan.tokens_unused(pieces, [spans[:, :2], spans[:, 2:]], allowed=pieces.planned)
        in_order = rng.random(len(spans)) < 0.5
        turned = np.where(in_order[:, None], spans, spans[:, [2, 3, 0, 1]])
        columns = {
            "in_order": in_order.astype(np.uint8),
            "document": text.documents[pieces.document[begin[divisible]]],
        }
        return Built(
            plan.frame_rows(text, [turned[:, :2], turned[:, 2:]], special, columns), counts
        )

    def label_figures(self, statistics: dict[str, Any]) -> list[Figure]:
        return [Figure("pairs in order", statistics["in_order_share"], 0.5)]
