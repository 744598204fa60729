"""How well forecasts of rungs hold: hidden budgets, four and eight times the largest seen.

    python -m benchmarks.forecast             a few minutes of a core
    python -m benchmarks.forecast --write     writes priors.yaml of the package, from all corpora

The points are of real runs (results/2026-11-29-forecast-points.json): rungs of several corpora at
budgets from 1/64 of their recipe's. Each corpus is foretold with priors, noise and factors of the
intervals, one for each measure, from the other corpora alone: parameters of laws are fitted to
their whole curves, and a factor is what their own cells need, foretold with the priors of the
corpora that are then left. A rung that its own smaller budgets do not foretell is refused, as the
command `forecast` does.
"""

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from itertools import repeat
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import numpy as np
import yaml

from benchmarks.common import REPOSITORY, RESULTS, add_results, print_rows
from rungwise.forecast.curves import (
    LAWS,
    Array,
    Fitted,
    Increase,
    Law,
    LawPriors,
    Measure,
    Normal,
    Point,
    Priors,
    estimate_noise,
    fit_law,
    fit_level,
    group_by_rung,
)
from rungwise.forecast.forecast import (
    BUDGETS,
    Backtest,
    Crossing,
    HiddenBudget,
    compare,
    draw_smaller,
    explain_refusals,
    explain_width,
    find_crossings,
    forecast,
    mean_bits,
)

POINTS = RESULTS / "2026-11-29-forecast-points.json"
PRIORS = REPOSITORY / "platform" / "rungwise" / "forecast" / "priors.yaml"
TIMES = (4.0, 8.0)
ROUNDS = 8  # of fitting curves with priors, and priors to fits
BEFORE = 2.0  # curves that a prior counts as: the vague one, and its kind's for a family
NORMAL = 1.96  # half of a 95 % interval, in standard deviations
NOISE = 0.004  # of log L between seeds, before any are seen
GAP = 0.08  # standard deviation of a family's level
MISFIT = 0.01  # of log L, for each doubling
# Before any curve: what the laws' papers and a few runs say, with wide bounds.
VAGUE: dict[str, tuple[float, float]] = {
    "slope": (-2.6, 0.6),
    "bend": (-1.5, 1.0),
    "worth": (1.2, 0.8),
    "onset": (-3.5, 1.0),
    "rise": (-3.5, 1.0),
}

Corpora = Mapping[str, Sequence[Point]]


def read_points(file: Path) -> dict[str, list[Point]]:
    """The points of each corpus; documents are left out, since cells are of the same ones."""
    corpora: dict[str, list[Point]] = {}
    for row in json.loads(file.read_text("utf-8")):
        corpus = row.pop("corpus")
        row |= {"documents": None, "family": row.get("family") or row["rung"]}
        corpora.setdefault(corpus, []).append(Point(**row))
    return corpora


def learn_priors(corpora: Corpora) -> Priors:
    """Learn the noise and the priors of laws from whole curves; intervals are not widened yet."""
    priors = Priors(NOISE, MISFIT, factors=dict.fromkeys(get_args(Measure), 1.0), parameters={})
    squares = [estimate_noise(points, priors).size ** 2 for points in corpora.values()]
    priors = replace(priors, noise=float(np.sqrt(np.mean([NOISE**2, *squares]))))
    curves = [
        rows
        for points in corpora.values()
        for rows in group_by_rung(points).values()
        if len({row.budget for row in rows}) > BUDGETS
    ]
    parameters: dict[Fitted, LawPriors] = {}
    families: dict[str, dict[str, Any]] = {}
    for fitted, laws in LAWS.items():
        mine = [rows for rows in curves if rows[-1].fitted == fitted]
        of_kind = {}
        for law in laws:
            of_kind[law.name], of_family = learn_law(law, mine, priors.noise)
            for family, normals in of_family.items():
                families.setdefault(family, {})[law.name] = normals
        parameters[fitted] = of_kind
    priors = replace(priors, parameters=parameters, families=families)
    return replace(priors, gaps=learn_gaps(corpora, priors))


