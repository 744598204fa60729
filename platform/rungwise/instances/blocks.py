"""Masked blocks `[CLS] A [SEP]`, for MLM without pairs.

A is whole sentences of one document up to the sequence length (DOC-SENTENCES of Liu et al. 2019,
arXiv:1907.11692). A sentence longer than that fills blocks of its own.
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


class MaskedBlocksConfig(MaskedConfig):
    """The config of masked blocks."""

    kind: Literal["masked_blocks"] = "masked_blocks"


def build(
    text: TokenisedText,
    config: MaskedBlocksConfig,
    special: SpecialIds,
    rng: np.random.Generator,
    planned: int | None = None,
) -> Built:
    """Build the blocks of the first `planned` documents, or of all."""
    room = config.sequence_length - 2
    pieces = plan.in_rows(text, room, config.short_rate, rng, planned)
    begin = np.arange(len(pieces.document))
    last = pieces.gathered(begin, pieces.end, plan.targets(pieces, room, config.short_rate, rng))
    begin = plan.chain(last)
    spans = pieces.span(begin, last[begin])
    counts = plan.tokens_unused(pieces, [spans], allowed=0)
    columns = {"document": text.documents[pieces.document[begin]]}
    return Built(frame.rows(text, [spans], special, columns), counts)


def check(shard: Shard, facts: Facts, config: MaskedBlocksConfig) -> dict[str, Any]:
    """Check and count one shard; DataError naming the figure and the bound if it breaks a rule."""
    return check_masked(shard, facts, config, segments=1)


def statistics(totals: dict[str, Any], config: MaskedBlocksConfig) -> dict[str, Any]:
    """The shares reported for an artifact, from the counts of all its shards."""
    return masked_statistics(totals, config)
