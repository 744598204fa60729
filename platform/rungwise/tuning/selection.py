"""The best of trials, and the expected best by their number.

Dodge et al. 2019, "Show your work: improved reporting of experimental results", EMNLP,
arXiv:1909.03004: a result means little without the number of trials it is the best of. Here trials
are drawn without replacement, which is unbiased (Tang et al. 2020, "Showing your work doesn't
always work", ACL).
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import comb, inf


def rank_trials(
    trials: Iterable[tuple[int, float | None, float | None]], higher_is_better: bool = True
) -> list[int]:
    """The numbers of trials that have a score, the best first, of (number, score, loss). Ties:
    smaller loss, then number, so that the same scores have the same winner."""
    sign = -1 if higher_is_better else 1
    ranked = sorted(
        (sign * score, inf if loss is None else loss, number)
        for number, score, loss in trials
        if score is not None
    )
    return [number for *_, number in ranked]


def expected_best(scores: Sequence[float], higher_is_better: bool) -> list[float]:
    """The mean of the best of 1, 2, ... of these scores over all ways to draw so many of them."""
    ranked = sorted(scores, reverse=not higher_is_better)  # the worst first
    total = len(ranked)
    return [
        sum(score * comb(worse, count - 1) for worse, score in enumerate(ranked))
        / comb(total, count)
        for count in range(1, total + 1)
    ]


def best_so_far(scores: Sequence[float], higher_is_better: bool) -> list[float]:
    """The best of the first 1, 2, ... scores: for trials that were chosen by earlier ones."""
    return list(accumulate(scores, max if higher_is_better else min))
