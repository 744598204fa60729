"""The section about more time or text: curves over the cost of training, and what they foretell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes

from rungwise.core.stages.artifact import Artifact
from rungwise.evaluation.comparison.claims import ClaimResult
from rungwise.evaluation.curve import read_points
from rungwise.forecast.forecast import (
    Crossing,
    RungForecast,
    backtest,
    describe_backtest,
    describe_crossing,
    find_crossings,
    forecast,
    predict_at_seconds,
)
from rungwise.forecast.laws import Increase, Point
from rungwise.report import style
from rungwise.report.formats import INK, Series, metric_name, small_percent
from rungwise.report.page import Row, Section
from rungwise.report.variants import select_stage

TIMES = 10.0  # what is foretold on the page; `rungwise forecast` takes any factor
_DRAWN, _CROSSINGS = 6, 6  # at most
_PLACES = 60  # of a curve
_HEIGHT = 4.0  # inches of a panel
_BITS = "bits_per_byte"
_GROWTHS = {
    "ten times the time, the same text": Increase(TIMES, 1.0),
    "ten times the time and the text": Increase(TIMES, TIMES),
}


@dataclass(frozen=True)
class LadderForecast:
    """The points of a ladder's curve, and what they foretell for each growth."""

    points: list[Point]
    tables: dict[str, list[RungForecast]]

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
                # Perplexity's logarithm is bits per byte times the bytes of a token.
                holds = [
                    np.sum([weight * draws[rung] for rung, weight in row.terms.items()], axis=0) > 0
                    for row in rows
                ]
                chances[claim.id] = float(np.mean(np.all(holds, axis=0)))
        return chances


def gather_forecast(
    inputs: Mapping[str, Artifact], names: Mapping[str, str]
) -> LadderForecast | None:
    """Forecasts from the curve of a ladder, with the names of rungs on the page; None without a
    curve."""
    curves = [*select_stage(inputs, "curve").values()]
    if not curves:
        return None
    points = [replace(each, rung=names[each.rung]) for each in read_points(curves[0])]
    return LadderForecast(
        points, {title: forecast(points, growth) for title, growth in _GROWTHS.items()}
    )


def write_forecast(ladder: LadderForecast, looks: Mapping[str, Series]) -> Section:
    """The section, with pictures for wide and for narrow screens."""
    points, tables = ladder.points, ladder.tables
    same_text = next(iter(tables.values()))
    crossings = {
        title: [each for each in find_crossings(rungs, _GROWTHS[title].text) if each.foretold]
        for title, rungs in tables.items()
    }
    rows = {
        title: [_make_row(title, rung) for rung in _order(rungs)] for title, rungs in tables.items()
    }
    fields = {
        "ledes": [_describe_best(title, rungs) for title, rungs in tables.items()],
        "tables": rows,
        "crossings": {
            title: [describe_crossing(each) for each in some[:_CROSSINGS]]
            for title, some in crossings.items()
        },
        "refusals": {rung.rung: rung.refusal for rung in same_text if rung.refusal},
        "backtest": describe_backtest(backtest(points)),
    }
    plots = {
        name: _draw(points, tables, crossings, looks, narrow="narrow" in name)
        for name in ("forecast", "forecast-narrow")
    }
    csv = {"forecast": [row for each in rows.values() for row in each]}
    return Section("forecast", "With more time or text", fields, plots, csv)


def _order(rungs: Sequence[RungForecast]) -> list[RungForecast]:
    """By measure, and the best first as far as can be told."""
    return sorted(rungs, key=lambda each: (each.last.measure, (each.later or each.now).median))


