"""Means with intervals, and differences of two variants. A number without its seeds is no result.

S seeds, N examples, k sums an example, R resamples
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Agreement = Literal["agrees", "disagrees", "unresolved"]
Range = tuple[float, float]  # the lowest and the highest value that a metric can have
_ANY: Range = (-math.inf, math.inf)
_CHUNK = 1 << 22  # weights (resamples times examples) that are held at once


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95 % interval; the bounds are NaN for a single value."""

    mean: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}] (n={self.count})"


@dataclass(frozen=True)
class Difference:
    """First minus second variant with its 95 % interval.

    `p` is two-sided, for a difference of 0: below 0.05 where the interval leaves 0 out.
    """

    difference: float
    low: float
    high: float
    p: float


def estimate(values: Sequence[float], within: Range = _ANY) -> Estimate:
    """The mean of independent values with Student's t interval.

    The interval ends where the metric does, which loses no true mean and so no coverage. Raises
    ValueError if there is no value.
    """
    if not values:
        raise ValueError("expected at least one value to estimate a mean, found none")
    mean = float(np.mean(values))
    if len(values) == 1:
        return Estimate(mean, math.nan, math.nan, 1)
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, 0.975)) * error
    low, high = max(mean - half, within[0]), min(mean + half, within[1])
    return Estimate(mean, low, high, len(values))


def paired_difference(
    first: Sequence[float], second: Sequence[float], within: Range = _ANY
) -> Estimate:
    """The mean of first - second, pair by pair: values with the same index share a seed. `within`
    is the range of the values."""
    if len(first) != len(second):
        raise ValueError(f"expected as many values of each, found {len(first)} and {len(second)}")
    widest = within[1] - within[0]
    return estimate([a - b for a, b in zip(first, second, strict=True)], (-widest, widest))


def holm(ps: Sequence[float]) -> list[float]:
    """Each p as if it were the only one: below 0.05 where it stands among all of them.

    The chance that any true null hypothesis of the family has one below 0.05 is at most 5 %,
    however they hang together (Holm 1979, "A simple sequentially rejective multiple test
    procedure", Scandinavian Journal of Statistics 6).
    """
    order = np.argsort(ps, kind="stable")
    left = np.arange(len(ps), 0, -1)
    raised = np.maximum.accumulate(np.minimum(1.0, left * np.asarray(ps, float)[order]))
    adjusted = np.empty(len(ps))
    adjusted[order] = raised
    return adjusted.tolist()


def paired_bootstrap(
    first: NDArray[np.floating],
    second: NDArray[np.floating],
    value: Callable[[NDArray[np.floating]], NDArray[np.floating]],
    seed: int,
    resamples: int = 10_000,
) -> Difference:
    """The difference of a metric between two variants on the same examples, by resampling them.

    `first` and `second` (S, N, k) hold sums of each example, such as true positives, of runs that
    share a seed; `value` makes the metric (...) of summed rows (..., k). The difference is the mean
    over seeds of value(first) - value(second). In each resample both variants and all seeds get the
    same examples, drawn with replacement, so that what is hard for both cancels (Koehn 2004,
    "Statistical significance tests for machine translation evaluation", EMNLP; Berg-Kirkpatrick et
    al. 2012, "An empirical investigation of statistical significance in NLP", EMNLP). Seeds are
    drawn along with them: a difference is to hold for another test set and for another training,
    and examples alone would call the luck of these seeds a property of the variant. The interval is
    the percentile interval (Efron and Tibshirani 1993, "An introduction to the bootstrap", ch. 13).
    Drawing both is conservative where noise is of neither alone (Owen 2007, "The pigeonhole
    bootstrap", Annals of Applied Statistics 1), and with few seeds too narrow where their luck is
    most of the noise: Student's t (`paired_difference`) then is the one to believe. With a single
    seed it covers the examples only.

    Raises ValueError if the shapes differ or there is no example.
    """
    if first.ndim != 3 or first.shape != second.shape or 0 in first.shape:
        raise ValueError(
            "expected two arrays (seeds, examples, sums) of one shape with at least one example, "
            f"found {first.shape} and {second.shape}"
        )

    def minus(totals: NDArray[np.floating]) -> NDArray[np.floating]:
        of_first, of_second = value(totals)
        return of_first - of_second

    observed, drawn = _resampled(np.stack([first, second]), minus, seed, resamples)
    low, high = np.quantile(drawn, [0.025, 0.975])
    # One is added to each count, so that no p is 0 (Davison and Hinkley 1997, sec. 4.2).
    tails = [(np.sum(drawn <= 0) + 1), (np.sum(drawn >= 0) + 1)]
    p = min(1.0, 2 * float(min(tails)) / (resamples + 1))
    return Difference(observed, float(low), float(high), p)


