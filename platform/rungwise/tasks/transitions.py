"""Which tag may follow which in a scheme of spans, and the likeliest sequence that is legal.

    IOB2     I- goes on from B- or I- of its type
    IOBES    where a label is E- or S-: besides, B- and I- must go on, to I- or E- of their type

The score of a sequence is the sum of its logits, which differs from its log probability under
independent words by a constant, and the best one is found by the recursion of Viterbi 1967
("Error bounds for convolutional codes"). Nothing is learnt, so that a model can be read with it or
without.

Shapes: W words, C labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rungwise.core.errors import ConfigError

_GOES_ON = ("I", "E")  # from a word before


@dataclass(frozen=True)
class Transitions:
    """Labels that may begin and end a sentence (C,), and pairs that may follow (C, C), as 0 for
    what is allowed and -inf for what is not."""

    first: NDArray[np.float64]
    follow: NDArray[np.float64]
    last: NDArray[np.float64]

    @classmethod
    def of(cls, labels: Sequence[str]) -> Self:
        """Those of labels that mark spans.

        Raises ConfigError for a label that no legal sequence has.
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
        """The legal sequence of labels with the highest sum of logits."""
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
