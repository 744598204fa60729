"""The contract: what must hold of every shard, checked where it is built; if not, the stage stops.

Bounds are those of SPEC D20 (15 +- 0.3 %, 80/10/10 +- 1 %, NSP 50 +- 1 %). On a shard so small that
an honest draw would leave them now and then, five standard errors take their place. What holds of
one kind of instance only is checked in that kind's file, with `must` and `near`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rungwise.core.errors import DataError
from rungwise.instances.shards import Shard
from rungwise.tokenizer import SpecialIds

_STANDARD_ERRORS = 5.0
HISTOGRAM_BINS = 16
_TOKENS_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Facts:
    """What a shard is checked against besides its config."""

    name: str  # of the shard, for messages
    vocab_size: int
    special: SpecialIds
    seed: int
    sections: int = 1  # of the text that the shard was built from, one after the other


def check_rows(
    shard: Shard,
    facts: Facts,
    longest: int,
    expected: Mapping[int, int],
    histogram_up_to: int | None = None,
) -> dict[str, Any]:
    """What holds of every kind: rows of 1 to `longest` tokens, ids in range, special ids counted.

    `expected` says how many tokens with a special id there must be; of those not named there must
    be none. Returns counts that add up over shards: `instances`, `tokens`, `length_histogram` (16
    equal bins up to `longest` or `histogram_up_to`). Raises DataError naming the shard,
    the figure and the bound.
    """
    lengths, ids = shard.lengths, shard.ids
    name, vocab_size = facts.name, facts.vocab_size
    longest_found, shortest_found = int(lengths.max(initial=0)), int(lengths.min(initial=1))
    must(name, "longest instance", longest_found, "at most", longest, longest_found <= longest)
    must(name, "shortest instance", shortest_found, "at least", 1, shortest_found >= 1)
    largest = int(ids.max(initial=0))
    must(name, "largest id", largest, "below", vocab_size, largest < vocab_size)
    special = np.array(facts.special.ids, dtype=np.int64)
    # One pass over the ids instead of one for each special token; in parts, for bincount copies.
    counts = np.zeros(vocab_size, dtype=np.int64)
    for begin in range(0, len(ids), _TOKENS_AT_ONCE):
        counts += np.bincount(ids[begin : begin + _TOKENS_AT_ONCE], minlength=vocab_size)
    for token in special.tolist():
        if token == facts.special.unk:
            continue
        found, wanted = int(counts[token]), expected.get(token, 0)
        must(name, f"tokens {_name_of(token, facts)}", found, "exactly", wanted, found == wanted)
    top = histogram_up_to or longest
    histogram = np.histogram(np.minimum(lengths, top), bins=HISTOGRAM_BINS, range=(0, top))[0]
    return {
        "instances": len(shard),
        "tokens": int(lengths.sum()),
        "length_histogram": histogram.tolist(),
    }


def near(
    shard: str,
    figure: str,
    part: int,
    whole: int,
    expected: float,
    bound: float,
    tokens_a_draw: float = 1.0,
) -> None:
    """`part / whole` must be `expected` give or take `bound`, or five standard errors if larger.

    `tokens_a_draw` is how many of `whole` share one draw, which widens the standard error.
    """
    allowed = max(bound, _STANDARD_ERRORS * math.sqrt(0.25 * tokens_a_draw / max(whole, 1)))
    found = part / max(whole, 1)
    must(
        shard,
        figure,
        round(found, 4),
        "within",
        f"{expected:.4g} +- {allowed:.3g}",
        abs(found - expected) <= allowed,
    )


def must(shard: str, figure: str, found: float, relation: str, bound: object, holds: bool) -> None:
    """Raise DataError naming the shard, the figure, the bound and what was found."""
    if not holds:
        raise DataError(f"{shard}: {figure} must be {relation} {bound}, found {found}")


def _name_of(token: int, facts: Facts) -> str:
    for role in ("pad", "cls", "sep", "mask", "end"):
        if getattr(facts.special, role) == token:
            return f"[{role.upper()}]"
    return f"with the special id {token}"
