"""The contract that every shard is checked against when it is built; a breach stops the stage.

Bounds are those of SPEC D20 (15 +- 0.3 %, 80/10/10 +- 1 %, NSP 50 +- 1 %). On a shard so small that
a correct draw would sometimes exceed them, the bound is five standard errors. Rules for one kind of
instance are checked in that kind's file, with `must` and `near`.
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
    """The facts that a shard is checked against besides its config."""

    name: str  # of the shard, for messages
    vocab_size: int
    special: SpecialIds
    seed: int
    sections: int = 1  # of text that the shard was built from


def check_rows(
    shard: Shard,
    facts: Facts,
    longest: int,
    expected: Mapping[int, int],
    histogram_up_to: int | None = None,
) -> dict[str, Any]:
    """Check the rules of every kind: row lengths, ids in range, numbers of special tokens.

    Rows have 1 to `longest` tokens. `expected` is the number of tokens with each special id, none
    for ids not named. Returns counts that add up over shards: `instances`, `tokens`,
    `length_histogram` (16 equal bins up to `longest` or `histogram_up_to`). Raises DataError naming
    the shard, the figure and the bound.
    """
    lengths, ids = shard.lengths, shard.ids
    name, vocab_size = facts.name, facts.vocab_size
    longest_row, shortest_row = int(lengths.max(initial=0)), int(lengths.min(initial=1))
    must(name, "longest instance", longest_row, "at most", longest, longest_row <= longest)
    must(name, "shortest instance", shortest_row, "at least", 1, shortest_row >= 1)
    largest = int(ids.max(initial=0))
    must(name, "largest id", largest, "below", vocab_size, largest < vocab_size)
    special = np.array(facts.special.ids, dtype=np.int64)
    # One pass over the ids instead of one for each special token; in parts, as bincount copies.
    counts = np.zeros(vocab_size, dtype=np.int64)
    for begin in range(0, len(ids), _TOKENS_AT_ONCE):
        counts += np.bincount(ids[begin : begin + _TOKENS_AT_ONCE], minlength=vocab_size)
    for token in special.tolist():
        if token == facts.special.unk:
            continue
        count, wanted = int(counts[token]), expected.get(token, 0)
        must(name, f"tokens {_name_of(token, facts)}", count, "exactly", wanted, count == wanted)
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
    """Check that `part / whole` is within `bound` of `expected`, or five standard errors if larger.

    `tokens_a_draw` is how many of `whole` share one draw, which widens the standard error.
    """
    allowed = max(bound, _STANDARD_ERRORS * math.sqrt(0.25 * tokens_a_draw / max(whole, 1)))
    share = part / max(whole, 1)
    must(
        shard,
        figure,
        round(share, 4),
        "within",
        f"{expected:.4g} +- {allowed:.3g}",
        abs(share - expected) <= allowed,
    )


def must(shard: str, figure: str, value: float, relation: str, bound: object, holds: bool) -> None:
    """Raise DataError naming the shard, the figure, the bound and `value`, unless it `holds`."""
    if not holds:
        raise DataError(f"{shard}: {figure} must be {relation} {bound}, found {value}")


def _name_of(token: int, facts: Facts) -> str:
    for role in ("pad", "cls", "sep", "mask", "end"):
        if getattr(facts.special, role) == token:
            return f"[{role.upper()}]"
    return f"with the special id {token}"
