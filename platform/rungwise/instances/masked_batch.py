"""The config and batches shared by masked pairs, masked blocks and sentence-order pairs.

Shards hold unmasked ids; a batch is masked when it is read (masking.py).

B batch, T sequence, M masked positions
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rungwise.core.configuration.config import Config
from rungwise.instances.masking import Masked, MaskingConfig, Vocabulary, mask
from rungwise.instances.rows import PaddedRows
from rungwise.tokenizer import SpecialIds
from rungwise.tokens.mask_units import MaskUnitsConfig


class MaskedConfig(Config):
    """The keys of every masked kind."""

    # tokens per row, special tokens included
    sequence_length: int = Field(default=128, ge=8, le=65_535)
    # share of the rows with a shorter, random target length
    short_rate: float = Field(default=0.1, ge=0, le=1)
    masking: MaskingConfig = MaskingConfig()  # which tokens to mask, and how
    mask_units: MaskUnitsConfig = MaskUnitsConfig()  # what counts as a word or phrase in masking
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _room_for_predictions(self) -> MaskedConfig:
        wanted = math.floor(self.masking.rate * (self.sequence_length - 3))
        if wanted > self.masking.max_predictions:
            raise ValueError(
                f"masking.rate {self.masking.rate} of sequence_length {self.sequence_length} is "
                f"{wanted} predictions, more than masking.max_predictions "
                f"{self.masking.max_predictions}; raise max_predictions to {wanted + 1}"
            )
        return self


@dataclass(frozen=True)
class MaskedBatch:
    """Masked rows. Positions from `lengths` on are padding."""

    instances: NDArray[np.int64]  # (B,) index of each row in its split
    segments: NDArray[np.int64]  # (B, T) 0 for A, 1 for B, 0 for padding
    lengths: NDArray[np.int64]  # (B,)
    masked: Masked  # ids (B, T), positions, targets, weights (B, M)
    label: NDArray[np.int64]  # (B,) 1 if B follows A, or A and B are in order; 1 without pairs
    # Only for packed rows. Padding is a text of its own.
    document: NDArray[np.int64] | None = None  # (B, T) which text of the row, from 1; padding is 0
    positions: NDArray[np.int64] | None = None  # (B, T) from the beginning of the text


def masked_batch(
    rows: PaddedRows,
    epochs: NDArray[np.int64],
    seed: int,
    vocabulary: Vocabulary,
    config: MaskingConfig,
    opens_text: int | None = None,
) -> MaskedBatch:
    """Mask these rows for their epochs, or for epoch 0 if masking is static. In packed rows,
    `opens_text` is the token that begins each text."""
    ids = rows.ids.astype(np.int64)
    masked = mask(
        ids, rows.lengths, rows.unit_starts, rows.instances, epochs, seed, vocabulary, config
    )
    column = np.arange(rows.ids.shape[1])[None, :]
    if "a_length" in rows.columns:
        in_b = column >= rows.columns["a_length"].astype(np.int64)[:, None]
        segments = (in_b & (column < rows.lengths[:, None])).astype(np.int64)
    else:
        segments = np.zeros(rows.ids.shape, dtype=np.int64)
    label = rows.columns.get("is_next", rows.columns.get("in_order"))
    document = positions = None
    if opens_text is not None:
        real = column < rows.lengths[:, None]
        opens = (rows.ids == opens_text) & real
        document = np.cumsum(opens, axis=1) * real
        begins = np.where(opens | (column == rows.lengths[:, None]), column, 0)
        positions = column - np.maximum.accumulate(begins, axis=1)
    return MaskedBatch(
        rows.instances,
        segments,
        rows.lengths,
        masked,
        np.ones(len(rows.ids), np.int64) if label is None else label.astype(np.int64),
        document,
        positions,
    )


def vocabulary_of(vocab_size: int, special: SpecialIds) -> Vocabulary:
    """The vocabulary as masking needs it. Raises DataError if it has no [MASK] or [PAD]."""
    pad_id, mask_id = special.require("pad", "mask")
    return Vocabulary(size=vocab_size, special=special.ids, mask=mask_id, pad=pad_id)
