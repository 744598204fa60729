"""Masking: select the tokens that a batch predicts and corrupt them, when rows are read.

Devlin et al. 2019 (arXiv:1810.04805): 15 % of the tokens are selected; of these 80 % become [MASK],
10 % a random token, and 10 % stay. Tokens are selected by unit:

    token        each by itself
    whole_word   all pieces of a word; units are taken in random order, skipping those that no
                 longer fit, as in the second release of google-research/bert
    phrase       the same with phrases and entities, ERNIE (Sun et al. 2019, arXiv:1904.09223)
    span         consecutive words, their number geometrically distributed, SpanBERT (Joshi et al.
                 2020, arXiv:1907.10529)

The starts of words and phrases are stored with the ids (mask_units.py), so masking does not need
the text. Every draw is a function of (seed, epoch, instance, position): masks differ between
epochs, but not between workers. Special tokens and padding are never selected and never drawn as a
replacement.

A rate that falls over the run (mmBERT, Marone et al. 2025, arXiv:2509.06888) only takes fewer of
the same tokens.

B batch, T sequence, M the most positions that one instance predicts, P predictions of a batch.
"Flat" positions count through a (B, T) array row by row.
"""

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rungwise.core.configuration.config import Config
from rungwise.core.errors import DataError
from rungwise.core.randomness import extend
from rungwise.core.tokens import SpecialIds
from rungwise.instances.mask_selection import (
    RANDOM_BITS,
    Draws,
    fraction,
    select_tokens,
    select_units,
)


class MaskingConfig(Config):
    """Which tokens to mask, and how; the defaults are the papers' numbers."""

    unit: Literal["token", "whole_word", "phrase", "span"] = "token"  # what is masked as a whole
    dynamic: bool = True  # mask anew in every epoch; false: always as in the first
    # share of the tokens to predict, special tokens not counted
    rate: float = Field(default=0.15, gt=0, lt=1)
    # share at the end of a run, to which the rate goes in a straight line; null: `rate`
    final_rate: float | None = Field(default=None, gt=0, lt=1)
    mask_share: float = Field(default=0.8, ge=0, le=1)  # share of these that become [MASK]
    # share that become a random token; the rest stay as they are
    random_share: float = Field(default=0.1, ge=0, le=1)
    max_predictions: int = Field(default=20, ge=1)  # most tokens to predict per row
    # for spans: parameter of the geometric draw of their length; by default 3.8 words on average
    span_stop_probability: float = Field(default=0.2, gt=0, lt=1)
    span_max_words: int = Field(default=10, ge=1, le=64)  # for spans: longest, in words

    @property
    def rates(self) -> tuple[float, float]:
        """The rates at the beginning and at the end of a run."""
        return self.rate, self.rate if self.final_rate is None else self.final_rate

    def at(self, progress: float) -> "MaskingConfig":
        """The config after this share of a run's steps."""
        first, last = self.rates
        return self.model_copy(update={"rate": first + progress * (last - first)})

    @model_validator(mode="after")
    def _shares(self) -> Self:
        if self.mask_share + self.random_share > 1:
            raise ValueError(
                f"mask_share and random_share must be at most 1 together, found "
                f"{self.mask_share} + {self.random_share}"
            )
        return self


@dataclass(frozen=True)
class Vocabulary:
    """The size and the special ids of a vocabulary, and the names of the labels of rows."""

    size: int
    special: SpecialIds
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        ids = self.special.ids
        assert list(ids) == sorted(set(ids)), "special ids must ascend"
        assert not ids or ids[-1] < self.size, "special ids must lie in the vocabulary"
        assert len(ids) < self.size, "a vocabulary needs ordinary tokens"

    @property
    def mask(self) -> int:
        """The id of [MASK]. Raises DataError if there is none."""
        return self.special.require("mask")[0]

    @property
    def pad(self) -> int:
        """The id of [PAD]. Raises DataError if there is none."""
        return self.special.require("pad")[0]

    @property
    def end(self) -> int:
        """The id of the symbol between documents. Raises DataError if there is none."""
        return self.special.require("end")[0]


@dataclass(frozen=True)
class Masked:
    """A masked batch; weights are 1 for a prediction and 0 for an unused slot."""

    ids: NDArray[np.int64]  # (B, T)
    positions: NDArray[np.int64]  # (B, M), ascending; unused slots hold 0
    targets: NDArray[np.int64]  # (B, M) the original ids
    weights: NDArray[np.float32]  # (B, M)


