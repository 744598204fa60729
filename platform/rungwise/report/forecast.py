"""The sections about costs: for each question the cheapest model that is about as good as the best,
rivals without pretraining among them; and what curves over the cost of training foretell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from rungwise.core.stages.artifact import Inputs
from rungwise.evaluation.comparison.claims import ClaimResult
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.evaluation.pretrainings import read_points
from rungwise.evaluation.statistics import Estimate
from rungwise.evaluation.suites.base import Column, Panel, Rungs, plot_estimate
from rungwise.evaluation.suites.items import METRICS
from rungwise.forecast import forecast as forecasts
from rungwise.forecast.curves import Increase, Interval, Point, Points
from rungwise.forecast.forecast import Crossing, Forecasts, RungForecast
from rungwise.report import formats, style
from rungwise.report.findings import Names, VariantComparison, select_stage
from rungwise.report.formats import INK, Looks, Series, metric_name, small_percent
from rungwise.report.page import Row, Section

Tables = dict[str, list[RungForecast]]  # by growth
Crossings = Mapping[str, Sequence[Crossing]]
TIMES = 10.0  # what is foretold on the page; `rungwise forecast` takes any factor
_CURVES, _CROSSINGS = 6, 6  # at most
_PLACES = 60  # of a curve
_HEIGHT = 4.0  # inches of a panel
_BITS = "bits_per_byte"
BITS, POINT = 0.02, 0.01  # margins of advice: bits per byte, a share of correct answers
_LEAST_SECONDS = 0.1  # of a model that is fitted in less
_GROWTHS = {
    "ten times the time, the same text": Increase(TIMES, 1.0),
    "ten times the time and the text": Increase(TIMES, TIMES),
}


@dataclass(frozen=True)
class LadderQuestion:
    """A use for a model, `To predict text`, and the candidates for it: the score and the
    core-seconds of training of each, and the seconds of predicting all `predicted` where they
    are known. This text has `chosen` the settings of some."""

    words: str
    metric: str
    scores: dict[str, Estimate]
    seconds: dict[str, float]
    chosen: frozenset[str] = frozenset()
    predicting: Mapping[str, float] = field(default_factory=dict)
    predicted: str = ""

    @property
    def best(self) -> str:
        """The candidate with the best score, the cheapest of equals."""
        return min(self.scores, key=lambda name: (self._loss(name), self.seconds[name]))

    @property
    def choice(self) -> str:
        """The cheapest candidate whose score is within a margin of the best."""
        margin, least = BITS if self._lower_is_better else POINT, self._loss(self.best)
        near = [name for name in self.scores if self._loss(name) - least <= margin]
        return min(near, key=lambda name: (self.seconds[name], self._loss(name)))

    @property
    def _lower_is_better(self) -> bool:
        # A task is judged by what is higher where it is better.
        return self.metric in METRICS and not METRICS[self.metric].higher_is_better

    def _loss(self, name: str) -> float:
        mean = self.scores[name].mean
        return mean if self._lower_is_better else -mean

    def sentence(self) -> str:
        """`To predict text, take 3-gram: 1.41 bits per byte after 4 s of a core, the best of 7.`"""
        choice, best = self.choice, self.best
        cost = formats.duration(max(self.seconds[choice], 1.0), 0)
        text = f"{self.words}, take {choice}: {self._write_score(choice)} after {cost} of a core"
        if best == choice:
            return f"{text}, the best of {len(self.scores)}."
        ratio = self.seconds[best] / self.seconds[choice]
        times = f"{ratio:.0f} times as much" if ratio >= 2 else "about as much"
        return f"{text}; {best} has {self._write_score(best)} and costs {times}."

    def _write_score(self, name: str) -> str:
        value = formats.score(self.scores[name].mean, self.metric)
        score = f"{value} {formats.metric_name(self.metric)}"
        mark = "(settings chosen on this text)" if name in self.chosen else ""
        return f"{score} {mark}".strip()


def gather_questions(
    rungs: Rungs, columns: Sequence[Column], comparison: VariantComparison
) -> list[LadderQuestion]:
    """The questions that at least two candidates answer: the text, then every task; without any,
    the score that most rungs have."""
    seconds = {}  # core-seconds of pretraining
    for rung in rungs:
        run = rung.pretrain.gradient
        workers = run.attempts[-1].workers if run and run.attempts else 1
        cost = max(rung.pretrain.seconds * workers, _LEAST_SECONDS)
        seconds |= dict.fromkeys((rung.name, *rung.also), cost)
    by_task = [_ask_task(task.evaluation, seconds) for task in comparison.tasks]
    by_score = []
    for column in columns:
        name = f"{column.name}, {column.under}" if column.under else column.name
        words = "To predict text" if column.metric == _BITS else f"By {name}"
        scores = {rung: cell.value for rung, cell in column.cells.items() if cell.exact}
        if scores and column.metric != "perplexity":
            predicting = {
                rung.name: rung.measure.seconds[column.suite]
                for rung in rungs
                if rung.name in scores and column.suite in rung.measure.seconds
            }
            predicted = "all held-out text" if column.metric == _BITS else f"all of {name}"
            by_score.append(
                LadderQuestion(
                    words, column.metric, scores, seconds, column.chosen, predicting, predicted
                )
            )
    by_score.sort(key=lambda each: -len(each.scores))
    text = [each for each in by_score if each.metric == _BITS][:1]
    questions = [each for each in (*text, *by_task) if len(each.scores) > 1]
    return questions or [*text, *by_score][:1]


def _ask_task(evaluation: EvaluateSummary, pretraining: Mapping[str, float]) -> LadderQuestion:
    seconds: dict[str, float] = {}
    predicting: dict[str, float] = {}
    for name, result in evaluation.variants.items():
        own = [row for row in evaluation.rows if row.variant == name]
        before = pretraining.get(name, 0.0) if result.pretraining else 0.0
        seconds[name] = before + fmean(row.seconds for row in own)
        tests = [row.predict_seconds for row in own if row.predict_seconds is not None]
        if tests:
            predicting[name] = fmean(tests)
    for name, rival in evaluation.rivals.items():
        seconds[name] = rival.seconds
        if rival.predict_seconds is not None:
            predicting[name] = rival.predict_seconds
    words = f"For the task {formats.spoken(evaluation.task)}"
    scores = evaluation.estimates()
    predicted = f"{evaluation.examples.test:,} test examples"
    return LadderQuestion(
        words, evaluation.metric, scores, seconds, predicting=predicting, predicted=predicted
    )


def write_advice(questions: Sequence[LadderQuestion], looks: Looks) -> Section | None:
    """The section; None without a question."""
    if not questions:
        return None
    panels = []
    for each in questions:
        title = each.words.removeprefix("For the task ").removeprefix("To ")
        predicting = f"seconds to predict {each.predicted}"
        costs = {"core-seconds of training": each.seconds, predicting: each.predicting}
        for x, seconds in costs.items():
            lines = {
                name: [plot_estimate(seconds[name], score, formats.scale(each.metric))]
                for name, score in each.scores.items()
                if name in looks and name in seconds
            }
            if lines:
                y = formats.metric_axis(each.metric, "")
                panels.append(Panel(title, x, y, lines, is_size=True))
    rows = [
        {"question": each.words, "model": name, "metric": each.metric, "score": score.mean}
        | {"low": score.low, "high": score.high, "core_seconds": each.seconds[name]}
        | {"predict_seconds": each.predicting.get(name), "predicted": each.predicted}
        for each in questions
        for name, score in each.scores.items()
    ]
    plots = style.draw_adaptive("advice", partial(style.draw_panels, panels, looks, columns=2))
    fields = {"questions": questions}
    return Section("advice", "Which to take", fields, plots, {"advice": rows})


@dataclass(frozen=True)
class LadderForecast:
    """The points of a ladder's curve, and what they foretell for each growth."""

    points: list[Point]
    tables: Tables

    def chances(self, claims: Sequence[ClaimResult]) -> dict[str, float]:
        """The chance that each claim about bits per byte, of rungs that can be foretold, holds with
        more time on the same text."""
        rungs = next(iter(self.tables.values()))
        draws = {
            each.rung: each.curves.predict_point(each.target)
            for each in rungs
            if each.later and each.last.measure == _BITS
        }
        chances: dict[str, float] = {}
        for claim in claims:
            rows = claim.comparisons
            if all(
                row.scale == "log" and not row.threshold and row.terms.keys() <= draws.keys()
                for row in rows
            ):
                # Perplexity's logarithm is bits per byte times the bytes of a token, and less is
                # better: a sum of scores that is above 0 is one of bits below it.
                holds = [
                    np.sum([weight * draws[rung] for rung, weight in row.terms.items()], axis=0) < 0
                    for row in rows
                ]
                chances[claim.id] = float(np.mean(np.all(holds, axis=0)))
        return chances