def bootstrap(
    sums: NDArray[np.floating],
    value: Callable[[NDArray[np.floating]], NDArray[np.floating]],
    seed: int,
    resamples: int = 10_000,
) -> Estimate:
    """A number made of several models on the same examples, with its interval.

    `sums` (V, S, N, k) are those of V models; `value` makes the number of summed rows (V, ..., k).
    Examples and seeds are drawn as in `paired_bootstrap`; the count is that of examples.
    """
    observed, drawn = _resampled(sums, value, seed, resamples)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(observed, float(low), float(high), sums.shape[2])


def _resampled(
    sums: NDArray[np.floating],
    value: Callable[[NDArray[np.floating]], NDArray[np.floating]],
    seed: int,
    resamples: int,
) -> tuple[float, NDArray[np.float64]]:
    """The mean over seeds of `value`, which makes a number of summed rows (V, ..., k), and the same
    of each resample of the examples and seeds of `sums` (V, S, N, k)."""
    variants, seeds, examples, _ = sums.shape
    of_examples, of_seeds = np.random.default_rng(seed).spawn(2)
    sums = sums.astype(np.float64)
    flat = np.moveaxis(sums, 2, 0).reshape(examples, -1)  # (N, V S k)
    observed = float(np.mean(value(sums.sum(axis=2))))
    drawn = np.empty(resamples)
    # A mean over S drawn seeds varies by (S - 1) / S of what the mean over S new ones would.
    stretch = math.sqrt(seeds / (seeds - 1)) if seeds > 1 else 1.0
    rows = max(1, _CHUNK // examples)
    for begin in range(0, resamples, rows):
        count = min(rows, resamples - begin)
        totals = (_counts(of_examples, examples, count) @ flat).reshape(count, variants, seeds, -1)
        by_seed = value(np.moveaxis(totals, 1, 0))  # (R, S)
        shares = _counts(of_seeds, seeds, count) / seeds
        middle = by_seed.mean(axis=1)
        luck = (shares * by_seed).sum(axis=1) - middle
        drawn[begin : begin + count] = middle + stretch * luck
    return observed, drawn


def error_reduction(old: float, new: float) -> float:
    """(new - old) / (1 - old) of two shares: the part of the errors that is gone.

    The "relative" column of Peters et al. 2018 (ELMo), table 1. Below 0, errors were added.
    Raises ValueError if the old variant made no error.
    """
    if old >= 1:
        raise ValueError(f"a variant with score {old} has no errors to reduce")
    return (new - old) / (1 - old)


def sign_agreement(published: float, ours: Estimate) -> Agreement:
    """Does our difference have the published one's sign? Unresolved if the interval crosses 0.

    Also unresolved where there is no interval, or the published difference is 0.
    """
    if published == 0 or not (ours.low > 0 or ours.high < 0):
        return "unresolved"
    return "agrees" if (ours.mean > 0) == (published > 0) else "disagrees"


def _counts(rng: np.random.Generator, things: int, resamples: int) -> NDArray[np.float64]:
    """How often each thing is drawn (R, things): multinomial, and quicker than numpy's own."""
    drawn = rng.integers(things, size=(resamples, things))
    drawn += things * np.arange(resamples)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=resamples * things)
    return counts.reshape(resamples, things).astype(np.float64)
