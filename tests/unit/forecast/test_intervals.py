"""Intervals: order-free, never narrower than the noise, wider with more of it."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rungwise.core.storage.folder import Folder
from rungwise.evaluation.pretrainings import POINTS
from rungwise.forecast.curves import (
    Curves,
    Increase,
    Interval,
    Noise,
    Point,
    draw_curves,
    estimate_noise,
    grow,
    read_priors,
    weigh_laws,
)
from rungwise.forecast.forecast import count_wins, forecast
from rungwise.report.forecast import gather_forecast
from tests.unit.forecast.curves import BUDGETS, list_points, vague_priors
from tests.unit.forecast.test_laws import line_law, power_law

PRIORS = read_priors()


@cache
def curves_of(budgets: Sequence[float], noise: float) -> Curves:
    return draw_curves(list_points(power_law, budgets=budgets), replace(PRIORS, noise=noise))["gpt"]


def interval_at(times: float, noise: float, budgets: Sequence[float] = BUDGETS) -> Interval:
    curves = curves_of(budgets, noise)
    return Interval.of(curves.predict_point(grow(curves.last, Increase(times, times))))


def test_a_permutation_of_points_changes_nothing() -> None:
    points = list_points(power_law) + list_points(line_law, rung="lstm")
    shuffled = random.Random(0).sample(points, len(points))
    first = {one.rung: one for one in forecast(points, Increase(4, 4), PRIORS)}
    for other in forecast(shuffled, Increase(4, 4), PRIORS):
        assert other.later == first[other.rung].later
        assert other.best == first[other.rung].best


@pytest.mark.parametrize("noise", [0.002, 0.01, 0.03])
def test_two_points_give_no_interval_narrower_than_the_noise(noise: float) -> None:
    for times in (1, 2, 8):
        interval = interval_at(times, noise, budgets=(1 / 2, 1))
        # 500 draws know the width to about 5 %.
        assert np.log(interval.high / interval.low) > 2 * 1.96 * noise * 0.85


@pytest.mark.parametrize("times", [1, 4, 16])
def test_intervals_widen_with_the_noise(times: float) -> None:
    widths = []
    for noise in (0.001, 0.004, 0.016, 0.064):
        interval = interval_at(times, noise)
        widths.append(interval.high - interval.low)
    assert widths == sorted(widths)


def test_intervals_widen_with_distance() -> None:
    widths = []
    for times in (1, 2, 4, 8, 16):
        interval = interval_at(times, 0.004)
        widths.append(np.log(interval.high / interval.low))
    assert widths == sorted(widths)


def test_seeds_say_how_much_noise_there_is() -> None:
    generator = np.random.default_rng(0)
    (point,) = list_points(power_law, budgets=[1])
    seeds = [
        replace(point, seed=seed, bits=point.bits * np.exp(generator.normal(0, 0.02)))
        for seed in range(200)
    ]
    # A standard deviation of 200 values is known to 5 %; three times that.
    assert estimate_noise(seeds, vague_priors()).size == pytest.approx(0.02, rel=0.15)
    assert estimate_noise([point], PRIORS).size == PRIORS.noise


def test_the_law_that_foretold_the_largest_budget_weighs_most() -> None:
    points = list_points(line_law, fitted="counts")
    prior = vague_priors().parameters["counts"]
    weights = weigh_laws(points, Noise(0.002, 10), misfit=0.0, prior=prior)
    assert sum(weights.values()) == pytest.approx(1)
    assert max(weights, key=weights.__getitem__) == "line"


def test_documents_move_all_rungs_alike() -> None:
    generator = np.random.default_rng(0)
    luck = generator.normal(1, 0.5, 50).clip(0.2)
    points = [
        replace(point, documents=tuple(point.bits * luck))
        for rung, law in (("gpt", power_law), ("lstm", line_law))
        for point in list_points(law, rung=rung)
    ]
    gpt, lstm = forecast(points, Increase(), vague_priors())
    alone = [replace(point, documents=None) for point in points if point.rung == "gpt"]
    (without,) = forecast(alone, Increase(), vague_priors())
    assert gpt.now.high - gpt.now.low > 5 * (without.now.high - without.now.low)
    moved = [one.curves.documents for one in (gpt, lstm)]
    assert moved[0] == pytest.approx(moved[1])


def test_wins_are_counted_among_rungs_that_are_measured_alike() -> None:
    bits = {"a": np.array([1.0, 2, 3, 4]), "b": np.array([2.0, 1, 4, 5]), "c": np.zeros(4)}
    measures = {"a": "bits_per_byte", "b": "bits_per_byte", "c": "bits_per_masked_token"}
    assert count_wins(bits, measures) == {"a": 0.75, "b": 0.25, "c": 1.0}


@pytest.mark.parametrize(
    ("points", "growth", "says"),
    [
        (list_points(power_law, budgets=(0.5, 1)), Increase(4), "needs 3 budgets"),
        (list_points(lambda t, d: 2 + (t > 5e6)), Increase(4), "for the largest, which has 3.000"),
        (list_points(lambda t, d: 2.5 - t / 1e8), Increase(4), "by only 3.0% over its budgets"),
        (list_points(power_law), Increase(1000), "1000 times the largest budget is too far"),
    ],
)
def test_a_rung_not_foretold_says_so(points: list[Point], growth: Increase, says: str) -> None:
    (result,) = forecast(points, growth, PRIORS)
    assert says in result.refusal
    assert result.later is None
    assert result.best is None


def test_a_mixture_is_never_foretold_to_be_worse_than_its_network() -> None:
    def counts_help_less(tokens: float, distinct: float) -> float:
        return min(power_law(tokens, distinct), 0.9 * power_law(tokens / 8, distinct) + 0.1)

    network = list_points(power_law)
    mixed = [replace(point, network="gpt") for point in list_points(counts_help_less, rung="both")]
    growth = Increase(16, 16)
    both, alone = (
        {
            one.rung: (one.later.median, one.best)
            for one in forecast([*network, *points], growth, PRIORS)
            if one.later
        }
        for points in (mixed, [replace(point, network="") for point in mixed])
    )
    assert alone["both"][0] > alone["gpt"][0] == both["gpt"][0]
    assert both["both"][0] < both["gpt"][0]
    assert both["both"][1] == 1


def test_a_page_names_the_network_of_a_mixture_as_it_names_its_rung(tmp_path: Path) -> None:
    points = list_points(power_law) + [
        replace(point, network="gpt") for point in list_points(line_law, rung="both")
    ]
    rows = [vars(point) for point in points]
    (tmp_path / POINTS).write_text(json.dumps(rows))
    artifact: Any = SimpleNamespace(stage="curve", folder=Folder.at(tmp_path))
    result = gather_forecast({"curve": artifact}, {"gpt": "GPT", "both": "3-gram + GPT"})
    assert result
    assert {(each.rung, each.network) for each in result.points} == {
        ("GPT", ""),
        ("3-gram + GPT", "GPT"),
    }