def gather_forecast(inputs: Inputs, names: Names) -> LadderForecast | None:
    """Forecasts from the curve of a ladder, with the names of rungs on the page; None without a
    curve."""
    curves = [*select_stage(inputs, "curve").values()]
    if not curves:
        return None
    points = [
        replace(each, rung=names[each.rung], network=names.get(each.network, ""))
        for each in read_points(curves[0])
    ]
    return LadderForecast(
        points, {title: forecasts.forecast(points, growth) for title, growth in _GROWTHS.items()}
    )


def write_forecast(ladder: LadderForecast, looks: Looks, metrics: Names) -> Section:
    """The section; `metrics` has what judges each task."""
    points, tables = ladder.points, ladder.tables
    same_text = next(iter(tables.values()))
    crossings = {
        title: [
            each for each in forecasts.find_crossings(rungs, _GROWTHS[title].text) if each.foretold
        ]
        for title, rungs in tables.items()
    }
    rows = {
        title: [
            _make_row(
                *(title, rung.rung, metric_name(rung.last.measure), rung.last.bits, rung.later),
                chance_of_best=rung.best,
                core_seconds=rung.target.seconds,
                no_forecast=rung.refusal,
            )
            for rung in _order(rungs)
        ]
        for title, rungs in tables.items()
    }
    tasks = {title: forecasts.forecast_tasks(points, rungs) for title, rungs in tables.items()}
    fields = {
        "tasks": tasks,
        "metrics": metrics,
        "ledes": [_describe_best(title, rungs) for title, rungs in tables.items()],
        "tables": rows,
        "crossings": {
            title: [forecasts.describe_crossing(each, {}) for each in some[:_CROSSINGS]]
            for title, some in crossings.items()
        },
        "refusals": {rung.rung: rung.refusal for rung in same_text if rung.refusal},
        "backtest": forecasts.describe_backtest(forecasts.backtest(points)),
    }
    plots = style.draw_adaptive("forecast", partial(_draw, points, tables, crossings, looks))
    scores = [
        _make_row(
            *(title, rung, f"{each.task}, {metric_name(metrics[each.task])}", now),
            later=(later := each.later.get(rung)),
            no_forecast="" if later else each.refusals.get(rung, each.describe()),
        )
        for title, some in tasks.items()
        for each in some
        for rung, now in each.now.items()
    ]
    csv = {"forecast": [row for each in rows.values() for row in each] + scores}
    return Section("forecast", "With more time or text", fields, plots, csv)


