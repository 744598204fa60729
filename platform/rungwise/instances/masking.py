"""Masking: select the tokens that a batch predicts, one by one or by unit, and corrupt them.

Every draw is a function of (seed, epoch, instance, position): masks differ between epochs, not
between workers. Special tokens and padding are never selected and never a replacement.

B batch, T sequence, M the most positions that one instance predicts, P predictions of a batch,
U units of a batch, K units considered per row. "Flat" positions count through (B, T) row by row.
"""

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rungwise.core.arrays import Bits, Bools, Floats, Ints, Singles
from rungwise.core.configuration.config import Config
from rungwise.core.randomness import bits, extend
from rungwise.core.tokens import SpecialIds
from rungwise.instances.shards import PaddedRows, ranges

RANDOM_BITS = 53  # of the 64 bits that order candidates; the position uses the others
_NEVER = np.uint64(2**64 - 1)  # sorts after every candidate
Numbers = NDArray[np.int32]  # of units in a batch, -1 for none
_RANKS_AT_ONCE = 32  # span lengths drawn together


@dataclass(frozen=True)
class Draws:
    """The random streams of each row; `extend` with a position gives one number per stream."""

    select: Bits  # (B,) each
    corrupt: Bits
    replace: Bits
    round: Bits
    length: Bits

    @classmethod
    def of(cls, seed: int, epochs: Ints, instances: Ints) -> "Draws":
        return cls(*bits(bits(seed, epochs, instances), np.arange(1, 6)[:, None]))


def fraction(draw: Bits) -> Bits:
    """The top bits of `draw`: a number in [0, 1) in units of 2^-RANDOM_BITS."""
    return draw >> np.uint64(64 - RANDOM_BITS)


def _order(allowed: Bools, draws: Draws) -> tuple[Bits, int]:
    """Numbers (B, T) that sort the allowed positions at random; the position is in the low bits."""
    length = allowed.shape[1]
    position = np.arange(length, dtype=np.uint64)
    position_bits = max(64 - RANDOM_BITS, (length - 1).bit_length())
    order = extend(draws.select[:, None], position)
    order &= np.uint64(2**64 - 2**position_bits)
    order |= position
    order[~allowed] = _NEVER
    return order, position_bits


def select_tokens(
    maskable: Bools,  # (B, T)
    budget: Ints,  # (B,) tokens, at most `most`
    most: int,
    draws: Draws,
) -> Ints:
    """Flat positions (P,), ascending, of `budget` random tokens of each row."""
    order, position_bits = _order(maskable, draws)
    size, length = order.shape
    most = min(most, length)
    lowest = np.sort(np.partition(order, most - 1, axis=1)[:, :most], axis=1)
    flat = (lowest & np.uint64(2**position_bits - 1)).astype(np.int64)
    flat += np.arange(size)[:, None] * length
    flat[np.arange(most) >= budget[:, None]] = order.size
    flat = np.sort(flat, axis=1)
    return flat[flat < order.size]


@dataclass(frozen=True)
class _Units:
    """The units of a batch in order; each special or padding token is a unit by itself."""

    first: Bools  # (B, T) a maskable unit begins here
    begin: NDArray[np.intp]  # (U,) flat, ascending
    sizes: NDArray[np.intp]  # (U,) tokens

    @classmethod
    def of(cls, maskable: Bools, unit_starts: Bools) -> "_Units":
        starts = unit_starts | ~maskable
        starts[:, 0] = True  # a row may begin inside a word that was cut
        starts[:, 1:] |= ~maskable[:, :-1]
        begin = np.flatnonzero(starts)
        return cls(starts & maskable, begin, np.diff(begin, append=starts.size))


def select_units(
    maskable: Bools,  # (B, T)
    unit_starts: Bools,  # (B, T)
    budget: Ints,  # (B,) tokens, at most `most`
    most: int,
    draws: Draws,
    span_shares: Floats | None,
) -> tuple[Ints, Ints]:
    """Select whole units, or with `span_shares` spans of them, up to `budget` tokens per row.
    `span_shares` are the shares of spans of at most 1, 2, ... units, the last of them 1. Returns
    flat positions (P,) of the tokens, ascending, and where each one's unit or span begins."""
    units = _Units.of(maskable, unit_starts)
    order, position_bits = _order(units.first, draws)
    available = units.first.sum(axis=1)
    all_ranks = int(available.max(initial=0))
    first_of = np.full(len(units.begin), -1, dtype=np.int32)
    # The first few ranks nearly always suffice; sorting and looking up all costs twice as much.
    for ranks in (min(2 * most, all_ranks), all_ranks):
        ranked = _in_random_order(units, order, position_bits, ranks)
        if span_shares is None:
            first_of, room = _take_units(units, ranked, budget)
        else:
            first_of, room = _take_spans(units, ranked, budget, draws, span_shares)
        if not ((room > 0) & (available > ranks)).any():
            break
    selection = np.flatnonzero(first_of >= 0)
    sizes = units.sizes[selection]
    flat = ranges(units.begin[selection], sizes)
    return flat, np.repeat(units.begin[first_of[selection]], sizes)