def learn_gaps(corpora: Corpora, priors: Priors) -> dict[str, Normal]:
    """Learn how far the level of a family is from that of its ladder.

    Levels are sums of a corpus's and a family's, fitted in turns; the families' have a mean of 0.
    """
    rungs = [
        (corpus, rows[-1].family, *fit_level(rows, priors.noise, priors))
        for corpus, points in corpora.items()
        for rows in group_by_rung(points).values()
        if rows[-1].measure == "bits_per_byte" and rows[-1].distinct == rows[0].distinct
    ]
    if not rungs:
        return {}
    corpus, family, level, variance = (np.array(column) for column in zip(*rungs, strict=True))
    weights = 1 / (variance + GAP**2)
    levels = _average(corpus, level, weights)
    for _ in range(ROUNDS):
        gaps = _average(family, level - levels, weights)
        levels = _average(corpus, level - gaps, weights)
    gaps = _average(family, level - levels, weights)
    learnt = {}
    for name in np.unique(family):
        mine = family == name
        squares = ((level - levels - gaps)[mine] ** 2).sum() + BEFORE * GAP**2
        spread = (squares / (mine.sum() + BEFORE)) ** 0.5
        learnt[str(name)] = (round(float(gaps[mine][0]), 3), round(float(spread), 3))
    return learnt


def _average(names: Any, values: Array, weights: Array) -> Array:
    """Return for each value the weighted mean of those with its name."""
    means = np.empty(len(values))
    for name in np.unique(names):
        mine = names == name
        means[mine] = np.average(values[mine], weights=weights[mine])
    return means


