"""The contract: what must hold of every shard, checked where it is built; if not, the stage stops.

Bounds are those of SPEC D20 (15 +- 0.3 %, 80/10/10 +- 1 %, NSP 50 +- 1 %). On a shard so small that
an honest draw would leave them now and then, five standard errors take their place.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rungwise.errors import DataError
from rungwise.instances.masking import MaskingConfig, mask
from rungwise.instances.shards import Shard
from rungwise.tokenizer import CLS_ID, MASK_ID, PAD_ID, SEP_ID, SPECIAL_TOKENS

_STANDARD_ERRORS = 5.0
_ROWS_AT_ONCE = 1024


def check(
    shard: Shard,
    name: str,
    sequence_length: int,
    vocab_size: int,
    next_sentence: bool,
    masking: MaskingConfig,
    seed: int,
) -> dict[str, Any]:
    """Statistics of one shard.

    Returns counts that add up over shards: `instances`, `tokens`, `is_next`, `candidates`,
    `selected`, `to_mask`, `to_random`, `kept`, `length_histogram` (16 equal bins).
    Raises DataError naming the shard, the figure and the bound.
    """
    lengths = shard.lengths
    ids = shard.ids
    first, last = shard.offsets[:-1], shard.offsets[1:] - 1
    middle = first + shard.a_length.astype(np.int64) - 1
    segments = 2 if next_sentence else 1
    _must(
        name,
        "longest instance",
        int(lengths.max()),
        "at most",
        sequence_length,
        bool((lengths <= sequence_length).all()),
    )
    _must(name, "largest id", int(ids.max()), "below", vocab_size, bool((ids < vocab_size).all()))
    _must(
        name,
        "instances that begin with [CLS]",
        int((ids[first] == CLS_ID).sum()),
        "exactly",
        len(shard),
        bool((ids[first] == CLS_ID).all()),
    )
    _must(
        name,
        "instances whose A and last segment end with [SEP]",
        int(((ids[middle] == SEP_ID) & (ids[last] == SEP_ID)).sum()),
        "exactly",
        len(shard),
        bool(((ids[middle] == SEP_ID) & (ids[last] == SEP_ID)).all()),
    )
    for token, expected in (
        (CLS_ID, len(shard)),
        (SEP_ID, segments * len(shard)),
        (MASK_ID, 0),
        (PAD_ID, 0),
    ):
        count = int((ids == token).sum())
        _must(
            name, f"tokens {SPECIAL_TOKENS[token]}", count, "exactly", expected, count == expected
        )
    same = shard.document_a == shard.document_b
    is_next = shard.is_next.astype(bool)
    _must(
        name,
        "NotNext pairs with B from the document of A",
        int((same & ~is_next).sum()),
        "exactly",
        0,
        not bool((same & ~is_next).any()),
    )
    _must(
        name,
        "IsNext pairs with B from another document",
        int((~same & is_next).sum()),
        "exactly",
        0,
        not bool((~same & is_next).any()),
    )
    counts: dict[str, Any] = {
        "instances": len(shard),
        "tokens": int(lengths.sum()),
        "is_next": int(is_next.sum()),
        "length_histogram": np.histogram(lengths, bins=16, range=(0, sequence_length))[0].tolist(),
    }
    counts |= _masking_counts(shard, sequence_length, vocab_size, masking, seed)
    for figure, part, whole, expected, bound in (
        ("share of tokens selected", "selected", "candidates", masking.rate, 0.003),
        ("share of selected made [MASK]", "to_mask", "selected", masking.mask_share, 0.01),
        ("share of selected made random", "to_random", "selected", masking.random_share, 0.01),
    ):
        _near(name, figure, counts[part], counts[whole], expected, bound)
    if next_sentence:
        _near(name, "share of IsNext pairs", counts["is_next"], len(shard), 0.5, 0.01)
    return counts


def _masking_counts(
    shard: Shard, sequence_length: int, vocab_size: int, masking: MaskingConfig, seed: int
) -> dict[str, int]:
    counts: dict[str, int] = dict.fromkeys(
        ("candidates", "selected", "to_mask", "to_random", "kept"), 0
    )
    column = np.arange(sequence_length)[None, :]
    for begin in range(0, len(shard), _ROWS_AT_ONCE):
        rows = np.arange(begin, min(begin + _ROWS_AT_ONCE, len(shard)))
        at = np.minimum(shard.offsets[rows][:, None] + column, len(shard.ids) - 1)
        real = column < shard.lengths[rows][:, None]
        ids = np.where(real, shard.ids[at].astype(np.int64), PAD_ID)
        masked = mask(ids, rows, np.zeros_like(rows), seed, vocab_size, masking)
        used = masked.weights > 0
        now = np.take_along_axis(masked.ids, masked.positions, axis=1)[used]
        before = masked.targets[used]
        counts["candidates"] += int(((ids != PAD_ID) & (ids != CLS_ID) & (ids != SEP_ID)).sum())
        counts["selected"] += int(used.sum())
        counts["to_mask"] += int((now == MASK_ID).sum())
        counts["to_random"] += int(((now != MASK_ID) & (now != before)).sum())
        counts["kept"] += int((now == before).sum())
    return counts


def _near(shard: str, figure: str, part: int, whole: int, expected: float, bound: float) -> None:
    allowed = max(bound, _STANDARD_ERRORS * math.sqrt(0.25 / max(whole, 1)))
    found = part / max(whole, 1)
    _must(
        shard,
        figure,
        round(found, 4),
        "within",
        f"{expected:.4g} +- {allowed:.3g}",
        abs(found - expected) <= allowed,
    )


def _must(shard: str, figure: str, found: float, relation: str, bound: object, holds: bool) -> None:
    if not holds:
        raise DataError(f"{shard}: {figure} must be {relation} {bound}, found {found}")
