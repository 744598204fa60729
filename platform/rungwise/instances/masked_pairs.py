"""Masked pairs: BERT's instances, `[CLS] A [SEP] B [SEP]`, for MLM and next-sentence prediction.

The procedure is that of Devlin et al. 2019 (arXiv:1810.04805, appendix A.2): sentences of one
document are gathered up to a target length, which is sometimes short, and split in two. B is what
follows A or, half of the time, text from another document; then the unused sentences are gathered
again. A pair that is too long loses tokens from the longer side, front or back.

Differences from google-research/bert's program for that procedure:

- A document that ends in a single sentence can only give NotNext, which would make such pairs more
  than half of all. Here a later pair is made IsNext in return, and if too many are owed, the
  sentence is left out and counted.
- B is never from the document of A, however often the draw has to be repeated.
- A long sentence that fills a pair by itself takes the next one too, so that it can be IsNext.
- The target length is drawn for each pair and not once a document.

Masks are counted in ordinary tokens (masking.py), where that program counts the special ones too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field

from rungwise.core.errors import DataError
from rungwise.instances import frame
from rungwise.instances.contract import Facts, must, near
from rungwise.instances.masked import MaskedConfig, check_masked, masked_statistics
from rungwise.instances.shards import Shard
from rungwise.instances.text import Built, Draws, gather_until
from rungwise.tokenizer import SpecialIds
from rungwise.tokens.text import TokenisedText

_OWED_AT_MOST = 8  # surplus of NotNext pairs at which single sentences are left out


class MaskedPairsConfig(MaskedConfig):
    """The config of masked pairs."""

    kind: Literal["masked_pairs"] = "masked_pairs"
    dupe_factor: int = Field(default=1, ge=1)  # passes over the text, each with other pairs


@dataclass
class _Plan:
    a: list[tuple[int, int]]  # begin and end of A in ids
    b: list[tuple[int, int]]
    is_next: list[bool]
    document_a: list[int]
    document_b: list[int]
    owed: int = 0  # pairs made NotNext for want of a second sentence, not yet made up for
    left_out: int = 0
    truncated: int = 0

    def add(
        self,
        a: tuple[int, int],
        b: tuple[int, int],
        is_next: bool,
        document_a: int,
        document_b: int,
        cut: bool,
    ) -> None:
        self.a.append(a)
        self.b.append(b)
        self.is_next.append(is_next)
        self.document_a.append(document_a)
        self.document_b.append(document_b)
        self.truncated += cut


def build(
    text: TokenisedText, config: MaskedPairsConfig, special: SpecialIds, rng: np.random.Generator
) -> Built:
    """Build the pairs of one shard, each of at most `config.sequence_length` tokens.

    Raises DataError if there is no second document that B could come from.
    """
    if len(text.documents) < 2:
        raise DataError(
            "a next-sentence pair needs a B from another document, but a shard holds "
            f"{len(text.documents)} document; set instances.kind=masked_blocks, add documents, or "
            "raise corpus.shard_megabytes"
        )
    plan = _Plan([], [], [], [], [])
    draw = Draws(rng)
    starts, bounds = text.starts.tolist(), text.first_sentence.tolist()
    room = config.sequence_length - 3
    for document in range(len(text.documents)):
        _plan_document(starts, bounds, document, room, config.short_rate, draw, plan)
    hashes = text.documents
    columns = {
        "is_next": np.array(plan.is_next, dtype=np.uint8),
        "document_a": hashes[np.array(plan.document_a, dtype=np.int64)],
        "document_b": hashes[np.array(plan.document_b, dtype=np.int64)],
    }
    shard = frame.pairs(text, plan.a, plan.b, special, columns)
    return Built(shard, {"truncated": plan.truncated, "left_out": plan.left_out})


def check(shard: Shard, facts: Facts, config: MaskedPairsConfig) -> dict[str, Any]:
    """Check and count one shard; DataError naming the figure and the bound if it breaks a rule."""
    counts = check_masked(shard, facts, config, segments=2)
    same = shard.columns["document_a"] == shard.columns["document_b"]
    is_next = shard.columns["is_next"].astype(bool)
    for figure, count in (
        ("NotNext pairs with B from the document of A", int((same & ~is_next).sum())),
        ("IsNext pairs with B from another document", int((~same & is_next).sum())),
    ):
        must(facts.name, figure, count, "exactly", 0, count == 0)
    counts["is_next"] = int(is_next.sum())
    near(facts.name, "share of IsNext pairs", counts["is_next"], len(shard), 0.5, 0.01)
    return counts


def statistics(totals: dict[str, Any], config: MaskedPairsConfig) -> dict[str, Any]:
    """The shares reported for an artifact, from the counts of all its shards."""
    return {
        **masked_statistics(totals, config),
        "is_next_share": totals["is_next"] / totals["instances"],
        "sentences_left_out": totals["left_out"],
    }


def _plan_document(
    starts: list[int],
    bounds: list[int],
    document: int,
    room: int,
    short_rate: float,
    draw: Draws,
    plan: _Plan,
) -> None:
    sentence, end = bounds[document], bounds[document + 1]
    while sentence < end:
        target = draw.integer(2, room) if draw.uniform() < short_rate else room
        last = gather_until(starts, sentence, end, target)
        if last - sentence == 1 and last < end:
            last += 1  # one long sentence: an IsNext pair needs another
        count = last - sentence
        if count == 1 and plan.owed >= _OWED_AT_MOST:
            # Before its label is drawn: leaving out only one label would bias them.
            plan.left_out += 1
            return
        random_next = draw.uniform() < 0.5
        if count == 1 and not random_next:
            plan.owed += 1
            random_next = True
        elif random_next and plan.owed and count > 1:
            plan.owed -= 1
            random_next = False
        a_count = 1 if count <= 2 else draw.integer(1, count - 1)
        a = (starts[sentence], starts[sentence + a_count])
        if random_next:
            other = draw.integer(0, len(bounds) - 3)
            other += other >= document
            first = draw.integer(bounds[other], bounds[other + 1] - 1)
            wanted = max(1, target - (a[1] - a[0]))
            b = (starts[first], starts[gather_until(starts, first, bounds[other + 1], wanted)])
            sentence += a_count  # the rest is gathered again
        else:
            other = document
            b = (a[1], starts[last])
            sentence = last
        a, b, cut = frame.truncate(a, b, room, draw)
        plan.add(a, b, not random_next, document, other, cut)
