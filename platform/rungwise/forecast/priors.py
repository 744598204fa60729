"""Priors from earlier backtests, before a rung has points: of parameters, noise and misfit.

priors.yaml is written by `python -m benchmarks.forecast --write` from every corpus with a curve.
Families that were seen there have priors of their own; others take those of how they are fitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources

import numpy as np
import yaml

from rungwise.forecast.laws import Law, Normal
from rungwise.forecast.points import Fitted, Point, group_by_rung

FREEDOM = 4.0  # the prior of the noise counts as so many pairs of seeds

LawPriors = Mapping[str, Mapping[str, Normal]]


@dataclass(frozen=True)
class Priors:
    """Knowledge from other corpora.

    `noise`   standard deviation of log L between seeds
    `misfit`  standard deviation of log L from the best law, for each doubling beyond the last point
    `factor`  by which intervals are widened so that they cover what they say
    `gaps`    between the level of a family and that of its ladder
    """

    noise: float
    misfit: float
    factor: float
    parameters: Mapping[Fitted, LawPriors]
    families: Mapping[str, LawPriors] = field(default_factory=dict)
    gaps: Mapping[str, Normal] = field(default_factory=dict)

    def choose(self, point: Point, law: Law) -> dict[str, Normal]:
        """Return the priors of a law's parameters for the rung of a point."""
        family = self.families.get(point.family, {})
        return dict(family.get(law.name) or self.parameters[point.fitted][law.name])


def read_priors() -> Priors:
    text = (resources.files("rungwise.forecast") / "priors.yaml").read_text("utf-8")
    return Priors(**yaml.safe_load(text))


@dataclass(frozen=True)
class Noise:
    """The standard deviation of log L between seeds, and its degrees of freedom."""

    size: float
    freedom: float


def estimate_noise(points: Sequence[Point], priors: Priors) -> Noise:
    """Pool the seeds of all rungs and budgets of a ladder, and the prior."""
    squares, freedom = FREEDOM * priors.noise**2, FREEDOM
    for _, rows in sorted(group_by_rung(points).items()):
        runs: dict[tuple[float, float], list[float]] = {}
        for row in rows:
            runs.setdefault((row.budget, row.distinct), []).append(np.log(row.bits))
        for logs in runs.values():
            squares += float(np.var(logs)) * len(logs)
            freedom += len(logs) - 1
    return Noise((squares / freedom) ** 0.5, freedom)
