"""The benchmark of forecasts: what it learns from curves, by known ones and by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.forecast import (
    choose_factor,
    forecast_cells,
    learn_law,
    leave_out,
    measure_crossing,
)
from rungwise.forecast.forecast import Crossing, HiddenBudget
from rungwise.forecast.intervals import Interval
from rungwise.forecast.laws import LAWS, PARAMETERS, Point, log_loss
from tests.unit.forecast.curves import list_points, vague_priors

BUDGETS = [2.0**-k for k in range(7)]


def draw_rung(slope: float, family: str) -> list[Point]:
    curve = np.zeros((1, len(PARAMETERS)))
    curve[0] = [0.5, slope, -1.2, math.log(15), -20, -20]
    points = list_points(
        lambda tokens, distinct: float(np.exp(log_loss(curve, *np.full((2, 1), tokens))[0, 0])),
        rung=f"{family} {slope}",
        budgets=BUDGETS,
    )
    return [replace(point, family=family) for point in points]


def test_priors_have_the_mean_and_the_spread_of_the_curves() -> None:
    slopes = np.random.default_rng(0).normal(-2.5, 0.3, 30)
    curves = [draw_rung(slope, "gpt" if slope > -2.5 else "rnn") for slope in slopes]
    (law, *_) = LAWS["gradient"]
    kind, families = learn_law(law, curves, 0.002)
    assert kind["slope"] == pytest.approx([slopes.mean(), slopes.std()], abs=0.05)
    assert kind["bend"][0] == pytest.approx(-1.2, abs=0.1)
    assert families["gpt"]["slope"][0] > kind["slope"][0] > families["rnn"]["slope"][0]


def make_cell(actual: float, half: float) -> HiddenBudget:
    interval = Interval(1.0, math.exp(-half), math.exp(half))
    return HiddenBudget("gpt", "gpt", "bits_per_byte", 0.25, 1.0, 1e6, actual, interval, 1.0, 1.0)


def test_the_factor_covers_95_of_100_cells() -> None:
    # Misses of 1 to 100 half-widths; the luck of runs is nothing here.
    cells = [make_cell(math.exp(0.001 * number), 0.001) for number in range(1, 101)]
    assert choose_factor(cells, noise=0.0) == pytest.approx(96, abs=1)


def test_luck_explains_a_miss_before_the_curve_does() -> None:
    luck = 1.96 * 0.01
    half = math.hypot(luck, 0.03)
    cells = [make_cell(math.exp(math.hypot(luck, 0.06)), half)] * 20
    assert choose_factor(cells, noise=0.01) == pytest.approx(2)


def test_cells_are_four_and_eight_times_what_was_seen() -> None:
    told, refused = forecast_cells(draw_rung(-2.5, "gpt"), vague_priors(0.002))
    assert not refused
    assert sorted((1 / cell.seen, 1 / cell.budget) for cell in told) == [
        (4, 1),
        (8, 1),
        (8, 2),
        (16, 2),
        (16, 4),
    ]


def test_curves_of_one_text_are_left_out_together() -> None:
    assert list(leave_out({"docs": [], "docs_text": [], "novels": []}, "docs")) == ["novels"]


def test_a_measured_crossing_lies_between_budgets() -> None:
    slow = list_points(lambda tokens, distinct: 2 - 0.2 * math.log2(tokens / 5e5), "slow")
    flat = list_points(lambda tokens, distinct: 1.5, "flat")
    crossing = Crossing("slow", "flat", Interval(1, 1, 1), 1.0)
    rungs = {"slow": slow, "flat": flat}
    # 2.5 doublings after 1/16 of 600 seconds.
    assert measure_crossing(rungs, crossing, 600) == pytest.approx(37.5 * 2**2.5, rel=0.01)
    assert measure_crossing(rungs, crossing, 100) == math.inf
