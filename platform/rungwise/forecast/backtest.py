"""Backtests: the largest budgets are hidden, foretold from the smaller ones, and compared.

Three rivals say how much a forecast is worth: the last point (nothing changes), the log-linear line
through the last two points, and, for which rung is better, that the order of small runs stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby
from statistics import fmean, median

import numpy as np

from rungwise.forecast.intervals import DRAWS, Interval, Priors, draw_curves, read_priors
from rungwise.forecast.points import Point, group_by_rung

FEWEST = 2  # budgets that a forecast is made from


@dataclass(frozen=True)
class HiddenBudget:
    """One hidden budget of one rung: what it has, and what was foretold from smaller ones."""

    rung: str
    family: str
    measure: str
    seen: float  # largest budget that the forecast was made from
    budget: float  # that was hidden
    distinct: float
    actual: float
    foretold: Interval
    last: float  # rival: the largest seen budget's bits
    line: float  # rival: log-linear through the two largest seen

    @property
    def error(self) -> float:
        return abs(self.foretold.median - self.actual)

    @property
    def times(self) -> float:
        return self.budget / self.seen


@dataclass(frozen=True)
class Backtest:
    """The cells of a ladder, or of several; numbers are NaN where there are no cells."""

    cells: list[HiddenBudget]

    def _median(self, error: Callable[[HiddenBudget], float]) -> float:
        return median(map(error, self.cells)) if self.cells else float("nan")

    @property
    def coverage(self) -> float:
        """Share of hidden values inside the 95 % interval."""
        inside = [cell.foretold.covers(cell.actual) for cell in self.cells]
        return fmean(inside) if inside else float("nan")

    @property
    def error(self) -> float:
        """Median absolute error, in bits."""
        return self._median(lambda cell: cell.error)

    @property
    def last_error(self) -> float:
        return self._median(lambda cell: abs(cell.last - cell.actual))

    @property
    def line_error(self) -> float:
        return self._median(lambda cell: abs(cell.line - cell.actual))

    @property
    def order(self) -> float:
        """Share of pairs of rungs that the forecast puts in the order of the hidden values."""
        return share_ordered(self.cells, lambda cell: cell.foretold.median)

    @property
    def last_order(self) -> float:
        """The same if the order of the largest seen budget stays."""
        return share_ordered(self.cells, lambda cell: cell.last)


def backtest(
    points: Sequence[Point], priors: Priors | None = None, draws: int = DRAWS, seed: int = 0
) -> Backtest:
    """Hide the largest budgets of a ladder, one more each time, and forecast them from the others.

    The hidden values are of the same documents, whose luck is therefore left out.
    """
    priors = priors or read_priors()
    budgets = sorted({point.budget for point in points})
    cells: list[HiddenBudget] = []
    for largest in budgets[FEWEST - 1 : -1]:
        smaller = [replace(point, documents=None) for point in points if point.budget <= largest]
        hidden = [point for point in points if point.budget > largest]
        cells += compare(smaller, hidden, priors, draws, seed)
    return Backtest(cells)


def compare(
    seen: Sequence[Point],
    hidden: Sequence[Point],
    priors: Priors,
    draws: int = DRAWS,
    seed: int = 0,
) -> list[HiddenBudget]:
    """Forecast hidden points, means over seeds, from those seen of the same rungs."""
    curves = draw_curves(seen, priors, draws, seed)
    rungs = group_by_rung(seen)
    cells = []
    for rung, rows in group_by_rung(hidden).items():
        if len({row.budget for row in rungs.get(rung, [])}) < FEWEST:
            continue
        line = extend_line(rungs[rung])
        for _, runs in groupby(rows, key=lambda row: row.budget):
            first, *others = runs
            actual = fmean(row.bits for row in [first, *others])
            last = rungs[rung][-1]
            cells.append(
                HiddenBudget(
                    rung=rung,
                    family=first.family,
                    measure=first.measure,
                    seen=last.budget,
                    budget=first.budget,
                    distinct=first.distinct,
                    actual=actual,
                    foretold=Interval.of(curves[rung].predict_point(first)),
                    last=mean_bits(rungs[rung])[-1][1],
                    line=line(first),
                )
            )
    return cells


def mean_bits(rows: Sequence[Point]) -> list[tuple[float, float]]:
    """Return the budgets of a rung and their bits, means over seeds."""
    return [
        (budget, fmean(row.bits for row in runs))
        for budget, runs in groupby(rows, key=lambda row: row.budget)
    ]


def extend_line(rows: Sequence[Point]) -> Callable[[Point], float]:
    """Return the rival that goes on along log bits over log budget of the two largest budgets."""
    (x0, y0), (x1, y1) = mean_bits(rows)[-2:]
    slope = np.log(y1 / y0) / np.log(x1 / x0)
    return lambda point: float(y1 * (point.budget / x1) ** slope)


def share_ordered(cells: Sequence[HiddenBudget], value: Callable[[HiddenBudget], float]) -> float:
    """Return the share of pairs that `value` orders as they are; ties count half."""
    right: list[float] = []

    def key(cell: HiddenBudget) -> tuple[float, float, str]:
        return (cell.seen, cell.budget, cell.measure)

    for _, group in groupby(sorted(cells, key=key), key=key):
        for one, other in combinations(group, 2):
            product = (value(one) - value(other)) * (one.actual - other.actual)
            right.append(0.5 + 0.5 * np.sign(product))
    return fmean(right) if right else float("nan")


def describe_backtest(tested: Backtest) -> str:
    """How well the larger budgets of this ladder were foretold from its smaller ones."""
    if not tested.cells:
        return "Too few budgets to try such forecasts on this ladder; three are needed."
    text = (
        f"Tried on this ladder: {len(tested.cells)} larger budgets foretold from smaller ones, "
        f"median error {tested.error:.3f} bits, {tested.coverage:.0%} inside their 95 % intervals. "
        f"The last point alone is off by {tested.last_error:.3f}, a line through the last two by "
        f"{tested.line_error:.3f}."
    )
    if not math.isnan(tested.order):
        text += (
            f" {tested.order:.0%} of pairs are in the order foretold, {tested.last_order:.0%} in "
            "that of the smaller runs."
        )
    return text
