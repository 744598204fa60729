"""chrF, the F score of the letters of a text (Popović 2015, "chrF: character n-gram F-score for
automatic MT evaluation"), as sums over examples that the bootstrap can draw.

Of each order 1 to 6 precision and recall are shares of the runs of so many letters, blanks left
out, and the score is the F of their means over the orders, recall weighing twice. As in sacrebleu,
whose chrF2 it is, orders that one of the sides lacks do not count, nor does what a text has of an
order that its target lacks.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

_ORDERS = 6
_BETA_SQUARED = 4


def counts(said: str, gold: str) -> list[int]:
    """Runs of each order in `said`, then in `gold`, then in both."""
    pairs = list(zip(_runs(said), _runs(gold), strict=True))
    told = [a.total() if b else 0 for a, b in pairs]
    return [*told, *(b.total() for _, b in pairs), *((a & b).total() for a, b in pairs)]


def value(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """The score (...) of summed counts (..., 18)."""
    told, wanted, both = np.split(totals, 3, axis=-1)
    there = (told > 0) & (wanted > 0)
    shares = [
        np.divide(both, side, out=np.zeros_like(both), where=there).sum(axis=-1)
        / np.maximum(1, there.sum(axis=-1))
        for side in (told, wanted)
    ]
    below = _BETA_SQUARED * shares[0] + shares[1]
    above = (1 + _BETA_SQUARED) * shares[0] * shares[1]
    return np.divide(above, below, out=np.zeros_like(below), where=below > 0)


def same(said: str, gold: str) -> bool:
    """Whether the texts are equal but for their blanks, which count no more than in chrF: of many
    tokenizers they do not come back."""
    return "".join(said.split()) == "".join(gold.split())


def _runs(text: str) -> list[Counter[str]]:
    letters = "".join(text.split())
    return [
        Counter(letters[n : n + order] for n in range(len(letters) - order + 1))
        for order in range(1, _ORDERS + 1)
    ]
