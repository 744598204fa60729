"""Masked blocks of which some are read from left to right instead: the rows of GPT-BERT
(Charpentier & Samuel 2024, arXiv:2410.24159).

A share `causal_share` of the rows is causal, `[CLS] A [SEP]` unmasked, in which every token after
the first is predicted; the others are masked blocks. The share may go to another one over the run,
in a straight line. Whether a row is causal is a function of seed, epoch and instance, and a row
that is causal at a share is so at a higher one.

B batch, T sequence
"""

import dataclasses
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rungwise.core.randomness import uniform
from rungwise.instances.batch import CausalAndMaskedBatch, CausalBatch, MaskedBatch
from rungwise.instances.blocks import MaskedBlocksConfig
from rungwise.instances.kind import ShownRow, Spell, WholeRow
from rungwise.instances.masking import Vocabulary
from rungwise.instances.shards import PaddedRows

_DRAW = 0xCA05  # separates the choice of rows from other random numbers


class CausalAndMaskedConfig(MaskedBlocksConfig):
    """Blocks of text, some masked, some read from left to right."""

    kind: Literal["causal_and_masked"] = "causal_and_masked"  # pyright: ignore[reportIncompatibleVariableOverride]
    causal_share: float = Field(default=0.5, ge=0, le=1)  # of the rows
    # share at the end of a run, to which it goes in a straight line; null: `causal_share`
    final_causal_share: float | None = Field(default=None, ge=0, le=1)

    @property
    def _shares(self) -> tuple[float, float]:
        last = self.final_causal_share
        return self.causal_share, self.causal_share if last is None else last

    @property
    def masked_per_row(self) -> float:
        """The mean number of tokens predicted in a full row."""
        share = sum(self._shares) / 2
        return share * self.length + (1 - share) * super().masked_per_row

    @property
    def changes(self) -> bool:
        return super().changes or self.final_causal_share is not None

    def at(self, progress: float) -> Self:
        first, last = self._shares
        share = first + progress * (last - first)
        return super().at(progress).model_copy(update={"causal_share": share})

    def batch(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, rows: PaddedRows, epochs: NDArray[np.int64], seed: int, vocabulary: Vocabulary
    ) -> CausalAndMaskedBatch[NDArray[Any]]:
        masked = super().batch(rows, epochs, seed, vocabulary)
        draws_B = uniform(seed, epochs, rows.instances, _DRAW)
        return CausalAndMaskedBatch(
            masked.originals(),
            rows.lengths,
            draws_B < self.causal_share,
            _next_tokens(masked),
            masked,
        )

    def random_batch(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, B: int, vocab_size: int
    ) -> CausalAndMaskedBatch[Any]:
        import torch

        is_causal = torch.arange(B) < (count := round(self.causal_share * B))
        ids_BT = torch.randint(vocab_size, (B, self.length))
        causal = masked = None
        if count:
            weights_BT = torch.ones(count, self.length)
            causal = CausalBatch(ids_BT[:count], ids_BT[:count].roll(-1, 1), weights_BT)
        if count < B:
            masked = super().random_batch(B - count, vocab_size)
        lengths_B = torch.full((B,), self.length)
        return CausalAndMaskedBatch(ids_BT, lengths_B, is_causal, causal, masked)

    def show(self, batch: Any, row: int, vocabulary: Vocabulary, spell: Spell) -> ShownRow:
        if not batch.is_causal[row]:
            return super().show(batch.masked, row, vocabulary, spell)
        nothing = np.zeros_like(batch.masked.masked_weights)
        whole = dataclasses.replace(batch.masked, ids=batch.ids, masked_weights=nothing)
        row_shown = super().show(whole, row, vocabulary, spell)
        length = int(batch.masked.lengths[row])
        return dataclasses.replace(row_shown, note=f"{length} tokens, read from left to right")

    def whole_row(self, batch: Any, row: int) -> WholeRow:
        return super().whole_row(batch.masked, row)


def _next_tokens(masked: MaskedBatch[NDArray[Any]]) -> CausalBatch[NDArray[Any]]:
    """The rows unmasked, each token with the one after it; nothing is predicted across texts."""
    assert masked.lengths is not None
    ids, T = masked.originals(), masked.ids.shape[1]
    place_BT = np.broadcast_to(np.arange(T), ids.shape)
    targets, weights = np.roll(ids, -1, axis=1), place_BT < masked.lengths[:, None] - 1
    document, positions = masked.document, masked.positions
    if document is None or positions is None:
        document, positions = np.zeros_like(ids), place_BT
    else:
        weights = weights & (document == np.roll(document, -1, axis=1))
    return CausalBatch(ids, targets, weights.astype(np.float32), document, positions)
