"""Documents as rows, for models that read a document as one sequence, such as a sequence
auto-encoder (Dai & Le 2015, arXiv:1511.01432). What is shuffled is the document.

A row is a document's tokens without symbols; what lies behind the first `sequence_length` tokens is
cut and counted.

B batch, T sequence
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rungwise.core.plural import counted
from rungwise.instances.batch import ArrayT, Batch
from rungwise.instances.contract import Facts, check_rows
from rungwise.instances.frame import gather
from rungwise.instances.kind import Built, Kind, Piece, ShownRow, unused_text
from rungwise.instances.masking import Vocabulary
from rungwise.instances.rows import PaddedRows
from rungwise.instances.shards import Shard
from rungwise.tokenizer import SpecialIds
from rungwise.tokens.text import TokenisedText

if TYPE_CHECKING:  # building shards needs no PyTorch
    from torch import Tensor

_LENGTH_MULTIPLE = 8


@dataclass(frozen=True)
class DocumentRows(Batch[ArrayT]):
    """A document in each row."""

    # ids: (B, T) int64, 0 from the length on
    lengths: ArrayT  # (B,) int64, tokens of each document

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    def micro_batches(self, bins: int, fixed_shapes: bool) -> Iterator[DocumentRows[ArrayT]]:
        """Yield parts of documents sorted by length, as long as the longest of each."""
        for rows in np.array_split(np.argsort(self.lengths, kind="stable"), bins):
            T = self.ids.shape[1]
            if not fixed_shapes:
                longest = int(self.lengths[rows].max())
                T = min(-(-longest // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE, T)
            part: DocumentRows[Any] = DocumentRows(self.ids[rows, :T], self.lengths[rows])
            yield part


class DocumentRowsConfig(Kind):
    """Whole documents, each a row."""

    kind: Literal["document_rows"] = "document_rows"
    # tokens of a document; the rest is cut
    sequence_length: int = Field(default=512, ge=1, le=1 << 20)

    @property
    def length(self) -> int:
        return self.sequence_length

    def build(
        self,
        text: TokenisedText,
        special: SpecialIds,
        rng: np.random.Generator,
        planned: int | None = None,
    ) -> Built:
        first = text.first_sentence if planned is None else text.first_sentence[: planned + 1]
        starts = text.starts[first]
        lengths = np.diff(starts)
        cut = np.minimum(lengths, self.sequence_length)
        (ids,) = gather([text.ids], starts[:-1, None], cut[:, None])
        counts = {
            "text_tokens": int(lengths.sum()),
            "tokens_unused": int((lengths - cut).sum()),
            "documents_cut": int((lengths > cut).sum()),
        }
        columns = {"document": text.documents[: len(lengths)]}
        return Built(Shard(ids, np.append(0, np.cumsum(cut)), columns), counts)

    def check(self, shard: Shard, facts: Facts) -> dict[str, Any]:
        return check_rows(shard, facts, self.length, {})

    def statistics(self, totals: dict[str, Any]) -> dict[str, int | float]:
        documents = max(totals["instances"], 1)
        return {
            "documents_cut": totals["documents_cut"],
            "cut_share": totals["documents_cut"] / documents,
            "fill": totals["tokens"] / (documents * self.length),
            **unused_text(totals),
        }

    def headline(self, totals: dict[str, Any], statistics: dict[str, Any]) -> str:
        return (
            f"{statistics['cut_share']:.1%} cut at {self.sequence_length} tokens  "
            f"{statistics['unused_share']:.2%} of the text unused"
        )

    def batch(
        self, rows: PaddedRows, epochs: NDArray[np.int64], seed: int, vocabulary: Vocabulary
    ) -> DocumentRows[NDArray[Any]]:
        real = np.arange(rows.ids.shape[1]) < rows.lengths[:, None]
        return DocumentRows(np.where(real, rows.ids, 0).astype(np.int64), rows.lengths)

    def random_batch(self, B: int, vocab_size: int) -> DocumentRows[Tensor]:
        import torch

        shape = (B, self.sequence_length)
        return DocumentRows(torch.randint(vocab_size, shape), torch.full((B,), shape[1]))

    def show(
        self, batch: Any, row: int, vocabulary: Vocabulary, spell: Callable[[int], str]
    ) -> ShownRow:
        ids = batch.ids[row, : int(batch.lengths[row])].tolist()
        return ShownRow([Piece(token) for token in ids], f"{counted(len(ids), 'token')}")
