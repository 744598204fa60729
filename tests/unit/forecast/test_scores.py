"""Scores on tasks: parallel lines over the loss, and tasks that no line foretells."""

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from rungwise.forecast.curves import Increase, Point, group_by_rung
from rungwise.forecast.forecast import (
    RungForecast,
    TaskForecast,
    fit_lines,
    forecast,
    forecast_tasks,
)
from tests.unit.forecast.curves import LARGEST, list_points, vague_priors

PRIORS = vague_priors(noise=0.002)
RUNGS = {"gpt": 0.6, "lstm": 0.5, "rnn": 0.45, "nnlm": 0.4}  # score at a loss of one bit


def law(tokens: float, distinct: float) -> float:
    return 2.0 * (tokens / LARGEST) ** -0.08


POINTS = [point for rung in RUNGS for point in list_points(law, rung=rung)]


def list_scores(score: Callable[[str, Point], float]) -> list[Point]:
    """Four rungs on one law, with the score of each point by two seeds of fine-tuning."""
    means = [score(point.rung, point) for point in POINTS]
    return [
        replace(point, scores={"topics": [mean - 0.002, mean + 0.002]})
        for point, mean in zip(POINTS, means, strict=True)
    ]


def lie_on_lines(rung: str, point: Point) -> float:
    return RUNGS[rung] - 0.4 * float(np.log(point.bits))


@pytest.fixture(scope="module")
def rungs() -> list[RungForecast]:
    return forecast(POINTS, Increase(4, 4), PRIORS)


def forecast_topics(points: list[Point], rungs: list[RungForecast]) -> TaskForecast:
    [result] = forecast_tasks(points, rungs)
    return result


def test_scores_on_lines_over_the_loss_are_foretold(rungs: list[RungForecast]) -> None:
    result = forecast_topics(list_scores(lie_on_lines), rungs)
    assert result.is_foretold
    assert result.later.keys() == RUNGS.keys()
    for rung, interval in result.later.items():
        actual = RUNGS[rung] - 0.4 * np.log(law(4 * LARGEST, 0))
        assert interval.covers(actual)
        assert interval.median == pytest.approx(actual, abs=0.01)
        assert interval.high - interval.low < 0.1


def test_lines_are_those_of_least_squares_with_a_height_each() -> None:
    generator = np.random.default_rng(0)
    points = list_scores(lambda rung, point: lie_on_lines(rung, point) + generator.normal(0, 0.03))
    rungs = group_by_rung(points)
    lines = fit_lines(rungs, "topics")
    assert lines
    rows = [(place, row) for place, rung in enumerate(rungs) for row in rungs[rung]]
    design = np.zeros((len(rows), len(rungs) + 1))
    for number, (place, row) in enumerate(rows):
        design[number, [place, -1]] = 1, np.log(row.bits)
    scores = np.array([np.mean(row.scores["topics"]) for _, row in rows])
    weights, squares, *_ = np.linalg.lstsq(design, scores)
    assert lines.slope == pytest.approx(weights[-1])
    assert lines.freedom == len(rows) - len(rungs) - 1
    assert lines.error**2 == pytest.approx(squares[0] / lines.freedom)
    for place, (centre, height, _) in enumerate(lines.centres.values()):
        assert height - lines.slope * centre == pytest.approx(weights[place])


def test_the_order_of_points_changes_nothing(rungs: list[RungForecast]) -> None:
    points = list_scores(lie_on_lines)
    shuffled = random.Random(0).sample(points, len(points))
    assert forecast_topics(shuffled, rungs).later == forecast_topics(points, rungs).later


def test_scores_that_rise_in_a_step_are_refused(rungs: list[RungForecast]) -> None:
    """At chance until the largest budget: a line through chance stays there, as the last score."""
    points = list_scores(lambda rung, point: 0.9 if point.budget == 1 else 0.25)
    result = forecast_topics(points, rungs)
    assert not result.is_foretold
    assert not result.later
    assert "with the largest budgets hidden, forecasts are off by 65.0 points" in result.describe()


def test_intervals_hold_scores_without_a_trend(rungs: list[RungForecast]) -> None:
    """A flat line is nearer than a last score that is luck, so that half of such tasks pass."""
    foretold = inside = 0
    for seed in range(100):
        generator = np.random.default_rng(seed)
        points = list_scores(lambda rung, point, by=generator: 0.5 + by.normal(0, 0.02))
        result = forecast_topics(points, rungs)
        foretold += len(result.later)
        inside += sum(interval.covers(0.5) for interval in result.later.values())
    assert foretold > 50
    assert inside >= 0.95 * foretold


def test_a_line_through_few_points_by_luck_is_as_wide_as_the_luck_of_fine_tuning() -> None:
    points = list_scores(lie_on_lines)
    apart = [
        replace(
            point, scores={"topics": [sum(point.scores["topics"]) / 2 + d for d in (-0.1, 0.1)]}
        )
        for point in points
    ]
    lines = fit_lines(group_by_rung(apart), "topics")
    assert lines
    assert lines.error == pytest.approx(0.1)  # of a mean of two: 0.2 / sqrt(2) / sqrt(2)


@pytest.mark.parametrize("budgets", [1, 2])
def test_few_budgets_foretell_nothing(budgets: int) -> None:
    scored = [each for each in list_scores(lie_on_lines) if each.rung in ("gpt", "lstm")]
    points = [each for each in scored if each.budget > 2.0**-budgets]
    result = forecast_topics(points, forecast(points, Increase(4, 4), PRIORS))
    assert not result.later
    assert "scores at 3 budgets" in result.describe()


def test_scores_of_one_rung_tell_nothing(rungs: list[RungForecast]) -> None:
    points = [
        point if point.rung == "gpt" else replace(point, scores={})
        for point in list_scores(lie_on_lines)
    ]
    result = forecast_topics(points, rungs)
    assert result.now.keys() == {"gpt"}
    assert not result.is_foretold