def _describe_best(title: str, rungs: Sequence[RungForecast]) -> str:
    candidates = [each for each in rungs if each.later and each.last.measure == _BITS]
    if not candidates:
        return f"With {title}: no rung can be foretold."
    best = max(candidates, key=lambda each: each.best or 0.0)
    first = min((each for each in rungs if each.last.measure == _BITS), key=lambda e: e.last.bits)
    assert best.later
    later = f"{best.later.median:.2f} [{best.later.low:.2f}, {best.later.high:.2f}]"
    now = f"where now {first.rung} is, with {first.last.bits:.2f}"
    today = "as it is now" if best.rung == first.rung else now
    refused = [each.rung for each in rungs if each.refusal and each.last.measure == _BITS]
    among = f" among those that can be foretold (not {', '.join(refused)})" if refused else ""
    return (
        f"With {title}, {best.rung} would be best{among} with a chance of "
        f"{small_percent(best.best or 0.0)}, {today}: {later} bits per byte instead of "
        f"{best.last.bits:.2f}."
    )


def _make_row(title: str, rung: RungForecast) -> Row:
    later = rung.later
    return {
        "with": title,
        "rung": rung.rung,
        "measure": metric_name(rung.last.measure),
        "now": rung.last.bits,
        "then": later and later.median,
        "then_low": later and later.low,
        "then_high": later and later.high,
        "chance_of_best": rung.best,
        "core_seconds": rung.target.seconds,
        "no_forecast": rung.refusal,
    }


def _draw(
    points: Sequence[Point],
    tables: Mapping[str, Sequence[RungForecast]],
    crossings: Mapping[str, Sequence[Crossing]],
    looks: Mapping[str, Series],
    *,
    narrow: bool,
) -> bytes | None:
    """Bits per byte over core-seconds, a panel for each growth: points as measured, a line through
    them, dashed with a band where it is foretold, a ring at each crossing."""
    some = [each for each in _order(next(iter(tables.values()))) if each.last.measure == _BITS]
    drawn = [each.rung for each in some[:_DRAWN]]
    if not drawn:
        return None
    figure, panels = style.new_strip([_HEIGHT] * len(tables), narrow=narrow)
    for axes in panels[1:]:
        axes.sharey(panels[0])
    for axes, (title, rungs) in zip(panels, tables.items(), strict=True):
        for rung in rungs:
            if rung.rung in drawn:
                own = [point for point in points if point.rung == rung.rung]
                _draw_rung(axes, rung, own, _GROWTHS[title], looks[rung.rung])
        _mark_crossings(axes, rungs, crossings[title], drawn, _GROWTHS[title])
        axes.set_xscale("log")
        style.dress(axes, title, "core-seconds of training", "bits per byte of held-out text")
    style.add_legend_below(figure, panels, last=drawn)
    return style.png(figure)


def _draw_rung(
    axes: Axes, rung: RungForecast, points: Sequence[Point], growth: Increase, look: Series
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
    for begin, stop, line in ((first, last, "-"), (last, end, style.DASHED)):
        if stop <= begin:
            continue
        seconds = np.geomspace(begin, stop, _PLACES)
        draws = predict_at_seconds(rung.curves, seconds, growth.text)
        low, median, high = np.quantile(draws, [0.025, 0.5, 0.975], axis=0)
        label = rung.rung if line == "-" else None
        axes.plot(seconds, median, color=look.colour, linestyle=line, linewidth=1.6, label=label)
        if line != "-":
            axes.fill_between(seconds, low, high, color=look.colour, alpha=0.12, linewidth=0)


def _mark_crossings(
    axes: Axes,
    rungs: Sequence[RungForecast],
    crossings: Sequence[Crossing],
    drawn: Sequence[str],
    growth: Increase,
) -> None:
    by_name = {each.rung: each for each in rungs}
    for crossing in crossings:
        seconds = crossing.seconds.median
        passing = by_name[crossing.passing]
        if {crossing.passing, crossing.passed} <= {*drawn} and seconds < passing.target.seconds:
            draws = predict_at_seconds(passing.curves, np.array([seconds]), growth.text)
            axes.plot(
                seconds,
                float(np.median(draws)),
                marker="o",
                markersize=11,
                markerfacecolor="none",
                markeredgecolor=INK,
                linestyle="none",
            )
