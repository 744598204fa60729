"""Batches of masked pairs, masked blocks and sentence-order pairs.

B batch, T sequence, M masked positions
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rungwise.instances.batch import ArrayT, Batch, document_starts

_LENGTH_MULTIPLE = 8


@dataclass(frozen=True)
class MaskedBatch(Batch[ArrayT]):
    """Masked rows. Micro-batches whose rows are all full have no `lengths`, which the host knows;
    reading it from a tensor on an accelerator would stall each step."""

    # ids: (B, T) int64, masked already
    segments: ArrayT  # (B, T) int64, 0 or 1; 0 at padding
    lengths: ArrayT | None  # (B,) int64, later positions are padding
    masked_positions: ArrayT  # (B, M) int64, filled up with 0
    masked_ids: ArrayT  # (B, M) int64, the original tokens, filled up with 0
    masked_weights: ArrayT  # (B, M) float32, 1 for a masked position, 0 for the filling
    label: ArrayT  # (B,) int64, 1 IsNext or in order, 0 NotNext or swapped; 1 without pairs
    # For packed rows; None if each row holds one text. Padding counts as a text.
    document: ArrayT | None = None  # (B, T) int64, which text of the row, from 1; 0 at padding
    positions: ArrayT | None = None  # (B, T) int64, from the beginning of the text
    starts: ArrayT | None = None  # (S + 1,) int32, see `document_starts`
    # For losses that compare all rows of the global batch (contrastive.py).
    vectors: ArrayT | None = None  # (2, N, D) of all its rows, without a graph
    place: ArrayT | None = None  # (B,) int64, indices of these rows among them

    @classmethod
    def to_predict(
        cls, ids_BT: Any, segments_BT: Any, lengths_B: Any, positions_BM: Any
    ) -> MaskedBatch[Any]:
        """Rows whose masked tokens a model predicts, and nobody knows; no segments: all are 0."""
        return MaskedBatch(
            ids=ids_BT,
            segments=ids_BT * 0 if segments_BT is None else segments_BT,
            lengths=lengths_B,
            masked_positions=positions_BM,
            masked_ids=positions_BM * 0,
            masked_weights=positions_BM * 0.0,
            label=ids_BT[:, 0] * 0,
        )

    @property
    def tokens(self) -> int:
        return math.prod(self.ids.shape) if self.lengths is None else int(self.lengths.sum())

    def predicted_ids(self) -> NDArray[np.int64]:
        return self.masked_ids[self.masked_weights > 0]

    def of_varying_size(self) -> tuple[ArrayT, ...]:
        return () if self.starts is None else (self.starts,)

    def originals(self) -> NDArray[np.int64]:
        """The ids (B, T) before masking, of NumPy arrays."""
        ids = self.ids.copy()
        row, column = np.nonzero(self.masked_weights)
        ids[row, self.masked_positions[row, column]] = self.masked_ids[row, column]
        return ids

    def micro_batches(self, bins: int, fixed_shapes: bool) -> Iterator[MaskedBatch[ArrayT]]:
        """Yield parts of rows of similar length, as long as the longest of them."""
        assert self.lengths is not None
        by_length = np.argsort(self.lengths, kind="stable")
        for rows in np.array_split(by_length, bins):
            lengths, weights = self.lengths[rows], self.masked_weights[rows]
            width, used = self.segments.shape[1], weights.shape[1]
            if not fixed_shapes:
                longest = int(lengths.max())
                width = min(-(-longest // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE, width)
                used = int(weights.sum(axis=1).max())
            document = positions = starts = None
            if self.document is not None and self.positions is not None:
                document, positions = self.document[rows, :width], self.positions[rows, :width]
                starts = document_starts(document, lengths)
            padded = fixed_shapes or bool((lengths < width).any())
            part: MaskedBatch[Any] = MaskedBatch(
                ids=self.ids[rows, :width],
                segments=self.segments[rows, :width],
                lengths=lengths if padded and document is None else None,
                masked_positions=self.masked_positions[rows, :used],
                masked_ids=self.masked_ids[rows, :used],
                masked_weights=weights[:, :used],
                label=self.label[rows],
                document=document,
                positions=positions,
                starts=starts,
            )
            yield part
