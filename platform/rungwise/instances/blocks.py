"""Masked blocks `[CLS] A [SEP]`, for MLM without pairs.

A holds whole sentences of one document up to the sequence length (DOC-SENTENCES of Liu et al. 2019,
arXiv:1907.11692). A sentence longer than that fills blocks of its own.

With `packed`, a row continues with the next document (FULL-SENTENCES of the same paper),
`[CLS] A [SEP] [CLS] B [SEP]`, until a sentence does not fit. Unlike in the paper, attention stays
within each text and positions restart, so the loss equals that of the same texts in padded rows.
Less than one sentence per row is padding.
"""

from __future__ import annotations

from dataclasses import replace
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
    """Blocks of text, masked."""

    kind: Literal["masked_blocks"] = "masked_blocks"
    packed: bool = False  # rows hold the texts of several documents, and short_rate shortens none


def build(
    text: TokenisedText,
    config: MaskedBlocksConfig,
    special: SpecialIds,
    rng: np.random.Generator,
    planned: int | None = None,
) -> Built:
    """Build the blocks of the first `planned` documents, or of all."""
    room = config.sequence_length - 2
    short_rate = 0.0 if config.packed else config.short_rate
    pieces = plan.in_rows(text, room, short_rate, rng, planned)
    begin = np.arange(len(pieces.document))
    if config.packed:
        last = plan.full_rows(pieces, config.sequence_length, frame_size=2)
    else:
        last = pieces.gathered(begin, pieces.end, plan.targets(pieces, room, short_rate, rng))
    begin = plan.chain(last)
    # A text begins at each row; in packed rows, also at each document.
    opens = np.union1d(begin, np.flatnonzero(np.diff(pieces.document, prepend=-1)))
    texts = opens if config.packed else begin
    spans = pieces.span(texts, np.append(texts[1:], len(last)))
    counts = plan.tokens_unused(pieces, [spans], allowed=0)
    columns = {"document": text.documents[pieces.document[begin]]}
    framed = frame.rows(text, [spans], special, columns)
    rows = np.append(np.searchsorted(texts, begin), len(texts))
    return Built(replace(framed, offsets=framed.offsets[rows]), counts)


def check(shard: Shard, facts: Facts, config: MaskedBlocksConfig) -> dict[str, Any]:
    """Check one shard and return its counts. Raises DataError if it breaks the contract."""
    return check_masked(shard, facts, config, segments=None if config.packed else 1)


def statistics(totals: dict[str, Any], config: MaskedBlocksConfig) -> dict[str, Any]:
    return masked_statistics(totals, config)
