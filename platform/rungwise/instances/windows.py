"""Skip-gram and CBOW windows with subsampling (Mikolov et al. 2013, arXiv:1301.3781 and 1310.4546).

A sentence is a row of the shard; windows are made when it is read, anew in each epoch, as word2vec
makes them: frequent words are dropped first, which brings the others closer together, then each
remaining word is a centre whose window reaches 1 to `window` words, drawn at random, to both sides.
Both draws are functions of (seed, epoch, instance, position).

B batch, T sequence, P pairs, W words in the widest context
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rungwise.core.config import Config
from rungwise.core.randomness import bits, uniform
from rungwise.instances.contract import Facts, check_rows
from rungwise.instances.frame import ranges
from rungwise.instances.rows import PaddedRows
from rungwise.instances.shards import Shard
from rungwise.instances.text import Built, TokenisedText
from rungwise.tokenizer import SpecialIds

_KEEP, _REACH = 11, 12  # streams of the generator


class WindowsConfig(Config):
    """Rows for skip-gram and CBOW; the defaults are those of word2vec.c."""

    kind: Literal["windows"] = "windows"
    sequence_length: int = Field(default=1000, ge=2, le=65_535)  # a longer sentence is cut in rows
    window: int = Field(default=5, ge=1)
    subsample: float = Field(default=1e-3, ge=0, lt=1)  # 0 keeps every word
    seed: int = Field(default=0, ge=0)


@dataclass(frozen=True)
class SkipGramBatch:
    """Pairs of words; the centre predicts one word of its context."""

    centres: NDArray[np.int64]  # (P,)
    contexts: NDArray[np.int64]  # (P,)


@dataclass(frozen=True)
class CbowBatch:
    """Contexts whose words together predict the centre; unused places have weight 0."""

    contexts: NDArray[np.int64]  # (P, W)
    weights: NDArray[np.float32]  # (P, W)
    centres: NDArray[np.int64]  # (P,)


def build(
    text: TokenisedText, config: WindowsConfig, special: SpecialIds, rng: np.random.Generator
) -> Built:
    """Build the sentences of one shard; those of one token have no context and are left out."""
    lengths = np.diff(text.starts)
    pieces = -(-lengths // config.sequence_length)
    begins = np.repeat(text.starts[:-1], pieces) + config.sequence_length * ranges(
        np.zeros_like(pieces), pieces
    )
    stops = np.minimum(begins + config.sequence_length, np.repeat(text.starts[1:], pieces))
    kept = stops - begins >= 2
    begins, sizes = begins[kept], (stops - begins)[kept]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    shard = Shard(text.ids[ranges(begins, sizes)], offsets)
    return Built(shard, {"left_out": int((~kept).sum()), "truncated": int((pieces > 1).sum())})


def keep_probability(counts: NDArray[np.int64], subsample: float) -> NDArray[np.float64]:
    """The probability that an occurrence of each token of the vocabulary is kept.

    word2vec.c's (sqrt(f / t) + 1) t / f for a share f of all tokens and the threshold t, at most 1;
    the paper prints sqrt(t / f). Tokens that were never counted stay.
    """
    if subsample == 0:
        return np.ones(len(counts))
    share = np.maximum(counts, 1) / max(int(counts.sum()), 1)
    return np.minimum((np.sqrt(share / subsample) + 1) * subsample / share, 1.0)


def skip_gram(
    rows: PaddedRows, epochs: NDArray[np.int64], seed: int, window: int, keep: NDArray[np.float64]
) -> SkipGramBatch:
    """All pairs of these rows in this epoch, centre by centre."""
    centre, context = _pairs(rows, epochs, seed, window, keep)
    ids = rows.ids.ravel().astype(np.int64)
    return SkipGramBatch(ids[centre], ids[context])


def cbow(
    rows: PaddedRows, epochs: NDArray[np.int64], seed: int, window: int, keep: NDArray[np.float64]
) -> CbowBatch:
    """Every centre of these rows in this epoch that has a context."""
    centre, context = _pairs(rows, epochs, seed, window, keep)
    ids = rows.ids.ravel().astype(np.int64)
    centres, first, sizes = np.unique(centre, return_index=True, return_counts=True)
    place = ranges(np.zeros_like(sizes), sizes)
    row = np.repeat(np.arange(len(centres)), sizes)
    contexts = np.zeros((len(centres), 2 * window), dtype=np.int64)
    weights = np.zeros(contexts.shape, dtype=np.float32)
    contexts[row, place] = ids[context[ranges(first, sizes)]]
    weights[row, place] = 1.0
    return CbowBatch(contexts, weights, ids[centres])


def stays(
    rows: PaddedRows, epochs: NDArray[np.int64], seed: int, keep: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """The words (B, T) that subsampling keeps in these rows in this epoch."""
    position = np.arange(rows.ids.shape[1])[None, :]
    key = bits(seed, epochs, rows.instances)[:, None]
    kept = uniform(key, _KEEP, position) < keep[rows.ids]
    return kept & (position < rows.lengths[:, None])


def _pairs(
    rows: PaddedRows, epochs: NDArray[np.int64], seed: int, window: int, keep: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places (row * T + position) of centres and their contexts, sorted by both."""
    length = rows.ids.shape[1]
    position = np.arange(length)[None, :]
    key = bits(seed, epochs, rows.instances)[:, None]
    place = np.flatnonzero(stays(rows, epochs, seed, keep))  # what is left, row after row
    row = place // length
    reach = 1 + (bits(key, _REACH, position) % np.uint64(window)).astype(np.int64).ravel()[place]
    index = np.arange(len(place))
    centres, contexts = [], []
    for step in (*range(-window, 0), *range(1, window + 1)):
        neighbour = index + step
        inside = (neighbour >= 0) & (neighbour < len(place)) & (abs(step) <= reach)
        centre_index, context_index = index[inside], neighbour[inside]
        same = row[centre_index] == row[context_index]
        centres.append(centre_index[same])
        contexts.append(context_index[same])
    centre, context = np.concatenate(centres), np.concatenate(contexts)
    by_centre = np.lexsort((context, centre))
    return place[centre[by_centre]], place[context[by_centre]]


def check(shard: Shard, facts: Facts, config: WindowsConfig) -> dict[str, Any]:
    """Check and count one shard; DataError naming the figure and the bound if it breaks a rule."""
    return check_rows(shard, facts, config.sequence_length, {}, histogram_up_to=128)


def statistics(totals: dict[str, Any], config: WindowsConfig) -> dict[str, Any]:
    """The shares reported for an artifact, from the counts of all its shards."""
    return {
        "tokens_a_row": totals["tokens"] / totals["instances"],
        "sentences_left_out": totals["left_out"],
        "sentences_cut": totals["truncated"],
    }
