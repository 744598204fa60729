"""Crossings lie where algebra says; backtests by hand-made ladders."""

import numpy as np
import pytest

from rungwise.forecast.curves import Increase
from rungwise.forecast.forecast import backtest, find_crossings, forecast, interpolate
from tests.unit.forecast.curves import LARGEST, list_points, vague_priors


def fast(tokens: float, distinct: float) -> float:
    return 1.8 * (tokens / LARGEST) ** -0.04


def slow(tokens: float, distinct: float) -> float:
    return 2.0 * (tokens / LARGEST) ** -0.1


def test_a_crossing_is_where_algebra_says() -> None:
    # The slow rung takes ten times the seconds: 1.8 (t / 60)^-0.04 = 2 (t / 600)^-0.1.
    expected = ((2.0 / 1.8) * 600**0.1 / 60**0.04) ** (1 / 0.06)
    points = list_points(fast, "fast", seconds=60) + list_points(slow, "slow", seconds=600)
    (crossing,) = find_crossings(forecast(points, Increase(), vague_priors()))
    assert (crossing.passing, crossing.passed) == ("slow", "fast")
    assert crossing.foretold
    assert crossing.chance > 0.95
    assert crossing.seconds.median == pytest.approx(expected, rel=0.1)
    assert crossing.seconds.covers(expected)


def test_a_network_passes_counts_where_its_curve_meets_their_value() -> None:
    counts = list_points(fast, "3-gram", seconds=5, fitted="counts", distinct=LARGEST)
    points = counts + list_points(slow, "slow", seconds=600)
    (crossing,) = find_crossings(forecast(points, Increase(), vague_priors()))
    assert crossing.passing == "slow"
    # 1.8 = 2 (t / 600)^-0.1, whatever the counts would gain from more text.
    assert crossing.seconds.median == pytest.approx(600 * (2 / 1.8) ** 10, rel=0.05)


def test_no_crossing_within_the_limit() -> None:
    points = list_points(fast, "one") + list_points(lambda t, d: 1.5 * fast(t, d), "two")
    (crossing,) = find_crossings(forecast(points, Increase(), vague_priors()))
    assert not crossing.foretold
    assert crossing.chance < 0.05
    assert crossing.seconds.median == np.inf


def test_the_first_crossing_of_each_row() -> None:
    gaps = np.array([[-1.0, 1, -1], [-1, -2, -3], [2, 1, -1], [-3, -1, 1]])
    assert interpolate(np.array([0.0, 1, 2]), gaps).tolist() == [0.5, np.inf, 0, 1.5]


def test_a_backtest_of_exact_curves_beats_its_rivals() -> None:
    def bends(tokens: float, distinct: float) -> float:
        return 1.4 + 0.4 * (tokens / 1e6) ** -0.5

    def bends_late(tokens: float, distinct: float) -> float:
        return 1.0 + 0.8 * (tokens / 1e6) ** -0.3

    points = list_points(bends, "one") + list_points(bends_late, "two")
    result = backtest(points, vague_priors(0.003))
    # Two to four budgets are seen: three, two and one are hidden, of two rungs.
    assert len(result.cells) == 12
    assert result.coverage == 1
    assert result.error < result.line_error < result.last_error
    assert result.error < 0.02
    assert {(cell.seen, cell.budget) for cell in result.cells if cell.budget == 8 * cell.seen} == {
        (1 / 8, 1)
    }


def test_order_is_compared_where_small_runs_mislead() -> None:
    points = list_points(fast, "one", seconds=60) + list_points(
        lambda tokens, distinct: 1.75 * (tokens / LARGEST) ** -0.2, "two"
    )
    result = backtest(points, vague_priors(0.003))
    assert result.order > result.last_order
