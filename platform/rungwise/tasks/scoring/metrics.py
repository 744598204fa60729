"""A metric as a function of sums over examples, so that the bootstrap can draw examples.

A resample of the examples is a sum of rows, and thousands of resamples are one matrix product. N
examples, k sums each, C labels. All metrics are shares or correlations, never percentages, but for
the mean squared error; 0/0 is 0. Tests compare them with the usual libraries.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rungwise.tasks.kinds.examples import TaskInfo

Numbers = NDArray[np.float64]
Predictions = Sequence[Mapping[str, Any]]
_ERRORS = ("loss", "mean_squared_error")


@dataclass(frozen=True)
class TaskMetric:
    """The sums (N, k) of examples, and the value (...) of their totals (..., k). Higher is better
    for a metric that can select a model."""

    count: Callable[[Predictions, Any, TaskInfo], Numbers]
    value: Callable[[Numbers], Numbers]
    selects: bool = True


def means(values: ArrayLike, counts: ArrayLike | None = None) -> Numbers:
    """Return the sums (N, 2) for `mean`: the values, and 1 or `counts`."""
    values_N = np.asarray(values, np.float64)
    return np.stack([values_N, np.ones(len(values_N)) if counts is None else counts], axis=1)


def mean(totals: Numbers) -> Numbers:
    return ratio(totals[..., 0], totals[..., 1])


def ratio(above: Numbers, below: Numbers) -> Numbers:
    """Divide, with 0 where `below` is 0."""
    return np.divide(above, below, out=np.zeros(np.shape(above)), where=np.asarray(below) != 0)


def thirds(totals: Numbers) -> list[Numbers]:
    """Split sums (..., 3C) into those of right predictions, of predictions, and of targets."""
    return np.split(totals, 3, axis=-1)


def f1_scores(totals: Numbers) -> Numbers:
    """Return the F1 of each class (..., C) from sums (..., 3C)."""
    right, predicted, gold = thirds(totals)
    return ratio(2 * right, predicted + gold)


def metric_range(metric: str) -> tuple[float, float]:
    """Return the lowest and highest possible value of a metric or a loss."""
    if metric in _ERRORS:
        return 0.0, math.inf
    return (-1.0 if metric in CORRELATIONS else 0.0), 1.0


CORRELATIONS = ("matthews", "pearson", "weighted_pearson", "spearman", "correlation")
# Decimal digits of metrics that are no shares.
OWN_UNITS = {
    "mean_squared_error": 3,
    "loss": 3,
    "bits_per_byte": 3,
    "perplexity": 1,
    "log_rank": 2,
    "tokens_per_second": 0,
}


def format_metric(value: float, metric: str) -> str:
    """A share as `78.2%`, a correlation times 100 as `52.1`, a loss as `0.412`."""
    if metric in OWN_UNITS:
        return f"{value:,.{OWN_UNITS[metric]}f}"
    return f"{100 * value:.1f}" + "%" * (metric not in CORRELATIONS)