def mask(
    ids: NDArray[np.integer],  # (B, T), padding from `lengths` on
    lengths: NDArray[np.integer],  # (B,)
    unit_starts: NDArray[np.bool_] | None,  # (B, T): a unit begins here; unused for unit=token
    instances: NDArray[np.int64],  # (B,) index of each row in its split
    epochs: NDArray[np.int64],  # (B,)
    seed: int,
    vocab: Vocabulary,
    config: MaskingConfig,
) -> Masked:
    """Select tokens, corrupt them, and return the original ids as targets.

    The share selected is `rate` on average, rounded at random per row: at least one token, at most
    `max_predictions`. A row whose units are all longer than that predicts fewer.
    Raises DataError if the unit needs `unit_starts` and there are none.
    """
    draws = Draws.of(seed, epochs if config.dynamic else np.zeros_like(epochs), instances)
    maskable = _ordinary(ids, vocab)
    maskable &= np.arange(ids.shape[1], dtype=np.int32) < lengths.astype(np.int32)[:, None]
    count = _count_predictions(maskable.sum(axis=1), draws, config)
    if config.unit == "token":
        flat = together = select_tokens(maskable, count, config.max_predictions, draws)
    elif unit_starts is None:
        raise DataError(
            f"masking.unit={config.unit} needs instances that say where units begin, found none; "
            "build the instances with units, or set masking.unit=token"
        )
    else:
        shares = _span_shares(config) if config.unit == "span" else None
        flat, together = select_units(
            maskable, unit_starts, count, config.max_predictions, draws, shares
        )
    # The papers do not say if the tokens of a phrase share one draw; here they do, as in spans.
    decided_at = together if config.unit in ("phrase", "span") else flat
    return _corrupt(ids, flat, decided_at, draws, vocab, config)


def _ordinary(ids: NDArray[np.integer], vocab: Vocabulary) -> NDArray[np.bool_]:
    """Which ids are not special; special ids form few runs, so comparisons beat a table."""
    special = np.array(vocab.special.ids)
    breaks = np.flatnonzero(np.diff(special) > 1)
    ordinary = ids > special[-1]
    for last, first in zip(special[breaks], special[breaks + 1], strict=True):
        ordinary |= (ids > last) & (ids < first)
    if special[0] > 0:
        ordinary |= ids < special[0]
    return ordinary


def _count_predictions(
    candidates: NDArray[np.int64], draws: Draws, config: MaskingConfig
) -> NDArray[np.int64]:
    """Tokens to select per row; random rounding keeps the mean share exact at every length."""
    coin = fraction(draws.round) * 2.0**-RANDOM_BITS
    count = np.floor(config.rate * candidates + coin).astype(np.int64)
    return np.minimum(np.clip(count, 1, config.max_predictions), candidates)


def expected_predictions(
    candidates: NDArray[np.int64], config: MaskingConfig
) -> NDArray[np.float64]:
    """Mean number of tokens selected in rows with so many candidates. It differs from their share
    `rate` in rows so short or so long that a limit applies."""
    low = np.floor(config.rate * candidates)
    share = config.rate * candidates - low
    fewer, more = (
        np.minimum(np.clip(count, 1, config.max_predictions), candidates)
        for count in (low, low + 1)
    )
    return (1 - share) * fewer + share * more


def _span_shares(config: MaskingConfig) -> NDArray[np.float64]:
    """The shares of spans of at most 1, 2, ... words: a geometric distribution, truncated.
    Conditioned, not clipped: this gives the paper's mean of 3.8; clipping at 10 would give 4.5."""
    at_most = 1 - (1 - config.span_stop_probability) ** np.arange(1, config.span_max_words + 1)
    return at_most / at_most[-1]


def _corrupt(
    ids: NDArray[np.integer],
    flat: NDArray[np.int64],  # (P,) ascending
    decided_at: NDArray[np.int64],  # (P,) flat; tokens with the same value share one draw
    draws: Draws,
    vocab: Vocabulary,
    config: MaskingConfig,
) -> Masked:
    size, length = ids.shape
    row_begin = np.arange(size + 1) * length
    counts = np.diff(np.searchsorted(flat, row_begin))
    row = np.repeat(np.arange(size), counts)
    offset = row_begin[row]
    masked = np.array(ids, dtype=np.int64, order="C")
    flat_ids = masked.reshape(-1)
    before = flat_ids[flat]

    draw = fraction(extend(draws.corrupt[row], decided_at - offset))
    to_mask, to_random = (
        np.uint64(np.ceil(share * 2.0**RANDOM_BITS))
        for share in (config.mask_share, config.mask_share + config.random_share)
    )
    flat_ids[flat[draw < to_mask]] = vocab.mask
    random = np.flatnonzero((draw >= to_mask) & (draw < to_random))
    position = flat - offset
    replacement = extend(draws.replace[row[random]], position[random])
    flat_ids[flat[random]] = _random_ids(replacement, vocab)

    real = np.arange(min(config.max_predictions, length)) < counts[:, None]
    positions = np.zeros(real.shape, dtype=np.int64)
    targets = np.zeros(real.shape, dtype=np.int64)
    positions[real] = position
    targets[real] = before
    return Masked(masked, positions, targets, real.astype(np.float32))


def _random_ids(draw: NDArray[np.uint64], vocab: Vocabulary) -> NDArray[np.int64]:
    """A uniformly distributed ordinary id for each 64 random bits."""
    number = (draw % np.uint64(vocab.size - len(vocab.special.ids))).astype(np.int64)
    # The n-th ordinary id is n plus the number of special ids s_i with s_i - i <= n.
    special = np.array(vocab.special.ids)
    return number + np.searchsorted(special - np.arange(len(special)), number, side="right")
