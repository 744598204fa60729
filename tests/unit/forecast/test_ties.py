"""Ties: a rung that has learnt little is placed by the levels of the others."""

import math
from dataclasses import replace

import numpy as np
import pytest

from rungwise.forecast.curves import Increase, Noise, Point, tie_levels
from rungwise.forecast.forecast import forecast
from tests.unit.forecast.curves import list_points, vague_priors

PRIORS = replace(vague_priors(0.003), gaps={"gpt": (0.1, 0.02), "rnn": (0.3, 0.05)})


def list_rung(family: str, loss: float) -> list[Point]:
    points = list_points(lambda tokens, distinct: loss * (tokens / 1e6) ** -0.1, family)
    return [replace(point, family=family) for point in points]


def test_a_level_is_that_of_the_others_and_the_gap_between() -> None:
    rungs = {"one": list_rung("gpt", 2.0), "two": list_rung("rnn", 3.0)}
    ties = tie_levels(rungs, Noise(0.003, 10), PRIORS)
    level, sd = ties["two"]
    assert level == pytest.approx(math.log(2.0) + 0.2, abs=0.01)
    # The gaps of both, and little for what GPT's own points leave open.
    assert math.hypot(0.02, 0.05) < sd < 1.2 * math.hypot(0.02, 0.05)
    assert ties["one"][0] == pytest.approx(math.log(3.0) - 0.2, abs=0.01)


def test_families_without_a_gap_and_other_measures_are_not_tied() -> None:
    masked = [replace(p, measure="bits_per_masked_token") for p in list_rung("rnn", 3.0)]
    rungs = {"one": list_rung("gpt", 2.0), "two": list_rung("new", 3.0), "three": masked}
    assert tie_levels(rungs, Noise(0.003, 10), PRIORS) == {}


def test_a_tie_narrows_a_forecast_from_little() -> None:
    little = list_rung("rnn", 2.4)[:3]
    (alone,) = forecast(little, Increase(8), PRIORS)
    _, beside = forecast(list_rung("gpt", 2.0) + little, Increase(8), PRIORS)
    draws = [one.curves.predict_point(one.target) for one in (beside, alone)]
    assert np.std(draws[0]) < np.std(draws[1])
