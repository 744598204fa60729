"""Batches of packed causal blocks.

B batch, T sequence, S documents of a batch
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rungwise.instances.batch import ArrayT, Batch, document_starts


@dataclass(frozen=True)
class CausalBatch(Batch[ArrayT]):
    """Inputs and targets; position i may attend to j <= i of the same document.

    Micro-batches without a boundary have no `document`, `positions` and `starts`, which the host
    knows without reading a tensor. Padding is at the end of a row.
    """

    # ids: (B, T) int64
    targets: ArrayT  # (B, T) int64, targets[t] is the token that follows ids[t]
    weights: ArrayT  # (B, T) float32, 1 for a real target, 0 at padding
    document: ArrayT | None = None  # (B, T) int64, tokens of one document share a number in a row
    positions: ArrayT | None = None  # (B, T) int64, from the beginning of the document or block
    starts: ArrayT | None = None  # (S + 1,) int32, see `document_starts`
    # For models that carry a state from block to block (training/streams.py).
    streams: ArrayT | None = None  # (B,) int64, each row's stream on this worker
    continues: ArrayT | None = None  # (B,) bool, False where a stream starts over
    state: ArrayT | None = None  # (B, ...) float32, initial states

    @property
    def tokens(self) -> int:
        return int(self.weights.sum())

    def predicted_ids(self) -> NDArray[np.int64]:
        return self.targets[self.weights > 0]

    def of_varying_size(self) -> tuple[ArrayT, ...]:
        return () if self.starts is None else (self.starts,)

    def micro_batches(self, bins: int, fixed_shapes: bool) -> Iterator[CausalBatch[ArrayT]]:
        """Yield parts of consecutive rows."""
        assert self.document is not None
        assert self.positions is not None
        column_T = np.arange(self.ids.shape[1])
        for rows in np.array_split(np.arange(len(self.ids)), bins):
            weights_BT, positions_BT = self.weights[rows], self.positions[rows]
            part: CausalBatch[Any] = CausalBatch(self.ids[rows], self.targets[rows], weights_BT)
            if fixed_shapes or (positions_BT != column_T).any():
                document_BT = self.document[rows]
                lengths_B = weights_BT.sum(axis=1).astype(np.int64)
                part = dataclasses.replace(
                    part,
                    document=document_BT,
                    positions=positions_BT,
                    starts=document_starts(document_BT, lengths_B),
                )
            yield part


def in_streams(
    parts: Sequence[CausalBatch[Any]], streams: NDArray[np.int64], continues: NDArray[np.bool_]
) -> list[CausalBatch[Any]]:
    """Add to micro-batches the stream of each row, and whether it continues the stream's text."""
    stops = np.cumsum([len(part.ids) for part in parts])[:-1]
    return [
        dataclasses.replace(part, streams=stream, continues=continuing)
        for part, stream, continuing in zip(
            parts, np.split(streams, stops), np.split(continues, stops), strict=True
        )
    ]
