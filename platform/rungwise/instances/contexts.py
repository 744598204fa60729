"""Context windows, each a token and the `context_size` tokens before it.

N-gram models and the NNLM of Bengio et al. 2003 read them (SPEC L1 to L3, D13).

A sentence is a row of the shard, closed by the end symbol; each of its positions is an instance,
the end symbol too. Positions before the sentence hold the start symbol. A window costs nothing to
store, as instance i of a shard is token i of its file.

B batch, C context size
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rungwise.core.config import Config
from rungwise.instances.contract import Facts, check_rows, must
from rungwise.instances.shards import Shard
from rungwise.instances.text import Built, TokenisedText
from rungwise.tokenizer import SpecialIds

_LONGEST = (1 << 31) - 1


class ContextsConfig(Config):
    """Windows of `context_size` tokens and the next one; an n-gram model has n - 1."""

    kind: Literal["contexts"] = "contexts"
    context_size: int = Field(default=4, ge=1, le=1024)
    seed: int = Field(default=0, ge=0)


@dataclass(frozen=True)
class ContextBatch:
    """Contexts, oldest token first, and the token that follows each."""

    instances: NDArray[np.int64]  # (B,)
    contexts: NDArray[np.int64]  # (B, C)
    targets: NDArray[np.int64]  # (B,)


def build(
    text: TokenisedText, config: ContextsConfig, special: SpecialIds, rng: np.random.Generator
) -> Built:
    """Build the sentences of one shard, each closed by the end symbol. Nothing is random."""
    end_id, _ = special.require("end", "cls")
    ends = text.starts[1:]
    ids = np.insert(text.ids, ends, np.array(end_id, dtype=text.ids.dtype))
    offsets = text.starts + np.arange(len(text.starts))
    return Built(Shard(ids, offsets), {"sentences": len(ends)})


def instances_of(shard: Shard) -> int:
    """The number of instances in a shard, which is its number of tokens."""
    return len(shard.ids)


def windows(
    shard: Shard, local: NDArray[np.int64], context_size: int, start_id: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Contexts (B, C) and targets (B,) of these instances of one shard."""
    # The same type as the offsets, or numpy would convert all of them at every call.
    row = np.searchsorted(shard.offsets, local.astype(shard.offsets.dtype), side="right") - 1
    before = local[:, None] + np.arange(-context_size, 0)
    inside = before >= shard.offsets[row][:, None]
    contexts = np.where(inside, shard.ids[np.maximum(before, 0)].astype(np.int64), start_id)
    return contexts, shard.ids[local].astype(np.int64)


def check(shard: Shard, facts: Facts, config: ContextsConfig) -> dict[str, Any]:
    """Check and count one shard; DataError naming the figure and the bound if it breaks a rule."""
    (end_id,) = facts.special.require("end")
    counts = check_rows(shard, facts, _LONGEST, {end_id: len(shard)}, histogram_up_to=128)
    closed = int((shard.ids[shard.offsets[1:] - 1] == end_id).sum())
    what = "sentences closed by the end symbol"
    must(facts.name, what, closed, "exactly", len(shard), closed == len(shard))
    return {**counts, "instances": instances_of(shard)}


def statistics(totals: dict[str, Any], config: ContextsConfig) -> dict[str, Any]:
    """The shares reported for an artifact, from the counts of all its shards."""
    return {"tokens_a_sentence": totals["tokens"] / totals["sentences"]}