def _in_random_order(units: _Units, order: Bits, position_bits: int, ranks: int) -> Numbers:
    """The first K maskable units of each row (B, K) in random order, -1 after the last."""
    size, length = order.shape
    if ranks < length:
        order = np.partition(order, ranks, axis=1)[:, :ranks]
    order = np.sort(order, axis=1)
    unit_at = np.empty(size * length, dtype=np.int32)
    unit_at[units.begin] = np.arange(len(units.begin), dtype=np.int32)
    flat = (order & np.uint64(2**position_bits - 1)).astype(np.int32)
    flat += np.arange(size, dtype=np.int32)[:, None] * length
    return np.where(order == _NEVER, -1, unit_at.take(flat, mode="clip"))


def _take_units(units: _Units, ranked: Numbers, budget: Ints) -> tuple[Numbers, Ints]:
    """Take units in order, skipping those larger than the room left. Returns for each unit (U,) the
    first unit of the group it is selected with, or -1, and the room (B,) left over."""
    sizes = np.where(ranked < 0, units.first.size, units.sizes[ranked])  # (B, K)
    total = np.cumsum(sizes, axis=1)
    fits = total <= budget[:, None]
    parts = [ranked[fits]]
    rank = fits.sum(axis=1)  # of the first unit that is too large
    room = budget - np.where(fits, sizes, 0).sum(axis=1)
    row = np.flatnonzero(room)
    ranks = np.arange(ranked.shape[1])
    # Each pass takes one unit in every remaining row; the room left is below the largest unit.
    while len(row):
        fits = (sizes[row] <= room[row, None]) & (ranks > rank[row, None])
        has_fit = fits.any(axis=1)
        row, at = row[has_fit], fits[has_fit].argmax(axis=1)
        parts.append(ranked[row, at])
        room[row] -= sizes[row, at]
        rank[row] = at
        row = row[room[row] > 0]
    first_of = np.full(len(units.begin), -1, dtype=np.int32)
    selection = np.concatenate(parts)
    first_of[selection] = selection
    return first_of, room


def _take_spans(
    units: _Units, ranked: Numbers, budget: Ints, draws: Draws, span_shares: Floats
) -> tuple[Numbers, Ints]:
    """Take spans that begin at units in random order; returns the same as `_take_units`. A span
    ends early, after a whole unit, at a special token, at an earlier span, or when the budget of
    tokens is reached."""
    length = units.first.shape[1]
    most = len(span_shares)
    words = np.arange(most)
    # Padding, as windows may reach past the last unit.
    beyond = np.zeros(most, dtype=np.intp)
    sizes = np.append(units.sizes, beyond)
    begin = np.append(units.begin, beyond + units.first.size)
    free = np.append(units.first.reshape(-1)[units.begin], beyond.astype(bool))
    first_of = np.full(len(begin), -1, dtype=np.int32)
    room = budget.copy()
    row = np.flatnonzero(room)
    span_sizes = np.empty((0, 0))
    for rank in range(ranked.shape[1]):
        row = row[(room[row] > 0) & (ranked[row, rank] >= 0)]
        if not len(row):
            break
        if rank % _RANKS_AT_ONCE == 0:
            position = begin[ranked[:, rank : rank + _RANKS_AT_ONCE]] % length
            span_sizes = span_lengths(extend(draws.length[:, None], position), span_shares)
        first = ranked[row, rank]
        window = first[:, None] + words  # (rows, words)
        inside = free[window] & (words < span_sizes[row, rank % _RANKS_AT_ONCE, None])
        inside &= begin[window] < (row[:, None] + 1) * length
        inside &= np.cumsum(sizes[window], axis=1) <= room[row, None]
        inside = np.logical_and.accumulate(inside, axis=1)
        members = window[inside]
        first_of[members] = np.repeat(first, inside.sum(axis=1))
        free[members] = False
        room[row] -= np.where(inside, sizes[window], 0).sum(axis=1)
    return first_of[: len(units.begin)], room


def span_lengths(draw: Bits, span_shares: Floats) -> NDArray[np.intp]:
    """The number of units of a span, for each 64 random bits."""
    return 1 + np.searchsorted(span_shares[:-1] * 2.0**RANDOM_BITS, fraction(draw), side="right")


