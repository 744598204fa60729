"""Forecasts of scores on tasks: a line through each rung's scores over the logarithm of its loss.

Two steps, as in Bhagia et al. 2024 (arXiv:2412.04403): the law of a rung foretells its loss, and
the line its score. Rungs that are measured alike share a slope, and each has a height of its own;
the paper's sigmoid has more parameters than a ladder has budgets.

Scores stay at chance and then rise in steps, which no line foretells. So the largest budget of each
rung is hidden first and foretold from the others. A task is refused where the scores before it are
as near, and intervals are widened until they hold what was hidden.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from rungwise.forecast.forecast import BUDGETS, RungForecast
from rungwise.forecast.intervals import SEED, Interval
from rungwise.forecast.laws import Array, Point, group_by_rung

FEWEST_RUNGS = 3  # that tell whether scores can be foretold
WIDEST_SCORE = 0.1  # an interval whose half is larger is no forecast
BETTER = 0.9  # of the error of the last scores, at which a forecast is worth more than these


@dataclass(frozen=True)
class TaskForecast:
    """The scores of rungs on a task after growth. `now` has every rung with scores, `later` those
    that can be foretold, `refusals` why others cannot. `error` and `last_error` are medians over
    the hidden budgets, of the forecast and of the last score seen; None where too few were hidden.
    """

    task: str
    now: dict[str, float]
    later: dict[str, Interval]
    refusals: dict[str, str]
    error: float | None
    last_error: float | None

    @property
    def is_foretold(self) -> bool:
        """Whether forecasts of the hidden budgets were clearly better than the last scores."""
        if self.error is None or self.last_error is None:
            return False
        return self.error <= BETTER * self.last_error and self.last_error > 0

    def describe(self) -> str:
        """How well the largest budgets were foretold from the others."""
        if self.error is None or self.last_error is None:
            return (
                f"it takes {FEWEST_RUNGS} rungs, measured alike, with scores at {BUDGETS} budgets"
            )
        return (
            f"with the largest budgets hidden, forecasts are off by {100 * self.error:.1f} points, "
            f"the last scores by {100 * self.last_error:.1f}"
        )


@dataclass(frozen=True)
class ParallelLines:
    """A line through the scores of each rung over log loss, all with one slope: least squares."""

    centres: Mapping[str, tuple[float, float, int]]  # mean log loss, mean score, points
    slope: float
    spread: float  # sum of squares of log loss around the centres
    error: float  # standard deviation of a score
    freedom: int  # degrees of freedom of the error

    def draw(self, rung: str, logs: Array) -> Array:
        """Return scores of new runs of a rung with these draws of log loss, at most 1."""
        generator = np.random.default_rng((SEED, zlib.crc32(rung.encode())))
        centre, height, count = self.centres[rung]
        draws = len(logs)
        scale = self.error * np.sqrt(self.freedom / generator.chisquare(self.freedom, draws))
        slope, level, luck = generator.standard_normal((3, draws))
        slopes = self.slope + scale * slope / self.spread**0.5
        heights = height + scale * level / count**0.5
        return np.minimum(heights + slopes * (logs - centre) + scale * luck, 1.0)


def fit_lines(rungs: Mapping[str, Sequence[Point]], task: str) -> ParallelLines | None:
    """Fit lines to points with scores on a task; None if they are too few to tell the error."""
    centres: dict[str, tuple[float, float, int]] = {}
    logs: list[float] = []
    scores: list[float] = []
    for rung, rows in rungs.items():
        x = np.log([row.bits for row in rows])
        y = np.array([fmean(row.scores[task]) for row in rows])
        centres[rung] = (float(x.mean()), float(y.mean()), len(rows))
        logs += (x - x.mean()).tolist()
        scores += (y - y.mean()).tolist()
    freedom = len(logs) - len(centres) - 1
    spread = float(np.square(logs).sum())
    if freedom < 1 or not spread:
        return None
    slope = float(np.dot(logs, scores)) / spread
    residuals = np.array(scores) - slope * np.array(logs)
    # Fine-tuning seeds bound the error from below where a few points lie on a line by luck.
    luck = [
        np.var(row.scores[task], ddof=1) / len(row.scores[task])
        for rows in rungs.values()
        for row in rows
        if len(row.scores[task]) > 1
    ]
    error = max(float(np.square(residuals).sum()) / freedom, float(np.mean(luck)) if luck else 0.0)
    return ParallelLines(centres, slope, spread, error**0.5, freedom)


def forecast_tasks(
    points: Sequence[Point], forecasts: Sequence[RungForecast]
) -> list[TaskForecast]:
    """Forecast every task that points have scores on, at the targets of the rungs' `forecasts`."""
    tasks = dict.fromkeys(task for point in points for task in point.scores)
    return [_forecast_task(points, task, forecasts) for task in tasks]