def _order(rungs: Forecasts) -> list[RungForecast]:
    """By measure, and the best first as far as can be told."""
    return sorted(rungs, key=lambda each: (each.last.measure, (each.later or each.now).median))


def _describe_best(title: str, rungs: Forecasts) -> str:
    candidates = [each for each in rungs if each.later and each.last.measure == _BITS]
    if not candidates:
        return f"With {title}: no rung can be foretold."
    best = max(candidates, key=lambda each: each.best or 0.0)
    first = min((each for each in rungs if each.last.measure == _BITS), key=lambda e: e.last.bits)
    assert best.later
    later = f"{best.later.median:.2f} [{best.later.low:.2f}, {best.later.high:.2f}]"
    now = "It is best now."
    if best.rung != first.rung:
        now = f"Best now: {first.rung}, {first.last.bits:.2f}."
    refusals = [each.rung for each in rungs if each.refusal and each.last.measure == _BITS]
    among = f" of those that can be foretold (not {', '.join(refusals)})" if refusals else ""
    return (
        f"With {title}, {best.rung} would be best{among}, with a chance of "
        f"{small_percent(best.best or 0.0)}: {later} bits per byte, {best.last.bits:.2f} now. {now}"
    )


def _make_row(
    title: str, rung: str, measure: str, now: float, later: Interval | None, **more: Any
) -> Row:
    then = {"then": None, "then_low": None, "then_high": None}
    if later:
        then = {"then": later.median, "then_low": later.low, "then_high": later.high}
    return {"with": title, "rung": rung, "measure": measure, "now": now, **then, **more}


