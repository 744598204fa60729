"""Sentence-order pairs (Lan et al. 2020, ALBERT, arXiv:1909.11942).

A and B are consecutive in a document, and half of the pairs are swapped, so the topic does not
reveal the label, only coherence does. A pair that would leave a lone sentence behind gives it its
own last sentence, or absorbs it; a document of one sentence is cut in two.
"""

from typing import Any, ClassVar, Literal

import numpy as np
from numpy.random import Generator

from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.instances import plan
from rungwise.instances.kind import Built, Figure
from rungwise.instances.masked_kind import MaskedKind


class SentenceOrderConfig(MaskedKind):
    """Pairs of consecutive texts, masked, half of them swapped, as in ALBERT."""

    answers: ClassVar = ("A and B are swapped", "A and B are in order")

    kind: Literal["sentence_order"] = "sentence_order"

    def build(
        self, text: TokenisedText, special: SpecialIds, rng: Generator, planned: int | None = None
    ) -> Built:
        # A document of one token has no order; such tokens are left out and counted.
        room = self.sequence_length - 3
        pieces = plan.in_half_rows(text, room, rng, planned)
        begin = np.arange(len(pieces.document))
        target = plan.targets(pieces, room, self.short_rate, rng)
        last = np.minimum(
            np.maximum(pieces.gathered(begin, pieces.end, target), begin + 2), pieces.end
        )
        lone_left = last == pieces.end - 1
        fits = pieces.starts[pieces.end] - pieces.starts[begin] <= room
        last = np.where(
            lone_left & (last - begin > 2), last - 1, np.where(lone_left & fits, pieces.end, last)
        )

        begin = plan.chain(last)
        first, end = pieces.starts[begin], pieces.starts[last[begin]]
        count = last[begin] - begin
        middle = np.where(
            count > 1,
            pieces.starts[begin + rng.integers(1, np.maximum(count, 2))],
            (first + end) // 2,
        )
        divisible = middle > first
        spans = np.stack([first, middle, middle, end], axis=1)[divisible]
        counts = plan.tokens_unused(pieces, [spans[:, :2], spans[:, 2:]], allowed=pieces.planned)
        in_order = rng.random(len(spans)) < 0.5
        turned = np.where(in_order[:, None], spans, spans[:, [2, 3, 0, 1]])
        columns = {
            "in_order": in_order.astype(np.uint8),
            "document": text.documents[pieces.document[begin[divisible]]],
        }
        return Built(
            plan.frame_rows(text, [turned[:, :2], turned[:, 2:]], special, columns), counts
        )

    def label_figures(self, statistics: dict[str, Any]) -> list[Figure]:
        return [Figure("pairs in order", statistics["in_order_share"], 0.5)]
