"""Means, intervals and paired differences against Student's t and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from rungwise.evaluation.statistics import estimate, paired_difference


def test_an_interval_is_students_t_worked_by_hand() -> None:
    found = estimate([1.0, 2.0, 3.0, 4.0])
    # mean 2.5, standard deviation 1.29099, t(0.975, 3) = 3.18245
    assert found.mean == 2.5
    assert found.high - found.mean == pytest.approx(3.182446 * 1.290994 / 2, rel=1e-5)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)


def test_a_paired_difference_agrees_with_scipy() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(1, 1, 12), rng.normal(0, 1, 12)
    found = paired_difference(first.tolist(), second.tolist())
    reference = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high))


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        found = estimate(rng.normal(3, 2, 5).tolist())
        hits += found.low <= 3 <= found.high
    assert abs(hits / 2000 - 0.95) < 5 * math.sqrt(0.95 * 0.05 / 2000)


def test_a_single_value_has_no_interval_and_none_is_refused() -> None:
    assert math.isnan(estimate([1.0]).low)
    with pytest.raises(ValueError, match="at least one value"):
        estimate([])
