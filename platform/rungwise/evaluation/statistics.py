"""Means with intervals. A number without its seeds is not a result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95 % interval; the bounds are NaN for a single value."""

    mean: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}] (n={self.count})"


def estimate(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """The mean of independent values with Student's t interval.

    Raises ValueError if there is no value.
    """
    if not values:
        raise ValueError("expected at least one value to estimate a mean, found none")
    mean = float(np.mean(values))
    if len(values) == 1:
        return Estimate(mean, math.nan, math.nan, 1)
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(stats.t.ppf((1 + confidence) / 2, len(values) - 1)) * error
    return Estimate(mean, mean - half, mean + half, len(values))


def paired_difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """The mean of first - second, pair by pair: values with the same index share a seed."""
    if len(first) != len(second):
        raise ValueError(f"expected as many values of each, found {len(first)} and {len(second)}")
    return estimate([a - b for a, b in zip(first, second, strict=True)])
