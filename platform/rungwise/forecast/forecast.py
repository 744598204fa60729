"""Forecasts of a ladder: what each rung is worth now and after growth, or why nobody can tell; at
what cost of training one rung passes another; and scores on tasks.

In a backtest the largest budgets are hidden and foretold from the smaller ones. Three rivals say
how much a forecast is worth: the last point, the log-linear line through the last two points, and,
for which rung is better, that the order of small runs stays.

Scores follow in two steps, as in Bhagia et al. 2024 (arXiv:2412.04403): the law of a rung foretells
its loss, and a line over the logarithm of the loss its score. Rungs that are measured alike share a
slope, and each has a height of its own; the paper's sigmoid has more parameters than a ladder has
budgets. Scores stay at chance and then rise in steps, which no line foretells. So the largest
budget of each rung is hidden first and foretold from the others. A task is refused where the scores
before it are as near, and intervals are widened until they hold what was hidden.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby
from operator import attrgetter
from statistics import fmean, median

import numpy as np

from rungwise.forecast import curves as laws
from rungwise.forecast.curves import Array, Curves, Increase, Interval, Point, Points, Priors, Rungs

FEWEST = 2  # budgets that a forecast is made from
BUDGETS = 3  # two to fit, and the third tells whether the fit foretells anything
FARTHEST = 100.0  # times the largest budget; beyond, nothing is said
OFF = 2.0  # a rung whose largest budget lies so many half-widths from its forecast is not foretold
HARDLY = 0.04  # a network whose loss moves less over its budgets has not begun, or has ended
WIDEST = 0.3  # an interval whose half is a larger share of its median is no forecast
STEPS = 240  # places of the grid of seconds, evenly spaced in logarithms
LIKELY = 0.5  # a crossing whose median lies within the limit is one that is foretold
_UNITS = (("core-hours", 3600.0), ("core-minutes", 60.0), ("core-seconds", 1.0))
_ROUND = 2.0  # of a unit, from which on it is used
FEWEST_RUNGS = 3  # that tell whether scores can be foretold
WIDEST_SCORE = 0.1  # an interval whose half is larger is no forecast
BETTER = 0.9  # of the error of the last scores, at which a forecast is worth more than these


@dataclass(frozen=True)
class RungForecast:
    """The worth of a rung at its largest measured budget, and at a larger one. `later` and `best`
    are None where the rung cannot be forecast; `refusal` says why. `best` is the chance to be the
    best of those that can, among rungs with the same measure. `smaller` is drawn without the
    largest budget, where others are left."""

    rung: str
    last: Point
    target: Point
    now: Interval
    later: Interval | None
    best: float | None
    refusal: str
    curves: Curves
    smaller: Curves | None


Forecasts = Sequence[RungForecast]


def forecast(points: Points, growth: Increase, priors: Priors | None = None) -> list[RungForecast]:
    """Forecast every rung of a ladder, in the order of the points."""
    priors = priors or laws.read_priors()
    rungs = laws.group_by_rung(points)
    curves = laws.draw_curves(points, priors)
    smaller = draw_smaller(points, priors)
    refusals = explain_refusals(points, smaller)
    targets = {rung: laws.grow(rows[-1], growth) for rung, rows in rungs.items()}
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
            smaller=smaller.get(rung),
        )
        for rung, rows in rungs.items()
    ]


def draw_smaller(points: Points, priors: Priors) -> dict[str, Curves]:
    """Draw the curves of rungs without the largest budget of each."""
    rungs = laws.group_by_rung(points)
    smaller = [point for point in points if point.budget < rungs[point.rung][-1].budget]
    return laws.draw_curves(smaller, priors)


def explain_refusals(points: Points, smaller: Mapping[str, Curves]) -> dict[str, str]:
    """Say of each rung why it cannot be forecast from its points; "" if it can. `smaller` are its
    curves without the largest budget."""
    rungs = laws.group_by_rung(points)
    return {rung: _refuse_rung(rows, smaller.get(rung)) for rung, rows in rungs.items()}


def _refuse_rung(rows: Points, curves: Curves | None) -> str:
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


@dataclass(frozen=True)
class Backtest:
    """How well hidden budgets of a ladder, or of several, were foretold; NaN where there are none.
    The rivals are the last point and the line."""

    cells: list[HiddenBudget]
    coverage: float = math.nan  # share of hidden values inside the 95 % interval
    error: float = math.nan  # median absolute one, in bits
    last_error: float = math.nan
    line_error: float = math.nan
    order: float = math.nan  # share of pairs of rungs that the forecast puts in the right order
    last_order: float = math.nan  # the same if the order of the largest seen budget stays

    @classmethod
    def of(cls, cells: list[HiddenBudget]) -> Backtest:
        if not cells:
            return cls(cells)
        guesses = {name: attrgetter(name) for name in ("foretold.median", "last", "line")}
        errors = [
            median(abs(guess(cell) - cell.actual) for cell in cells) for guess in guesses.values()
        ]
        orders = [share_ordered(cells, guesses[name]) for name in ("foretold.median", "last")]
        coverage = fmean(cell.foretold.covers(cell.actual) for cell in cells)
        return cls(cells, coverage, *errors, *orders)


def backtest(points: Points, priors: Priors | None = None) -> Backtest:
    """Hide the largest budgets of a ladder, one more each time, and forecast them from the others.
    The hidden values are of the same documents, whose luck is therefore left out."""
    priors = priors or laws.read_priors()
    budgets = sorted({point.budget for point in points})
    cells: list[HiddenBudget] = []
    for largest in budgets[FEWEST - 1 : -1]:
        smaller = [replace(point, documents=None) for point in points if point.budget <= largest]
        hidden = [point for point in points if point.budget > largest]
        cells += compare(smaller, hidden, priors)
    return Backtest.of(cells)


def compare(seen: Points, hidden: Points, priors: Priors) -> list[HiddenBudget]:
    """Forecast hidden points, means over seeds, from those seen of the same rungs."""
    curves = laws.draw_curves(seen, priors)
    rungs = laws.group_by_rung(seen)
    cells = []
    for rung, rows in laws.group_by_rung(hidden).items():
        if len({row.budget for row in rungs.get(rung, [])}) < FEWEST:
            continue
        line, last = extend_line(rungs[rung]), rungs[rung][-1]
        for _, (first, *others) in groupby(rows, key=lambda row: row.budget):
            cells.append(
                HiddenBudget(
                    rung=rung,
                    family=first.family,
                    measure=first.measure,
                    seen=last.budget,
                    budget=first.budget,
                    distinct=first.distinct,
                    actual=fmean(row.bits for row in [first, *others]),
                    foretold=Interval.of(curves[rung].predict_point(first)),
                    last=mean_bits(rungs[rung])[-1][1],
                    line=line(first),
                )
            )
    return cells


def mean_bits(rows: Points) -> list[tuple[float, float]]:
    """Return the budgets of a rung and their bits, means over seeds."""
    return [
        (budget, fmean(row.bits for row in runs))
        for budget, runs in groupby(rows, key=lambda row: row.budget)
    ]


def extend_line(rows: Points) -> Callable[[Point], float]:
    """Return the rival that goes on along log bits over log budget of the two largest budgets."""
    (x0, y0), (x1, y1) = mean_bits(rows)[-2:]
    slope = np.log(y1 / y0) / np.log(x1 / x0)
    return lambda point: float(y1 * (point.budget / x1) ** slope)


def share_ordered(cells: Sequence[HiddenBudget], value: Callable[[HiddenBudget], float]) -> float:
    """Return the share of pairs that `value` orders as they are; ties count half."""
    right: list[float] = []
    key = attrgetter("seen", "budget", "measure")
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


@dataclass(frozen=True)
class Crossing:
    """Where `passing` becomes better than `passed`, in core-seconds of each. `chance` is the share
    of draws that cross within FARTHEST; bounds beyond it are infinite. A draw in which `passing`
    leads from the first comparable budget on crosses there."""

    passing: str
    passed: str
    seconds: Interval
    chance: float

    @property
    def foretold(self) -> bool:
        return self.chance > LIKELY


def predict_at_seconds(curves: Curves, seconds: Array, text: float = 1.0) -> Array:
    """Return draws of bits after so many core-seconds, on `text` times the training text."""
    last = curves.last
    distinct = laws.grow(last, Increase(text=text)).distinct
    tokens = last.tokens * seconds / last.seconds
    if last.fitted == "counts":
        tokens = np.minimum(tokens, distinct)
    return curves.predict(tokens, np.minimum(tokens, distinct))


def find_crossings(forecasts: Forecasts, text: float = 1.0) -> list[Crossing]:
    """Return a crossing for each pair of rungs that are measured alike and can be forecast. They
    are in the order of their medians, pairs that do not cross within FARTHEST times the larger of
    their budgets last."""
    rungs = [one for one in forecasts if not one.refusal]
    crossings = [
        _cross(one.curves, other.curves, text)
        for one, other in combinations(rungs, 2)
        if one.last.measure == other.last.measure
    ]
    return sorted(crossings, key=lambda crossing: (crossing.seconds.median, -crossing.chance))


def _cross(one: Curves, other: Curves, text: float) -> Crossing:
    first = max(one.first_seconds, other.first_seconds)
    last = FARTHEST * max(one.last.seconds, other.last.seconds)
    seconds = np.geomspace(first, last, STEPS)
    # Positive where `other` is better.
    gaps = np.log(predict_at_seconds(one, seconds, text) / predict_at_seconds(other, seconds, text))
    if np.mean(gaps[:, 0] > 0) > 0.5:
        one, other, gaps = other, one, -gaps
    places = interpolate(np.log(seconds), gaps)
    # Median, low and high, each a draw's own: infinite draws cannot be interpolated.
    ranks = np.quantile(places, [0.5, 0.025, 0.975], method="inverted_cdf")
    return Crossing(
        passing=other.last.rung,
        passed=one.last.rung,
        seconds=Interval(*np.exp(ranks).tolist()),
        chance=float(np.isfinite(places).mean()),
    )


def interpolate(places: Array, gaps: Array) -> Array:
    """Return where each row of gaps first becomes positive, infinite where it does not."""
    positive = gaps > 0
    index = np.argmax(positive, axis=1)
    rows = np.arange(len(gaps))
    before = np.maximum(index - 1, 0)
    low, high = gaps[rows, before], gaps[rows, index]
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.where(index > 0, -low / (high - low), 0.0)
    crossing = places[before] + part * (places[index] - places[before])
    return np.where(positive.any(axis=1), crossing, np.inf)


def describe_crossing(crossing: Crossing, names: Mapping[str, str]) -> str:
    """`GPT passes 3-gram at 9 [6, 15] core-minutes`."""
    passing = names.get(crossing.passing, crossing.passing)
    passed = names.get(crossing.passed, crossing.passed)
    unit, seconds = next(
        (unit for unit in _UNITS if crossing.seconds.median >= _ROUND * unit[1]), _UNITS[-1]
    )
    median, low, high = (
        "never"
        if math.isinf(value)
        else f"{value / seconds:.2g}"
        if value < 10 * seconds
        else f"{value / seconds:,.0f}"
        for value in (crossing.seconds.median, crossing.seconds.low, crossing.seconds.high)
    )
    return f"{passing} passes {passed} at {median} [{low}, {high}] {unit}"


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
        generator = np.random.default_rng((laws.SEED, zlib.crc32(rung.encode())))
        centre, height, count = self.centres[rung]
        draws = len(logs)
        scale = self.error * np.sqrt(self.freedom / generator.chisquare(self.freedom, draws))
        slope, level, luck = generator.standard_normal((3, draws))
        slopes = self.slope + scale * slope / self.spread**0.5
        heights = height + scale * level / count**0.5
        return np.minimum(heights + slopes * (logs - centre) + scale * luck, 1.0)


def fit_lines(rungs: Rungs, task: str) -> ParallelLines | None:
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


def forecast_tasks(points: Points, forecasts: Forecasts) -> list[TaskForecast]:
    """Forecast every task that points have scores on, at the targets of the rungs' `forecasts`."""
    tasks = dict.fromkeys(task for point in points for task in point.scores)
    return [_forecast_task(points, task, forecasts) for task in tasks]


def _forecast_task(points: Points, task: str, forecasts: Forecasts) -> TaskForecast:
    rungs = laws.group_by_rung(point for point in points if task in point.scores)
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


def _fit_alike(rungs: Rungs, task: str) -> dict[str, ParallelLines | None]:
    """Return the lines of the rungs with each measure of loss."""
    measures = {rows[-1].measure for rows in rungs.values()}
    return {
        measure: fit_lines(
            {rung: rows for rung, rows in rungs.items() if rows[-1].measure == measure}, task
        )
        for measure in measures
    }


def _hide_largest(
    rungs: Rungs, task: str, forecasts: Forecasts
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
