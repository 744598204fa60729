"""Which tag may follow which in a span scheme, and the likeliest legal sequence.

    IOB2     I- continues a B- or I- of its type
    IOBES    if any label is E- or S-: B- and I- must also be continued, by I- or E- of their type

A sequence scores the sum of its logits, which differs from its log probability under independent
words by a constant. The recursion of Viterbi 1967 ("Error bounds for convolutional codes") finds
the best one. Nothing is learnt, so any model can be decoded with or without it.

Shapes: W words, C labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rungwise.core.errors import ConfigError

_GOES_ON = ("I", "E")  # marks that continue a span


@dataclass(frozen=True)
class Transitions:
    """Labels that may begin and end a sentence (C,), and pairs that may follow each other (C, C):
    0 if allowed, -inf if not."""

    first: NDArray[np.float64]
    follow: NDArray[np.float64]
    last: NDArray[np.float64]

    @classmethod
    def of(cls, labels: Sequence[str]) -> Self:
        """Return the transitions of labels that mark spans.

        Raises ConfigError for a label that occurs in no legal sequence.
        """
        marks = [(label[:1], label[2:]) for label in labels]
        ends = any(mark in "ES" for mark, _ in marks)
        goes_on = np.array([mark in _GOES_ON for mark, _ in marks])
        left_open = np.array([ends and mark in "BI" for mark, _ in marks])
        inside = np.array(
            [[a in "BI" and b in _GOES_ON and x == y for b, y in marks] for a, x in marks]
        )
        follow = inside | ~(left_open[:, None] | goes_on)
        others = follow & ~np.eye(len(marks), dtype=bool)
        dead = (goes_on & ~others.any(axis=0)) | (left_open & ~others.any(axis=1))
        if dead.any():
            raise ConfigError(
                "finetune.legal_tags is true, but no legal sequence has the tag "
                f"{labels[int(dead.argmax())]!r} of the task's ({', '.join(labels)}); mend the "
                "tags (data.format.scheme: iob2 does), or leave it out"
            )
        return cls(*(np.where(each, 0.0, -np.inf) for each in (~goes_on, follow, ~left_open)))

    def best(self, logits_WC: NDArray[Any]) -> list[int]:
        """Return the legal sequence of labels with the highest sum of logits."""
        if not len(logits_WC):
            return []
        score_C = self.first + logits_WC[0]
        came_from = []
        for logits_C in logits_WC[1:]:
            score_CC = score_C[:, None] + self.follow
            came_from.append(score_CC.argmax(axis=0))
            score_C = score_CC.max(axis=0) + logits_C
        path = [int((score_C + self.last).argmax())]
        for before_C in reversed(came_from):
            path.append(int(before_C[path[-1]]))
        return path[::-1]