def _forecast_task(
    points: Sequence[Point], task: str, forecasts: Sequence[RungForecast]
) -> TaskForecast:
    rungs = group_by_rung(point for point in points if task in point.scores)
    errors, last_errors, factor = _hide_largest(rungs, task, forecasts)
    few = len(errors) < FEWEST_RUNGS
    result = TaskForecast(
        task,
        now={rung: fmean(rows[-1].scores[task]) for rung, rows in rungs.items()},
        later={},
        refusals={},
        error=None if few else median(errors),
        last_error=None if few else median(last_errors),
    )
    lines = _fit_alike(rungs, task)
    for each in forecasts:
        rung = each.rung
        if rung not in rungs or not result.is_foretold:
            continue
        own = lines[each.last.measure]
        if own is None or each.refusal:
            result.refusals[rung] = each.refusal or "too few budgets"
            continue
        logs = np.log(each.curves.predict_point(each.target))
        interval = _widen(Interval.of(own.draw(rung, logs)), factor)
        if interval.high - interval.low > 2 * WIDEST_SCORE:
            reason = f"it may be anything between {interval.low:.0%} and {interval.high:.0%}"
            result.refusals[rung] = reason
        else:
            result.later[rung] = interval
    return result


def _fit_alike(rungs: Mapping[str, Sequence[Point]], task: str) -> dict[str, ParallelLines | None]:
    """Return the lines of the rungs with each measure of loss."""
    measures = {rows[-1].measure for rows in rungs.values()}
    return {
        measure: fit_lines(
            {rung: rows for rung, rows in rungs.items() if rows[-1].measure == measure}, task
        )
        for measure in measures
    }


def _hide_largest(
    rungs: Mapping[str, Sequence[Point]], task: str, forecasts: Sequence[RungForecast]
) -> tuple[list[float], list[float], float]:
    """Return the errors of forecasts of each rung's largest budget from the others, those of its
    last score before, and the factor by which intervals hold every hidden score."""
    smaller = {
        rung: [row for row in rows if row.budget < rows[-1].budget] for rung, rows in rungs.items()
    }
    smaller = {rung: rows for rung, rows in smaller.items() if len(rows) > 1}
    lines = _fit_alike(smaller, task)
    errors: list[float] = []
    last_errors: list[float] = []
    factor = 1.0
    for each in forecasts:
        rows = smaller.get(each.rung)
        own = lines[each.last.measure] if rows else None
        if not rows or own is None or each.smaller is None:
            continue
        hidden = rungs[each.rung][-1]
        interval = Interval.of(own.draw(each.rung, np.log(each.smaller.predict_point(hidden))))
        actual = fmean(hidden.scores[task])
        side = interval.high if actual > interval.median else interval.low
        errors.append(abs(actual - interval.median))
        last_errors.append(abs(actual - fmean(rows[-1].scores[task])))
        factor = max(factor, errors[-1] / max(abs(side - interval.median), 1e-9))
    return errors, last_errors, factor


def _widen(interval: Interval, factor: float) -> Interval:
    low, high = (
        interval.median + factor * (bound - interval.median)
        for bound in (interval.low, interval.high)
    )
    return Interval(interval.median, low, min(high, 1.0))