def learn_law(
    law: Law, curves: Sequence[Sequence[Point]], noise: float
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Learn the priors of a law's parameters, of all curves and of each family.

    Expectation maximisation: curves are fitted with the priors, and the priors take the mean and
    the spread of the fits, the uncertainty of each fit included.
    """
    names = law.free[1:]
    vague, wide = np.array([VAGUE[name] for name in names]).T
    mean, sd = vague, wide
    owners = np.array([rows[-1].family for rows in curves])
    best = spread = np.zeros((0, len(names)))
    for _ in range(ROUNDS if curves else 0):
        normals = dict(zip(names, zip(mean, sd, strict=True), strict=True))
        fits = [fit_law(law, rows, normals, noise) for rows in curves]
        best = np.array([fit.best[law.columns][1:] for fit in fits])
        spread = np.array([np.diag(fit.covariance)[1:] for fit in fits])
        mean, sd = _pool(best, spread, vague, wide)
    families = {}
    for family in sorted(set(owners) - {""}):
        mine = owners == family
        families[str(family)] = _name(names, *_pool(best[mine], spread[mine], mean, sd))
    return _name(names, mean, sd), families


def _pool(best: Array, spread: Array, mean: Array, sd: Array) -> tuple[Array, Array]:
    """Return mean and standard deviation of fits, as if `BEFORE` others had `mean` and `sd`."""
    number = len(best) + BEFORE
    pooled = (best.sum(0) + BEFORE * mean) / number
    squares = ((best - pooled) ** 2 + spread).sum(0) + BEFORE * ((mean - pooled) ** 2 + sd**2)
    return pooled, np.sqrt(squares / number)


def _name(names: Sequence[str], mean: Array, sd: Array) -> dict[str, list[float]]:
    rows = np.round(np.stack([mean, sd], axis=1), 3).tolist()
    return dict(zip(names, rows, strict=True))


def list_levels(points: Sequence[Point]) -> list[float]:
    """Largest budgets that may be seen: enough below them, and a target above."""
    budgets = sorted({point.budget for point in points})
    return [level for level in budgets[BUDGETS - 1 :] if level * TIMES[0] <= budgets[-1]]


def forecast_cells(
    points: Sequence[Point], priors: Priors
) -> tuple[list[HiddenBudget], list[HiddenBudget]]:
    """Forecast the cells of a corpus; return them and those that a forecast refuses."""
    told: list[HiddenBudget] = []
    refused: list[HiddenBudget] = []
    for level in list_levels(points):
        seen = [point for point in points if point.budget <= level]
        hidden = [point for point in points if point.budget / level in TIMES]
        refusals = explain_refusals(seen, draw_smaller(seen, priors))
        for cell in compare(seen, hidden, priors):
            why = refusals[cell.rung] or explain_width(cell.foretold)
            (refused if why else told).append(cell)
    return told, refused


def choose_factor(cells: Sequence[HiddenBudget], noise: float) -> float:
    """Return the factor with which 95 % of cells lie in their intervals (split conformal).

    Intervals were made without one; the luck of a run, a part of them, is not widened.
    """
    luck = NORMAL * noise
    needed = []
    for cell in cells:
        side = cell.foretold.high if cell.actual > cell.foretold.median else cell.foretold.low
        distance, half = np.log([cell.actual, side]) - np.log(cell.foretold.median)
        spread = max(half**2 - luck**2, (0.1 * half) ** 2)
        needed.append(np.sqrt(max(distance**2 - luck**2, 0.0) / spread))
    share = min(1.0, 0.95 * (1 + 1 / len(needed)))
    return float(np.quantile(needed, share, method="higher"))


def calibrate(corpora: Corpora) -> Priors:
    """Learn priors, and factors from cells of each corpus foretold by the others' priors."""
    cells = [
        cell
        for held_out, points in corpora.items()
        for cell in forecast_cells(points, learn_priors(leave_out(corpora, held_out)))[0]
    ]
    priors = learn_priors(corpora)
    factors = dict(priors.factors)
    for measure in factors:
        if mine := [cell for cell in cells if cell.measure == measure]:
            factors[measure] = round(choose_factor(mine, priors.noise), 2)
    return replace(priors, factors=factors)


def leave_out(corpora: Corpora, name: str) -> dict[str, Sequence[Point]]:
    """The other corpora; `docs_text` is a curve of the same text as `docs`."""
    text = name.partition("_")[0]
    return {other: rows for other, rows in corpora.items() if other.partition("_")[0] != text}


def forecast_crossings(points: Sequence[Point], priors: Priors) -> list[dict[str, Any]]:
    """Forecast crossings from each level, and find those that were measured.

    Kept are those whose median lies beyond what was seen of either rung and where both were tested.
    """
    rows = []
    rungs = group_by_rung(points)
    for level in list_levels(points):
        seen = [point for point in points if point.budget <= level]
        largest = {rung: points[-1].seconds for rung, points in group_by_rung(seen).items()}
        for crossing in find_crossings(forecast(seen, Increase(), priors)):
            pair = (crossing.passing, crossing.passed)
            moving = [rung for rung in pair if rungs[rung][-1].fitted == "gradient"] or pair
            begin = min(largest[rung] for rung in moving)
            end = min(rungs[rung][-1].seconds for rung in moving)
            if begin < crossing.seconds.median <= end:
                actual = measure_crossing(rungs, crossing, end)
                inside = crossing.seconds.covers(actual) or (
                    actual > end and crossing.seconds.high >= end
                )
                rows.append(
                    {"seen": level, **asdict(crossing), "actual": actual, "inside": bool(inside)}
                )
    return rows


def measure_crossing(rungs: Mapping[str, Sequence[Point]], crossing: Crossing, end: float) -> float:
    """Return when `passing` became better by the measured points, infinite if not until `end`."""
    pair = [rungs[crossing.passing], rungs[crossing.passed]]
    seconds = np.geomspace(max(rows[0].seconds for rows in pair), end, 1000)
    better, worse = (_interpolate(rows, seconds) for rows in pair)
    return float(seconds[np.argmax(better < worse)]) if np.any(better < worse) else float("inf")


def _interpolate(rows: Sequence[Point], seconds: Array) -> Array:
    """Measured bits over log seconds; flat after the largest budget."""
    budgets, bits = zip(*mean_bits(rows), strict=True)
    places = np.array(budgets) / rows[-1].budget * rows[-1].seconds
    return np.interp(np.log(seconds), np.log(places), bits)


def try_corpus(
    name: str, corpora: Corpora
) -> tuple[dict[Measure, float], list[HiddenBudget], list[HiddenBudget], list[dict[str, Any]]]:
    """Forecast cells and crossings of a corpus with what the others teach."""
    priors = calibrate(leave_out(corpora, name))
    told, refused = forecast_cells(corpora[name], priors)
    return dict(priors.factors), told, refused, forecast_crossings(corpora[name], priors)


def describe(told: Sequence[HiddenBudget], refused: Sequence[HiddenBudget]) -> dict[str, Any]:
    """The numbers of cells, and the rungs that were missed."""
    result = Backtest.of(list(told))
    bytewise = Backtest.of([cell for cell in told if cell.measure == "bits_per_byte"])
    missed = Counter(c.rung for c in told if not c.foretold.covers(c.actual))
    width = [(cell.foretold.high - cell.foretold.low) / 2 for cell in bytewise.cells]
    return {
        "cells": len(told),
        "refused": dict(Counter(cell.rung for cell in refused)),
        "coverage": result.coverage,
        "cells in bits per byte": len(bytewise.cells),
        "median error, bits per byte": bytewise.error,
        "mean half width": fmean(width) if width else None,
        "median error of the last point": bytewise.last_error,
        "median error of the line": bytewise.line_error,
        "order": result.order,
        "order of the small runs": result.last_order,
        "misses": dict(missed),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--points", type=Path, default=POINTS)
    parser.add_argument("--write", action="store_true", help="write priors.yaml")
    options = parser.parse_args(arguments)
    corpora = read_points(options.points)
    results: dict[str, Any] = {}
    told, refused, crossings = [], [], []
    with ProcessPoolExecutor(len(corpora) + 1) as pool:
        names = list({name.partition("_")[0]: None for name in corpora})
        whole = pool.submit(calibrate, corpora) if options.write else None
        for name, tried in zip(names, pool.map(try_corpus, names, repeat(corpora)), strict=True):
            factors, own_told, own_refused, met = tried
            results[name] = {"factors": factors, **describe(own_told, own_refused)}
            results[name] |= {
                "crossings foretold": len(met),
                "crossings inside their interval": sum(row["inside"] for row in met),
                "crossings": met,
                "table": [asdict(cell) for cell in own_told],
            }
            told += own_told
            refused += own_refused
            crossings += met
    results["all"] = describe(told, refused) | {
        # Rungs are put in order within a corpus.
        "order": fmean(result["order"] for result in results.values()),
        "order of the small runs": fmean(
            result["order of the small runs"] for result in results.values()
        ),
        "crossings foretold": len(crossings),
        "crossings inside their interval": sum(row["inside"] for row in crossings),
    }
    for name, result in results.items():
        shown = {key: value for key, value in result.items() if key not in ("table", "crossings")}
        print_rows(name, [(key, _show(value)) for key, value in shown.items()])
    add_results("forecast", {"points": options.points.name, "times": TIMES}, results)
    if whole:
        write_priors(whole.result())


def _show(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def write_priors(priors: Priors) -> None:
    comment = [line for line in PRIORS.read_text("utf-8").splitlines() if line.startswith("#")]
    body = yaml.safe_dump(asdict(priors), sort_keys=False, default_flow_style=None, width=120)
    PRIORS.write_text("\n".join(comment) + "\n" + body, encoding="utf-8")


if __name__ == "__main__":
    main()
