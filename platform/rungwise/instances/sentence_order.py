"""Sentence-order pairs (Lan et al. 2020, ALBERT, arXiv:1909.11942).

A and B follow one another in a document, and half of the pairs are swapped. The topic does not tell
the label, only coherence does.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from rungwise.instances import frame
from rungwise.instances.contract import Facts, near
from rungwise.instances.masked import MaskedConfig, check_masked, masked_statistics
from rungwise.instances.shards import Shard
from rungwise.instances.text import Built, Draws, gather_until
from rungwise.tokenizer import SpecialIds
from rungwise.tokens.text import TokenisedText


class SentenceOrderConfig(MaskedConfig):
    """The config of sentence-order pairs."""

    kind: Literal["sentence_order"] = "sentence_order"


def build(
    text: TokenisedText, config: SentenceOrderConfig, special: SpecialIds, rng: np.random.Generator
) -> Built:
    """Build the pairs of one shard; a lone last sentence has no order, so it is only counted."""
    starts, bounds = text.starts.tolist(), text.first_sentence.tolist()
    room = config.sequence_length - 3
    draw = Draws(rng)
    first: list[frame.Span] = []
    second: list[frame.Span] = []
    in_order: list[bool] = []
    owners: list[int] = []
    truncated = left_out = 0
    for document in range(len(text.documents)):
        sentence, end = bounds[document], bounds[document + 1]
        while sentence < end:
            target = draw.integer(2, room) if draw.uniform() < config.short_rate else room
            last = gather_until(starts, sentence, end, target)
            if last - sentence == 1:
                if last == end:
                    left_out += 1
                    break
                last += 1  # one long sentence: the next one is its B
            cut_at = sentence + draw.integer(1, last - sentence - 1)
            a, b = (starts[sentence], starts[cut_at]), (starts[cut_at], starts[last])
            right_way = draw.uniform() < 0.5
            if not right_way:
                a, b = b, a
            # Swap first: truncation treats A and B differently and must not tell the label.
            a, b, cut = frame.truncate(a, b, room, draw)
            first.append(a)
            second.append(b)
            in_order.append(right_way)
            owners.append(document)
            truncated += cut
            sentence = last
    columns = {
        "in_order": np.array(in_order, dtype=np.uint8),
        "document": text.documents[np.array(owners, dtype=np.int64)],
    }
    shard = frame.pairs(text, first, second, special, columns)
    return Built(shard, {"truncated": truncated, "left_out": left_out})


def check(shard: Shard, facts: Facts, config: SentenceOrderConfig) -> dict[str, Any]:
    """Check and count one shard; DataError naming the figure and the bound if it breaks a rule."""
    counts = check_masked(shard, facts, config, segments=2)
    counts["in_order"] = int(shard.columns["in_order"].sum())
    near(facts.name, "share of pairs in order", counts["in_order"], len(shard), 0.5, 0.01)
    return counts


def statistics(totals: dict[str, Any], config: SentenceOrderConfig) -> dict[str, Any]:
    """The shares reported for an artifact, from the counts of all its shards."""
    return {
        **masked_statistics(totals, config),
        "in_order_share": totals["in_order"] / totals["instances"],
        "sentences_left_out": totals["left_out"],
    }
