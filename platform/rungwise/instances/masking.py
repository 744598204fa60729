"""Masking: which tokens a batch predicts and what stands in their place, drawn when rows are read.

Devlin et al. 2019: 15 % of the tokens are selected; of these 80 % become [MASK], 10 % a random
token and 10 % stay. The draw is a function of (seed, epoch, instance, position), so every epoch
masks anew, and any worker that reads an instance masks it the same. Special tokens and padding are
never selected and never drawn as a replacement.

B batch, T sequence, M the most positions that one instance predicts
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rungwise.config import Config
from rungwise.instances.randomness import bits, uniform
from rungwise.tokenizer import CLS_ID, MASK_ID, PAD_ID, SEP_ID, SPECIAL_TOKENS

_SELECT, _CORRUPT, _REPLACE, _ROUND = 1, 2, 3, 4  # streams of the generator


class MaskingConfig(Config):
    """The paper's numbers."""

    rate: float = Field(default=0.15, gt=0, lt=1)  # of the tokens, special ones not counted
    mask_share: float = Field(default=0.8, ge=0, le=1)
    random_share: float = Field(default=0.1, ge=0, le=1)  # what is left stays as it is
    max_predictions: int = Field(default=20, ge=1)

    @model_validator(mode="after")
    def _shares(self) -> MaskingConfig:
        if self.mask_share + self.random_share > 1:
            raise ValueError(
                f"mask_share and random_share must be at most 1 together, found "
                f"{self.mask_share} + {self.random_share}"
            )
        return self


@dataclass(frozen=True)
class Masked:
    """A masked batch; weights are 1 for a prediction and 0 for an unused place."""

    ids: NDArray[np.int64]  # (B, T)
    positions: NDArray[np.int64]  # (B, M), ascending; unused places hold 0
    targets: NDArray[np.int64]  # (B, M) the original ids
    weights: NDArray[np.float32]  # (B, M)


def mask(
    ids: NDArray[np.int64],  # (B, T), padded with PAD_ID
    instances: NDArray[np.int64],  # (B,) index of each row in its split
    epochs: NDArray[np.int64],  # (B,)
    seed: int,
    vocab_size: int,
    config: MaskingConfig,
) -> Masked:
    """Select, corrupt, and remember what was there."""
    row = np.arange(len(ids))[:, None]
    position = np.arange(ids.shape[1])[None, :]
    key = bits(seed, epochs, instances)  # (B,)
    maskable = (ids != PAD_ID) & (ids != CLS_ID) & (ids != SEP_ID)
    score = uniform(key[:, None], _SELECT, position)
    score[~maskable] = 2.0  # sorts behind every candidate
    candidates = maskable.sum(axis=1)
    # Rounding by a coin keeps the share exact for every length; one prediction at least.
    wanted = np.floor(config.rate * candidates + uniform(key, _ROUND)).astype(np.int64)
    wanted = np.minimum(np.clip(wanted, 1, config.max_predictions), candidates)

    size = min(config.max_predictions, ids.shape[1])
    lowest = (
        np.argpartition(score, size - 1, axis=1)[:, :size]
        if size < ids.shape[1]
        else (np.broadcast_to(position, ids.shape))
    )
    ranked = np.take_along_axis(lowest, np.argsort(score[row, lowest], axis=1), axis=1)
    used = np.arange(size)[None, :] < wanted[:, None]
    positions = np.sort(np.where(used, ranked, ids.shape[1]), axis=1)  # unused places go last
    positions[~used] = 0

    targets = np.where(used, ids[row, positions], 0)
    draw = uniform(key[:, None], _CORRUPT, positions)
    ordinary = vocab_size - len(SPECIAL_TOKENS)
    random_ids = len(SPECIAL_TOKENS) + (
        bits(key[:, None], _REPLACE, positions) % np.uint64(ordinary)
    ).astype(np.int64)
    replacement = np.where(
        draw < config.mask_share,
        MASK_ID,
        np.where(draw < config.mask_share + config.random_share, random_ids, targets),
    )
    masked = ids.copy()
    masked[np.broadcast_to(row, positions.shape)[used], positions[used]] = replacement[used]
    return Masked(masked, positions, targets, used.astype(np.float32))
