"""Masked blocks `[CLS] A [SEP]`, for MLM without pairs.

A is whole sentences of one document up to the sequence length (DOC-SENTENCES of Liu et al. 2019,
arXiv:1907.11692).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from rungwise.instances import frame
from rungwise.instances.contract import Facts
from rungwise.instances.masked import MaskedConfig, check_masked, masked_statistics
from rungwise.instances.shards import Shard
from rungwise.instances.text import Built, Draws, gather_until
from rungwise.tokenizer import SpecialIds
from rungwise.tokens.text import TokenisedText


class MaskedBlocksConfig(MaskedConfig):
    """The config of masked blocks."""

    kind: Literal["masked_blocks"] = "masked_blocks"


def build(
    text: TokenisedText, config: MaskedBlocksConfig, special: SpecialIds, rng: np.random.Generator
) -> Built:
    """Build the blocks of one shard; a sentence longer than a block is cut, which is counted."""
    starts, bounds = text.starts.tolist(), text.first_sentence.tolist()
    room = config.sequence_length - 2
    draw = Draws(rng)
    spans: list[frame.Span] = []
    owners: list[int] = []
    truncated = 0
    for document in range(len(text.documents)):
        sentence, end = bounds[document], bounds[document + 1]
        while sentence < end:
            target = draw.integer(2, room) if draw.uniform() < config.short_rate else room
            last = gather_until(starts, sentence, end, target)
            stop = min(starts[last], starts[sentence] + room)
            truncated += stop < starts[last]
            spans.append((starts[sentence], stop))
            owners.append(document)
            sentence = last
    columns = {"document": text.documents[np.array(owners, dtype=np.int64)]}
    return Built(frame.singles(text, spans, special, columns), {"truncated": truncated})


def check(shard: Shard, facts: Facts, config: MaskedBlocksConfig) -> dict[str, Any]:
    """Check and count one shard; DataError naming the figure and the bound if it breaks a rule."""
    return check_masked(shard, facts, config, segments=1)


def statistics(totals: dict[str, Any], config: MaskedBlocksConfig) -> dict[str, Any]:
    """The shares reported for an artifact, from the counts of all its shards."""
    return masked_statistics(totals, config)