class MaskingConfig(Config):
    """Which tokens to mask, and how; the defaults are the papers' numbers."""

    # what is masked as a whole: a token, the pieces of a word, or some words in a row (SpanBERT,
    # Joshi et al. 2020, arXiv:1907.10529)
    unit: Literal["token", "whole_word", "span"] = "token"
    dynamic: bool = True  # mask anew in every epoch; false: always as in the first
    # share of the tokens to predict, special tokens not counted
    rate: float = Field(default=0.15, gt=0, lt=1)
    mask_share: float = Field(default=0.8, ge=0, le=1)  # share of these that become [MASK]
    # share that become a random token; the rest stay as they are
    random_share: float = Field(default=0.1, ge=0, le=1)
    max_predictions: int = Field(default=20, ge=1)  # most tokens to predict per row
    # for spans: parameter of the geometric draw of their length; by default 3.8 words on average
    span_stop_probability: float = Field(default=0.2, gt=0, lt=1)
    span_max_words: int = Field(default=10, ge=1, le=64)  # for spans: longest, in words

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

    def id_of(self, role: str) -> int:
        """The id of a special token, such as `mask`. Raises DataError if there is none."""
        return self.special.require(role)[0]


@dataclass(frozen=True)
class Masked:
    """A masked batch; weights are 1 for a prediction and 0 for an unused slot."""

    ids: Ints  # (B, T)
    positions: Ints  # (B, M), ascending; unused slots hold 0
    targets: Ints  # (B, M) the original ids
    weights: Singles  # (B, M)


def mask(
    rows: PaddedRows, epochs: Ints, seed: int, vocab: Vocabulary, config: MaskingConfig
) -> Masked:
    """Select tokens of rows read in these epochs (B,), corrupt them, and return the original ids as
    targets. The share selected is `rate` on average, rounded at random per row: at least one token,
    at most `max_predictions`. A row whose units are all longer than that predicts fewer."""
    ids = rows.ids.astype(np.int64)
    draws = Draws.of(seed, epochs if config.dynamic else np.zeros_like(epochs), rows.instances)
    maskable = _ordinary(ids, vocab)
    maskable &= np.arange(ids.shape[1], dtype=np.int32) < rows.lengths.astype(np.int32)[:, None]
    count = _count_predictions(maskable.sum(axis=1), draws, config)
    if config.unit == "token":
        flat = together = select_tokens(maskable, count, config.max_predictions, draws)
    else:
        assert rows.unit_starts is not None, "instances without units (MaskedKind.tokens)"
        shares = _span_shares(config) if config.unit == "span" else None
        flat, together = select_units(
            maskable, rows.unit_starts, count, config.max_predictions, draws, shares
        )
    decided_at = together if config.unit == "span" else flat
    return _corrupt(ids, flat, decided_at, draws, vocab, config)


def _ordinary(ids: NDArray[np.integer], vocab: Vocabulary) -> Bools:
    """Which ids are not special; special ids form few runs, so comparisons beat a table."""
    special = np.array(vocab.special.ids)
    breaks = np.flatnonzero(np.diff(special) > 1)
    ordinary = ids > special[-1]
    for last, first in zip(special[breaks], special[breaks + 1], strict=True):
        ordinary |= (ids > last) & (ids < first)
    if special[0] > 0:
        ordinary |= ids < special[0]
    return ordinary


def _count_predictions(candidates: Ints, draws: Draws, config: MaskingConfig) -> Ints:
    """Tokens to select per row; random rounding keeps the mean share exact at every length."""
    coin = fraction(draws.round) * 2.0**-RANDOM_BITS
    count = np.floor(config.rate * candidates + coin).astype(np.int64)
    return np.minimum(np.clip(count, 1, config.max_predictions), candidates)


def expected_predictions(candidates: Ints, config: MaskingConfig) -> Floats:
    """Mean number of tokens selected in rows with so many candidates. It differs from their share
    `rate` in rows so short or so long that a limit applies."""
    low = np.floor(config.rate * candidates)
    share = config.rate * candidates - low
    fewer, more = (
        np.minimum(np.clip(count, 1, config.max_predictions), candidates)
        for count in (low, low + 1)
    )
    return (1 - share) * fewer + share * more


def _span_shares(config: MaskingConfig) -> Floats:
    """The shares of spans of at most 1, 2, ... words: a geometric distribution, truncated.
    Conditioned, not clipped: this gives the paper's mean of 3.8; clipping at 10 would give 4.5."""
    at_most = 1 - (1 - config.span_stop_probability) ** np.arange(1, config.span_max_words + 1)
    return at_most / at_most[-1]


def _corrupt(
    ids: NDArray[np.integer],
    flat: Ints,  # (P,) ascending
    decided_at: Ints,  # (P,) flat; tokens with the same value share one draw
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
    flat_ids[flat[draw < to_mask]] = vocab.id_of("mask")
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


def _random_ids(draw: Bits, vocab: Vocabulary) -> Ints:
    """A uniformly distributed ordinary id for each 64 random bits."""
    number = (draw % np.uint64(vocab.size - len(vocab.special.ids))).astype(np.int64)
    # The n-th ordinary id is n plus the number of special ids s_i with s_i - i <= n.
    special = np.array(vocab.special.ids)
    return number + np.searchsorted(special - np.arange(len(special)), number, side="right")
