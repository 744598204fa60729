"""The expected best by the number of trials.

Dodge et al. 2019, "Show your work: improved reporting of experimental results", EMNLP,
arXiv:1909.03004: a result means little without the number of trials it is the best of. Here trials
are drawn without replacement, which is unbiased (Tang et al. 2020, "Showing your work doesn't
always work", ACL).
"""

from collections.abc import Sequence
from itertools import accumulate
from math import comb


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
