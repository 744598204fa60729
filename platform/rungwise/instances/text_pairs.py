"""Pairs of texts of a task, each text by itself: what labelled pairs and aligned lines share. A
document of the text is a pair, its two sentences are the texts.

A row is stored as both texts, one after the other, without symbols; a column says how long the
first is. What lies behind the first `sentence_length` tokens of a text is cut and counted.

B batch, L tokens of a text
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rungwise.instances.batch import ArrayT, Batch
from rungwise.instances.contract import Facts, check_rows, must
from rungwise.instances.frame import gather
from rungwise.instances.kind import Built, Kind, Piece, unused_text
from rungwise.instances.masking import Vocabulary
from rungwise.instances.rows import PaddedRows
from rungwise.instances.shards import Shard
from rungwise.tokenizer import SpecialIds
from rungwise.tokens.text import TokenisedText

if TYPE_CHECKING:  # building shards needs no PyTorch
    from torch import Tensor

_LENGTH_MULTIPLE = 8


@dataclass(frozen=True)
class TextPairs(Batch[ArrayT]):
    """Pairs of texts, each text by itself."""

    # ids: (B, 2, L) int64, 0 from the length on
    lengths: ArrayT  # (B, 2) int64, tokens of each text

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    def micro_batches(self, bins: int, fixed_shapes: bool) -> Iterator[Self]:
        """Yield parts of pairs sorted by their longer text, as long as the longest of each."""
        longer = self.lengths.max(axis=1)
        for rows in np.array_split(np.argsort(longer, kind="stable"), bins):
            L = self.ids.shape[2]
            if not fixed_shapes:
                L = min(-(-int(longer[rows].max()) // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE, L)
            part = self._map(lambda array, rows=rows: array[rows])
            yield dataclasses.replace(part, ids=part.ids[:, :, :L])


class TextPairsKind(Kind):
    """The pairs of a task."""

    sentence_length: int = Field(default=64, ge=1, le=4096)  # tokens of a text; the rest is cut

    labelled: ClassVar[bool] = True

    @property
    def length(self) -> int:
        return 2 * self.sentence_length

    def build(
        self,
        text: TokenisedText,
        special: SpecialIds,
        rng: np.random.Generator,
        planned: int | None = None,
    ) -> Built:
        pairs = len(text.documents) if planned is None else planned
        starts = text.starts[: 2 * pairs + 1]
        lengths = np.diff(starts).reshape(pairs, 2)
        cut = np.minimum(lengths, self.sentence_length)
        (ids,) = gather([text.ids], starts[:-1].reshape(pairs, 2), cut)
        counts = {
            "text_tokens": int(lengths.sum()),
            "tokens_unused": int((lengths - cut).sum()),
            "texts_cut": int((lengths > cut).sum()),
        }
        columns = {"first_length": cut[:, 0].astype(np.uint16)}
        return Built(Shard(ids, np.append(0, np.cumsum(cut.sum(axis=1))), columns), counts)

    def check(self, shard: Shard, facts: Facts) -> dict[str, Any]:
        counts = check_rows(shard, facts, self.length, {})
        first = shard.columns["first_length"].astype(np.int64)
        lengths = np.stack([first, shard.lengths - first])
        shortest, longest = int(lengths.min(initial=1)), int(lengths.max(initial=0))
        most = self.sentence_length
        must(facts.name, "tokens of a text", shortest, "at least", 1, shortest >= 1)
        must(facts.name, "tokens of a text", longest, "at most", most, longest <= most)
        return counts

    def statistics(self, totals: dict[str, Any]) -> dict[str, int | float]:
        pairs = max(totals["instances"], 1)
        return {
            "texts_cut": totals["texts_cut"],
            "cut_share": totals["texts_cut"] / (2 * pairs),
            "fill": totals["tokens"] / (pairs * self.length),
            **unused_text(totals),
        }

    def headline(self, totals: dict[str, Any], statistics: dict[str, Any]) -> str:
        return (
            f"{statistics['cut_share']:.1%} of the texts cut at {self.sentence_length} "
            f"tokens  {statistics['unused_share']:.2%} of the text unused"
        )

    def batch(
        self, rows: PaddedRows, epochs: NDArray[np.int64], seed: int, vocabulary: Vocabulary
    ) -> TextPairs[NDArray[Any]]:
        """Split rows into their two texts."""
        first = rows.columns["first_length"].astype(np.int64)
        row, column = np.nonzero(np.arange(rows.ids.shape[1]) < rows.lengths[:, None])
        second = (column >= first[row]).astype(np.int64)
        ids = np.zeros((len(first), 2, self.sentence_length), dtype=np.int64)
        ids[row, second, column - second * first[row]] = rows.ids[row, column]
        return TextPairs(ids, np.stack([first, rows.lengths - first], axis=1))

    def random_batch(self, B: int, vocab_size: int) -> TextPairs[Tensor]:
        import torch

        ids = torch.randint(vocab_size, (B, 2, self.sentence_length))
        return TextPairs(ids, torch.full((B, 2), self.sentence_length))


def pair_pieces(batch: TextPairs[Any], row: int) -> list[Piece]:
    """The tokens of a pair for people to see."""
    return [
        Piece(token, "plain" if place else "opens", number)
        for number, length in enumerate(batch.lengths[row].tolist())
        for place, token in enumerate(batch.ids[row, number, :length].tolist())
    ]
