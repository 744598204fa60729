"""Batches of causal and masked rows in one.

B batch, T sequence
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rungwise.instances.batch import ArrayT, Batch
from rungwise.instances.causal_batch import CausalBatch
from rungwise.instances.masked_batch import MaskedBatch


@dataclass(frozen=True)
class CausalAndMaskedBatch(Batch[ArrayT]):
    """Rows in both forms; a micro-batch has each row in the form in which it is read, and None for
    a form that none of its rows has."""

    # ids: (B, T) int64, not masked
    lengths: ArrayT  # (B,) int64, tokens of each row
    is_causal: ArrayT  # (B,) bool
    causal: CausalBatch[ArrayT] | None
    masked: MaskedBatch[ArrayT] | None

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    def predicted_ids(self) -> NDArray[np.int64]:
        masks = self.rows(np.arange(len(self.ids)))
        parts = [part.predicted_ids() for part in (masks.causal, masks.masked) if part]
        return np.concatenate(parts)

    def rows(self, rows: NDArray[np.int64]) -> CausalAndMaskedBatch[ArrayT]:
        """These rows, each in the form in which it is read."""
        assert self.causal is not None
        assert self.masked is not None
        causal = self.is_causal[rows]
        return CausalAndMaskedBatch(
            self.ids[rows],
            self.lengths[rows],
            causal,
            self.causal._map(lambda array: array[rows[causal]]) if causal.any() else None,
            self.masked._map(lambda array: array[rows[~causal]]) if not causal.all() else None,
        )

    def micro_batches(
        self, bins: int, fixed_shapes: bool
    ) -> Iterator[CausalAndMaskedBatch[ArrayT]]:
        """Yield parts of consecutive rows; their causal and their masked rows are as long as the
        longest of each."""
        for rows in np.array_split(np.arange(len(self.ids)), bins):
            part = self.rows(rows)
            whole: dict[str, Any] = {
                name: None if form is None else next(form.micro_batches(1, fixed_shapes))
                for name, form in (("causal", part.causal), ("masked", part.masked))
            }
            yield dataclasses.replace(part, **whole)

    def _map(self, function: Callable[[Any], Any]) -> Self:
        forms: dict[str, Any] = {
            name: None if form is None else form._map(function)
            for name, form in (("causal", self.causal), ("masked", self.masked))
        }
        own = {name: function(getattr(self, name)) for name in ("ids", "lengths", "is_causal")}
        return dataclasses.replace(self, **own, **forms)
