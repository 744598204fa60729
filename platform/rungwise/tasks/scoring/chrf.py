"""chrF, the character F score (Popović 2015, "chrF: character n-gram F-score for automatic MT
evaluation"), as sums over examples that the bootstrap can draw.

For n = 1 to 6, precision and recall are shares of the character n-grams, without blanks. The score
is the F of their means over n, with recall weighted twice (chrF2). As in sacrebleu, an n counts
only if both sides have n-grams, and for each example only if its target has any.
"""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

_ORDERS = 6
_BETA_SQUARED = 4


def counts(text: str, gold: str) -> list[int]:
    """Count the n-grams of each n in `text`, then in `gold`, then in both."""
    pairs = list(zip(_ngrams(text), _ngrams(gold), strict=True))
    own = [a.total() if b else 0 for a, b in pairs]
    return [*own, *(b.total() for _, b in pairs), *((a & b).total() for a, b in pairs)]


def value(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the score (...) of summed counts (..., 18)."""
    own, gold, both = np.split(totals, 3, axis=-1)
    orders = (own > 0) & (gold > 0)
    precision, recall = (
        np.divide(both, side, out=np.zeros_like(both), where=orders).sum(axis=-1)
        / np.maximum(1, orders.sum(axis=-1))
        for side in (own, gold)
    )
    below = _BETA_SQUARED * precision + recall
    above = (1 + _BETA_SQUARED) * precision * recall
    return np.divide(above, below, out=np.zeros_like(below), where=below > 0)


def is_same_text(text: str, gold: str) -> bool:
    """Whether the texts are equal without blanks, which chrF ignores and many tokenizers lose."""
    return "".join(text.split()) == "".join(gold.split())


def _ngrams(text: str) -> list[Counter[str]]:
    letters = "".join(text.split())
    return [
        Counter(letters[n : n + order] for n in range(len(letters) - order + 1))
        for order in range(1, _ORDERS + 1)
    ]