def _draw(
    points: Points, tables: Tables, crossings: Crossings, looks: Looks, *, narrow: bool
) -> bytes | None:
    """Bits per byte over core-seconds, a panel for each growth: points as measured, a line through
    them, dashed with a band where it is foretold, a ring at each crossing."""
    some = [each for each in _order(next(iter(tables.values()))) if each.last.measure == _BITS]
    names = [each.rung for each in some[:_CURVES]]
    if not names:
        return None
    figure, panels = style.new_strip([_HEIGHT] * len(tables), narrow=narrow)
    for axes in panels[1:]:
        axes.sharey(panels[0])
    for axes, (title, rungs) in zip(panels, tables.items(), strict=True):
        for rung in rungs:
            if rung.rung in names:
                own = [point for point in points if point.rung == rung.rung]
                _draw_rung(axes, rung, own, _GROWTHS[title], looks[rung.rung])
        _mark_crossings(axes, rungs, crossings[title], names, _GROWTHS[title])
        axes.set_xscale("log")
        style.dress(axes, title, "core-seconds of training", "bits per byte of held-out text")
    style.add_legend_below(figure, panels, last=names)
    return style.png(figure)


def _draw_rung(
    axes: Axes, rung: RungForecast, points: Points, growth: Increase, look: Series
) -> None:
    axes.plot(
        [point.seconds for point in points],
        [point.bits for point in points],
        color=look.colour,
        marker=look.marker,
        markersize=5,
        linestyle="none",
    )
    first, last = rung.curves.first_seconds, rung.last.seconds
    end = rung.target.seconds if rung.later else last
    labelled = False
    for begin, stop, line in ((first, last, "-"), (last, end, style.DASHED)):
        if stop <= begin:
            continue
        seconds = np.geomspace(begin, stop, _PLACES)
        draws = forecasts.predict_at_seconds(rung.curves, seconds, growth.text)
        low, median, high = np.quantile(draws, [0.025, 0.5, 0.975], axis=0)
        label = None if labelled else rung.rung
        axes.plot(seconds, median, color=look.colour, linestyle=line, linewidth=1.6, label=label)
        labelled = True
        if line != "-":
            axes.fill_between(seconds, low, high, color=look.colour, alpha=0.12, linewidth=0)


def _mark_crossings(
    axes: Axes, rungs: Forecasts, crossings: Sequence[Crossing], names: list[str], growth: Increase
) -> None:
    by_name = {each.rung: each for each in rungs}
    for crossing in crossings:
        seconds = crossing.seconds.median
        passing = by_name[crossing.passing]
        if {crossing.passing, crossing.passed} <= {*names} and seconds < passing.target.seconds:
            draws = forecasts.predict_at_seconds(passing.curves, np.array([seconds]), growth.text)
            axes.plot(
                seconds,
                float(np.median(draws)),
                marker="o",
                markersize=11,
                markerfacecolor="none",
                markeredgecolor=INK,
                linestyle="none",
            )
