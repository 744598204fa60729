"""Ties between the rungs of a ladder: what some are worth says where the others will be.

The loss of a family after a million tokens lies at much the same distance from that of others on
any text. Counts are known well from little, and tell a network's level before it has learnt much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rungwise.forecast.laws import LAWS, Normal, fit_law
from rungwise.forecast.points import Point
from rungwise.forecast.priors import Noise, Priors

LAW = "onset"  # whose level is compared


def tie_levels(
    rungs: Mapping[str, Sequence[Point]], noise: Noise, priors: Priors
) -> dict[str, Normal]:
    """Return a prior of the level of each rung of a known family, from the other rungs."""
    levels: dict[str, Normal] = {}  # of the ladder, as each rung has it: mean and variance
    for rung, rows in rungs.items():
        if rows[-1].family in priors.gaps and rows[-1].measure == "bits_per_byte":
            gap, sd = priors.gaps[rows[-1].family]
            level, variance = fit_level(rows, noise.size, priors)
            levels[rung] = (level - gap, variance + sd**2)
    ties: dict[str, Normal] = {}
    for rung in sorted(levels):
        others = [levels[other] for other in sorted(levels) if other != rung]
        if others:
            weights = [1 / variance for _, variance in others]
            mean = sum(w * level for w, (level, _) in zip(weights, others, strict=True))
            gap, sd = priors.gaps[rungs[rung][-1].family]
            ties[rung] = (mean / sum(weights) + gap, (1 / sum(weights) + sd**2) ** 0.5)
    return ties


def fit_level(rows: Sequence[Point], noise: float, priors: Priors) -> Normal:
    """Return the level of a rung by its own points, and its variance."""
    (law,) = [law for law in LAWS[rows[-1].fitted] if law.name == LAW]
    fit = fit_law(law, rows, priors.choose(rows[-1], law), noise)
    return float(fit.best[0]), float(fit.covariance[0, 0])
