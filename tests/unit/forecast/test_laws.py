"""Laws: an exact one is found again, and repeated text never helps more than new text."""

import math
from dataclasses import replace

import numpy as np
import pytest

from rungwise.forecast.curves import (
    FIXED,
    LAWS,
    PARAMETERS,
    Fitted,
    Increase,
    Point,
    fit_law,
    grow,
    log_loss,
)
from tests.unit.forecast.curves import LARGEST, list_points, vague_priors


def power_law(tokens: float, distinct: float) -> float:
    return 1.1 + 0.9 * (tokens / 1e6) ** -0.35


def passes_law(tokens: float, distinct: float) -> float:
    """The law of Muennighoff et al., written as in the paper."""
    unique = min(tokens, distinct)
    repeats = tokens / unique - 1
    effective = unique + unique * 5 * (1 - math.exp(-repeats / 5))
    return 1.1 + 0.9 * (effective / 1e6) ** -0.35


def line_law(tokens: float, distinct: float) -> float:
    return 2.0 * (tokens / 1e6) ** -0.12


@pytest.mark.parametrize(
    ("fitted", "name", "law", "distinct"),
    [
        ("gradient", "floor", power_law, 1e12),
        ("gradient", "floor", passes_law, 5e5),
        ("gradient", "line", line_law, 1e12),
        ("counts", "floor", power_law, 1e12),
        ("counts", "line", line_law, 1e12),
    ],
)
def test_an_exact_law_is_found_again(fitted: Fitted, name: str, law, distinct: float) -> None:
    points = list_points(law, distinct=distinct, fitted=fitted)
    (kind,) = [one for one in LAWS[fitted] if one.name == name]
    priors = vague_priors()
    fit = fit_law(kind, points, priors.choose(points[0], kind), noise=1e-4)
    for times in (0.5, 1.0, 4.0):
        tokens, unique = times * LARGEST, min(times * LARGEST, distinct)
        found = math.exp(fit.predict([tokens], [unique])[0])
        assert found == pytest.approx(law(tokens, distinct), rel=0.004)


def test_one_wild_point_hardly_moves_a_fit() -> None:
    points = list_points(power_law, budgets=[2.0**-k for k in range(8)])
    wild = [replace(points[3], bits=points[3].bits * 1.2)]
    (law, *_) = LAWS["gradient"]
    fit = fit_law(law, points[:3] + wild + points[4:], vague_priors().choose(points[0], law), 0.005)
    assert math.exp(fit.predict([LARGEST], [LARGEST])[0]) == pytest.approx(points[0].bits, rel=0.01)


def test_repeated_text_never_helps_more_than_new_text() -> None:
    generator = np.random.default_rng(0)
    curves = generator.normal(0, 2, (500, len(PARAMETERS)))
    tokens = np.array([1e5, 1e6, 1e7, 1e8])
    new = log_loss(curves, tokens, tokens)
    for distinct in (1e5, 1e6, 5e6):
        repeated = log_loss(curves, tokens, np.minimum(tokens, distinct))
        assert np.all(repeated >= new - 1e-12)


def test_fixed_terms_have_no_effect_on_new_text() -> None:
    curve = np.array([[FIXED.get(name, -0.1) for name in PARAMETERS]])
    tokens = np.array([1e5, 1e6, 1e7])
    expected = -0.1 - math.exp(-0.1) * np.log(tokens / 1e6)
    assert log_loss(curve, tokens, tokens)[0] == pytest.approx(expected, abs=1e-6)


def test_counts_gain_from_text_and_networks_from_compute() -> None:
    (network,) = list_points(power_law, budgets=[1], distinct=1e6)
    counts = replace(network, tokens=1e6, fitted="counts")

    def place(point: Point, growth: Increase) -> tuple[float, float, float]:
        point = grow(point, growth)
        return point.tokens, point.distinct, point.seconds

    assert place(network, Increase(compute=10)) == (8e7, 1e6, 6000)
    assert place(network, Increase(text=10)) == (8e6, 1e7, 600)
    assert place(counts, Increase(compute=10)) == (1e6, 1e6, 600)
    assert place(counts, Increase(text=10)) == (1e7, 1e7, 6000)
