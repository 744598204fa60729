"""The base of masked pairs, masked blocks and sentence-order pairs: keys, batches, pages.

Shards hold unmasked ids; rows are masked when they are read (masking.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rungwise.core.errors import BlockError
from rungwise.instances.kind import Figure, Kind, Piece, PieceKind, ShownRow, WholeRow
from rungwise.instances.masked_batch import MaskedBatch
from rungwise.instances.masked_contract import (
    check_totals,
    masked_headline,
    masked_statistics,
)
from rungwise.instances.masking import MaskingConfig, Vocabulary, mask
from rungwise.instances.rows import PaddedRows
from rungwise.tokens.config import TokensConfig
from rungwise.tokens.mask_units import MaskUnitsConfig

if TYPE_CHECKING:  # building shards needs no PyTorch
    from torch import Tensor


class MaskedKind(Kind):
    """The keys of every masked kind."""

    # The relation of A and B in words, for labels 0 and 1.
    answers: ClassVar[tuple[str, str] | None] = None

    # tokens per row, special tokens included
    sequence_length: int = Field(default=128, ge=8, le=65_535)
    # share of the rows with a shorter, random target length
    short_rate: float = Field(default=0.1, ge=0, le=1)
    masking: MaskingConfig = MaskingConfig()  # which tokens to mask, and how
    mask_units: MaskUnitsConfig = MaskUnitsConfig()  # what counts as a word or phrase in masking

    @model_validator(mode="after")
    def _room_for_predictions(self) -> MaskedKind:
        rate = max(self.masking.rates)
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
        rate = sum(self.masking.rates) / 2
        return min(rate * self.sequence_length, self.masking.max_predictions)

    @property
    def changes(self) -> bool:
        return self.masking.final_rate is not None

    def at(self, progress: float) -> Self:
        if not self.changes:
            return self
        return self.model_copy(update={"masking": self.masking.at(progress)})

    @property
    def tokens(self) -> TokensConfig:
        if self.masking.unit == "token":
            return TokensConfig()
        spans = self.masking.unit == "phrase"
        return TokensConfig(units=True, mask_units=self.mask_units, spans=spans)

    @property
    def identity(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"mask_units"})

    def statistics(self, totals: dict[str, Any]) -> dict[str, int | float]:
        return masked_statistics(totals, self.sequence_length)

    def headline(self, totals: dict[str, Any], statistics: dict[str, Any]) -> str:
        return masked_headline(statistics, check_totals(totals, self.masking))

    def opens_text(self, vocabulary: Vocabulary) -> int | None:
        """The token that begins each text of a packed row; None if a row is one text."""
        return None

    def batch(
        self, rows: PaddedRows, epochs: NDArray[np.int64], seed: int, vocabulary: Vocabulary
    ) -> MaskedBatch[NDArray[Any]]:
        """Mask the rows for these epochs (B,), or for epoch 0 if masking is static."""
        masked = mask(
            rows.ids.astype(np.int64),
            rows.lengths,
            rows.unit_starts,
            rows.instances,
            epochs,
            seed,
            vocabulary,
            self.masking,
        )
        column = np.arange(rows.ids.shape[1])[None, :]
        real = column < rows.lengths[:, None]
        segments = np.zeros(rows.ids.shape, dtype=np.int64)
        if "a_length" in rows.columns:
            in_b = column >= rows.columns["a_length"].astype(np.int64)[:, None]
            segments = (in_b & real).astype(np.int64)
        label = rows.columns.get("is_next", rows.columns.get("in_order"))
        document = positions = None
        if (opens_text := self.opens_text(vocabulary)) is not None:
            opens = (rows.ids == opens_text) & real
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

    def random_batch(self, B: int, vocab_size: int) -> MaskedBatch[Tensor]:
        import torch

        ids_BT = torch.randint(vocab_size, (B, self.length))
        M = max(1, round(self.masked_per_row))
        return MaskedBatch(
            ids=ids_BT,
            segments=torch.zeros_like(ids_BT),
            lengths=None,
            masked_positions=torch.arange(M).expand(B, M),
            masked_ids=ids_BT[:, :M],
            masked_weights=torch.ones(B, M),
            label=torch.ones(B, dtype=torch.int64),
        )

    def show(
        self, batch: Any, row: int, vocabulary: Vocabulary, spell: Callable[[int], str]
    ) -> ShownRow:
        used, length = batch.masked_weights[row] > 0, int(batch.lengths[row])
        positions, originals = batch.masked_positions[row][used], batch.masked_ids[row][used]
        masked = dict(zip(positions.tolist(), originals.tolist(), strict=True))
        pieces: list[Piece] = []
        for position in range(length):
            token, original = int(batch.ids[row, position]), masked.get(position)
            kind: PieceKind = "special" if token in vocabulary.special.ids else "plain"
            if original is not None:
                changed = "masked" if token == vocabulary.mask else "random"
                kind = "kept" if token == original else changed
            pieces.append(Piece(token, kind, int(batch.segments[row, position]), original))
        fates = Counter(piece.kind for piece in pieces)
        counts = ", ".join(f"{fates[fate]} {fate}" for fate in ("masked", "random", "kept"))
        note = f"{length} tokens; {len(masked)} to predict; {counts}"
        answer = "" if self.answers is None else self.answers[int(batch.label[row])]
        return ShownRow(pieces, f"{answer}; {note}" if answer else note, answer)

    def figures(self, statistics: dict[str, Any]) -> list[Figure]:
        masking = self.masking
        kept_share = 1 - masking.mask_share - masking.random_share
        return [
            Figure("tokens selected", statistics["selected_share"], masking.rate, "15%"),
            Figure("of these, [MASK]", statistics["mask_share"], masking.mask_share, "80%"),
            Figure(
                "of these, a random token", statistics["random_share"], masking.random_share, "10%"
            ),
            Figure("of these, kept", statistics["kept_share"], kept_share, "10%"),
            *self.label_figures(statistics),
            Figure("text tokens not in any instance", statistics["unused_share"]),
            Figure("positions that are not padding", statistics["fill"], digits=1),
        ]

    def label_figures(self, statistics: dict[str, Any]) -> list[Figure]:
        """The share of each label, of kinds with pairs."""
        return []

    def whole_row(self, batch: Any, row: int) -> WholeRow:
        ids, segments = batch.originals()[row].tolist(), batch.segments[row].tolist()
        length = int(batch.lengths[row])
        if batch.document is not None:
            length = int((batch.document[row] == batch.document[row, 0]).sum())
        end = length - sum(segments[:length]) - 1  # the [SEP] behind A
        return WholeRow(ids, segments, length, end, hides=True)
