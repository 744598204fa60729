"""Sentence-order pairs (Lan et al. 2020, ALBERT, arXiv:1909.11942).

A and B are consecutive in a document, and half of the pairs are swapped, so the topic does not
reveal the label, only coherence does. A pair that would leave a lone sentence behind gives it its
own last sentence, or absorbs it; a document of one sentence is cut in two.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from rungwise.instances import frame, plan
from rungwise.instances.contract import Facts
from rungwise.instances.masked_batch import MaskedConfig
from rungwise.instances.masked_contract import check_masked, masked_statistics
from rungwise.instances.shards import Shard
from rungwise.instances.text import Built
from rungwise.tokenizer import SpecialIds
from rungwise.tokens.text import TokenisedText


class SentenceOrderConfig(MaskedConfig):
    """Pairs of consecutive texts, masked, half of them swapped, as in ALBERT."""

    kind: Literal["sentence_order"] = "sentence_order"


def build(
    text: TokenisedText,
    config: SentenceOrderConfig,
    special: SpecialIds,
    rng: np.random.Generator,
    planned: int | None = None,
) -> Built:
    """Build the pairs of the first `planned` documents, or of all. A document of one token has no
    order; such tokens are left out and counted."""
    room = config.sequence_length - 3
    pieces = plan.in_half_rows(text, room, rng, planned)
    begin = np.arange(len(pieces.document))
    target = plan.targets(pieces, room, config.short_rate, rng)
    last = np.minimum(np.maximum(pieces.gathered(begin, pieces.end, target), begin + 2), pieces.end)
    lone_left = last == pieces.end - 1
    fits = pieces.starts[pieces.end] - pieces.starts[begin] <= room
    last = np.where(
        lone_left & (last - begin > 2), last - 1, np.where(lone_left & fits, pieces.end, last)
    )

    begin = plan.chain(last)
    first, end = pieces.starts[begin], pieces.starts[last[begin]]
    count = last[begin] - begin
    middle = np.where(
        count > 1, pieces.starts[begin + rng.integers(1, np.maximum(count, 2))], (first + end) // 2
    )
    held = middle > first
    spans = np.stack([first, middle, middle, end], axis=1)[held]
    counts = plan.tokens_unused(pieces, [spans[:, :2], spans[:, 2:]], allowed=pieces.planned)
    in_order = rng.random(len(spans)) < 0.5
    turned = np.where(in_order[:, None], spans, spans[:, [2, 3, 0, 1]])
    columns = {
        "in_order": in_order.astype(np.uint8),
        "document": text.documents[pieces.document[begin[held]]],
    }
    return Built(frame.rows(text, [turned[:, :2], turned[:, 2:]], special, columns), counts)


def check(shard: Shard, facts: Facts, config: SentenceOrderConfig) -> dict[str, Any]:
    """Check one shard and return its counts. Raises DataError if it breaks the contract."""
    return check_masked(shard, facts, config, segments=2)


def statistics(totals: dict[str, Any], config: SentenceOrderConfig) -> dict[str, Any]:
    in_order = totals["in_order"] / max(totals["instances"], 1)
    return {**masked_statistics(totals, config), "in_order_share": in_order}
