"""Forecasts of a ladder: what each rung is worth now and after growth, or why nobody can tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rungwise.forecast.intervals import DRAWS, Curves, Interval, Priors, draw_curves, read_priors
from rungwise.forecast.points import Increase, Point, group_by_rung, grow

BUDGETS = 3  # two to fit, and the third tells whether the fit foretells anything
FARTHEST = 100.0  # times the largest budget; beyond, nothing is said
OFF = 2.0  # a rung whose largest budget lies so many half-widths from its forecast is not foretold
HARDLY = 0.04  # a network whose loss moves less over its budgets has not begun, or has ended
WIDEST = 0.3  # an interval whose half is a larger share of its median is no forecast


@dataclass(frozen=True)
class RungForecast:
    """The worth of a rung at its largest measured budget, and at a larger one.

    `later` and `best` are None where the rung cannot be forecast; `refusal` says why. `best` is the
    chance to be the best of those that can, among rungs with the same measure.
    """

    rung: str
    last: Point
    target: Point
    now: Interval
    later: Interval | None
    best: float | None
    refusal: str
    curves: Curves


def forecast(
    points: Sequence[Point],
    growth: Increase,
    priors: Priors | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> list[RungForecast]:
    """Forecast every rung of a ladder, in the order of the points."""
    priors = priors or read_priors()
    rungs = group_by_rung(points)
    curves = draw_curves(points, priors, draws, seed)
    refusals = explain_refusals(points, priors, draws, seed)
    targets = {rung: grow(rows[-1], growth) for rung, rows in rungs.items()}
    later = {rung: curves[rung].predict_point(targets[rung]) for rung in rungs}
    for rung, bits in later.items():
        refusals[rung] = refusals[rung] or _refuse_target(rungs[rung][-1], targets[rung], bits)
    draws_known = {rung: bits for rung, bits in later.items() if not refusals[rung]}
    chances = count_wins(draws_known, {rung: rows[-1].measure for rung, rows in rungs.items()})
    return [
        RungForecast(
            rung=rung,
            last=rows[-1],
            target=targets[rung],
            now=Interval.of(curves[rung].predict_point(rows[-1])),
            later=Interval.of(later[rung]) if rung in draws_known else None,
            best=chances.get(rung),
            refusal=refusals[rung],
            curves=curves[rung],
        )
        for rung, rows in rungs.items()
    ]


def explain_refusals(
    points: Sequence[Point], priors: Priors, draws: int = DRAWS, seed: int = 0
) -> dict[str, str]:
    """Say of each rung why it cannot be forecast from its points; "" if it can."""
    rungs = group_by_rung(points)
    smaller = [point for point in points if point.budget < rungs[point.rung][-1].budget]
    curves = draw_curves(smaller, priors, draws, seed)
    return {rung: _refuse_rung(rows, curves.get(rung)) for rung, rows in rungs.items()}


def _refuse_rung(rows: Sequence[Point], curves: Curves | None) -> str:
    budgets = len({row.budget for row in rows})
    if budgets < BUDGETS or curves is None:
        return f"a forecast needs {BUDGETS} budgets, and there are {budgets}"
    change = 1 - rows[-1].bits / rows[0].bits
    if rows[-1].fitted == "gradient" and abs(change) < HARDLY:
        return f"its loss fell by only {change:.1%} over its budgets; try larger ones"
    largest = [row for row in rows if row.budget == rows[-1].budget]
    actual = float(np.mean([row.bits for row in largest]))
    foretold = Interval.of(curves.predict_point(rows[-1]))
    side = foretold.high if actual > foretold.median else foretold.low
    if abs(actual - foretold.median) > OFF * abs(side - foretold.median):
        return (
            f"its smaller budgets foretold {foretold.median:.3f} "
            f"[{foretold.low:.3f}, {foretold.high:.3f}] for the largest, which has {actual:.3f}"
        )
    return ""


def _refuse_target(last: Point, target: Point, bits: np.ndarray) -> str:
    times = max(target.tokens / last.tokens, target.distinct / last.distinct)
    if times > FARTHEST:
        return f"{times:g} times the largest budget is too far; at most {FARTHEST:g} times"
    return explain_width(Interval.of(bits))


def explain_width(interval: Interval) -> str:
    """Say what an interval too wide for a forecast allows; "" if it is narrow enough."""
    if interval.high - interval.low > 2 * WIDEST * interval.median:
        return f"it may be anything between {interval.low:.2f} and {interval.high:.2f}"
    return ""


def count_wins(bits: Mapping[str, np.ndarray], measures: Mapping[str, str]) -> dict[str, float]:
    """Return the share of draws in which each rung has the fewest bits of those measured alike."""
    chances: dict[str, float] = {}
    for measure in {measures[rung] for rung in bits}:
        rungs = [rung for rung in bits if measures[rung] == measure]
        winners = np.argmin([bits[rung] for rung in rungs], axis=0)
        shares = np.bincount(winners, minlength=len(rungs)) / len(winners)
        chances |= dict(zip(rungs, shares.tolist(), strict=True))
    return chances
