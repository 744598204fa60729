"""Checks on every shard when it is built; a violation stops the stage.

Shares have fixed bounds (selected 15 +- 0.3 %, 80/10/10 +- 1 %, NSP 50 +- 1 %). A small shard may
exceed them by chance: its share fails only if a correct draw gets that far off less often than once
in 270,000 times, and where the bound is below the standard error, the shard counts as too small to
tell. So shares are checked over all shards too. Rules for one kind are checked in its own file,
with `check_bound`.
"""

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rungwise.core.errors import DataError
from rungwise.core.tokens import SpecialIds
from rungwise.instances.shards import Shard

_CHANCE = 12.5  # nats: five standard errors of many draws; e^-12.5 is 1 in 270,000
HISTOGRAM_BINS = 16
_TOKENS_AT_ONCE = 1 << 22
_RELATIONS = {
    "exactly": operator.eq,
    "at most": operator.le,
    "at least": operator.ge,
    "below": operator.lt,
}


@dataclass(frozen=True)
class Facts:
    """Facts that a shard is checked against, besides its config."""

    name: str  # of the shard, for messages
    vocab_size: int
    special: SpecialIds
    seed: int
    sections: int = 1  # sections of text that the shard was built from
    labels: int = 0  # how many there are


def check_rows(
    shard: Shard,
    facts: Facts,
    longest: int,
    expected: Mapping[int, int],
    histogram_up_to: int | None = None,
) -> dict[str, Any]:
    """Check the rules of every kind: row lengths, range of ids, counts of special tokens.

    Rows must have 1 to `longest` tokens. `expected` is the exact count of each special id, 0 for
    ids not named; [UNK] is exempt. Returns counts that add up over shards: `instances`, `tokens`,
    `length_histogram` (16 equal bins up to `histogram_up_to`, default `longest`). Raises DataError
    naming the shard, the figure and the bound.
    """
    lengths, ids = shard.lengths, shard.ids
    name, vocab_size = facts.name, facts.vocab_size
    check_bound(name, "longest instance", int(lengths.max(initial=0)), "at most", longest)
    check_bound(name, "shortest instance", int(lengths.min(initial=1)), "at least", 1)
    check_bound(name, "largest id", int(ids.max(initial=0)), "below", vocab_size)
    special = np.array(facts.special.ids, dtype=np.int64)
    # One pass over the ids, not one per special token; in parts, because bincount copies.
    counts = np.zeros(vocab_size, dtype=np.int64)
    for begin in range(0, len(ids), _TOKENS_AT_ONCE):
        counts += np.bincount(ids[begin : begin + _TOKENS_AT_ONCE], minlength=vocab_size)
    for token in special.tolist():
        if token == facts.special.unk:
            continue
        figure, exact = f"tokens {_token_name(token, facts)}", expected.get(token, 0)
        check_bound(name, figure, int(counts[token]), "exactly", exact)
    top = histogram_up_to or longest
    histogram = np.histogram(np.minimum(lengths, top), bins=HISTOGRAM_BINS, range=(0, top))[0]
    return {
        "instances": len(shard),
        "tokens": int(lengths.sum()),
        "length_histogram": histogram.tolist(),
    }


@dataclass(frozen=True)
class ContractShare:
    """A share, `part` of `whole`, with its expected value and bound."""

    figure: str
    part: int
    whole: int
    expected: float
    bound: float
    tokens_a_draw: float = 1.0  # how many of `whole` share one draw

    @property
    def draws(self) -> float:
        """Number of independent draws that decide the share."""
        return self.whole / self.tokens_a_draw

    @property
    def too_small_to_say(self) -> bool:
        """Whether the bound is below the standard error of the share."""
        return self.draws * self.bound**2 < self.expected * (1 - self.expected)

    def check(self, name: str) -> None:
        """Raise DataError unless the share is within its bound or within chance (Chernoff)."""
        share = self.part / max(self.whole, 1)
        far = self.draws * _divergence(share, self.expected)
        if abs(share - self.expected) > self.bound and far > _CHANCE:
            raise DataError(
                f"{name}: {self.figure} must be within {self.expected:.4g} +- {self.bound:.3g} or "
                f"the chance of {self.draws:.0f} draws, found {round(share, 4)}"
            )


def check_shares(name: str, shares: Iterable[ContractShare]) -> list[str]:
    """Check shares; return the figures with too few draws to tell. Raises DataError naming the
    figure and the bound."""
    small: list[str] = []
    for share in shares:
        share.check(name)
        if share.too_small_to_say:
            small.append(share.figure)
    return small


def _divergence(share: float, expected: float) -> float:
    """Kullback-Leibler divergence of `share` from `expected`, in nats per draw."""
    return sum(
        p * math.log(p / max(q, 1e-12))
        for p, q in ((share, expected), (1 - share, 1 - expected))
        if p > 0
    )


def check_bound(shard: str, figure: str, value: int, relation: str, bound: int) -> None:
    """Raise DataError naming the shard, the figure, the bound and `value`, unless it holds."""
    if not _RELATIONS[relation](value, bound):
        raise DataError(f"{shard}: {figure} must be {relation} {bound}, found {value}")


def _token_name(token: int, facts: Facts) -> str:
    for role in ("pad", "cls", "sep", "mask", "end"):
        if getattr(facts.special, role) == token:
            return f"[{role.upper()}]"
    return f"with the special id {token}"
