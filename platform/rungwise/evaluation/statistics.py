"""Means over seeds with confidence intervals, and differences between variants.

V variants, S seeds, N examples, k sums per example, R resamples
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
Range = tuple[float, float]  # the lowest and highest possible value of a metric
Sums = NDArray[np.floating]
_ANY: Range = (-math.inf, math.inf)
_CHUNK = 1 << 22  # weights (resamples times examples) held at once


@dataclass(frozen=True)
class Estimate:
    """A mean over `count` values with its 95 % interval; the bounds are NaN for one value."""

    mean: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}] (n={self.count})"


@dataclass(frozen=True)
class Difference:
    """First minus second variant with its 95 % interval and two-sided `p` for a difference of 0."""

    difference: float
    low: float
    high: float
    p: float


def estimate(values: Sequence[float], within: Range = _ANY) -> Estimate:
    """The mean of independent values with Student's t interval.

    Clipping the interval to the metric's range `within` loses no coverage. Raises ValueError
    without values.
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
    """The mean of first - second over pairs that share a seed; `within` is the metric's range."""
    if len(first) != len(second):
        raise ValueError(f"expected as many values of each, found {len(first)} and {len(second)}")
    widest = within[1] - within[0]
    return estimate([a - b for a, b in zip(first, second, strict=True)], (-widest, widest))


def holm(ps: Sequence[float]) -> list[float]:
    """p values adjusted for multiple comparisons: reject those below 0.05.

    Bounds the probability of any false rejection in the family by 5 % under arbitrary dependence
    (Holm 1979, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
    Statistics 6).
    """
    order = np.argsort(ps, kind="stable")
    factors = np.arange(len(ps), 0, -1)
    adjusted = np.empty(len(ps))
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, factors * np.asarray(ps, float)[order]))
    return adjusted.tolist()


def paired_bootstrap(
    first: Sums,
    second: Sums,
    value: Callable[[Sums], Sums],
    seed: int,
    resamples: int = 10_000,
    within: Range = _ANY,
) -> Difference:
    """The difference of a metric between two variants by bootstrap over examples and seeds.

    `first` and `second` (S, N, k) hold per-example sums, such as true positives, of runs paired by
    seed; `value` maps summed rows (..., k) to the metric (...). The difference is the mean over
    seeds of value(first) - value(second). Each resample draws examples with replacement, the same
    for both variants and all seeds, so that shared difficulty cancels (Koehn 2004, "Statistical
    significance tests for machine translation evaluation", EMNLP; Berg-Kirkpatrick et al. 2012, "An
    empirical investigation of statistical significance in NLP", EMNLP). It draws seeds too: a
    difference should hold for another training as well as for another test set. The interval is the
    percentile interval (Efron and Tibshirani 1993, "An introduction to the bootstrap", ch. 13).

    Drawing both is conservative for noise of (seed, example) pairs (Owen 2007, "The pigeonhole
    bootstrap", Annals of Applied Statistics 1), but the interval is too narrow if most noise comes
    from a few seeds: prefer Student's t (`paired_difference`). One seed covers examples only. The
    interval is clipped to the differences that the metric's range `within` allows.

    Raises ValueError if the shapes differ or an axis is empty.
    """
    if first.ndim != 3 or first.shape != second.shape or 0 in first.shape:
        raise ValueError(
            "expected two arrays (seeds, examples, sums) of one shape with at least one example, "
            f"found {first.shape} and {second.shape}"
        )

    def difference(totals: Sums) -> Sums:
        values = value(totals)
        return values[0] - values[1]

    observed, draws = _resample(np.stack([first, second]), difference, seed, resamples)
    widest = within[1] - within[0]
    low, high = np.quantile(draws, [0.025, 0.975]).clip(-widest, widest)
    # Adding one to each count keeps p above 0 (Davison and Hinkley 1997, sec. 4.2).
    tails = [(np.sum(draws <= 0) + 1), (np.sum(draws >= 0) + 1)]
    p = min(1.0, 2 * float(min(tails)) / (resamples + 1))
    return Difference(observed, float(low), float(high), p)


def bootstrap(
    sums: Sums, value: Callable[[Sums], Sums], seed: int, resamples: int = 10_000
) -> Estimate:
    """A statistic of several models on the same examples, with its interval.

    `sums` (V, S, N, k) are per model; `value` maps summed rows (V, ..., k) to the statistic.
    Examples and seeds are drawn as in `paired_bootstrap`; `count` is the number of examples.
    """
    observed, draws = _resample(sums, value, seed, resamples)
    low, high = np.quantile(draws, [0.025, 0.975])
    return Estimate(observed, float(low), float(high), sums.shape[2])


def _resample(
    sums: Sums, value: Callable[[Sums], Sums], seed: int, resamples: int
) -> tuple[float, NDArray[np.float64]]:
    """The mean of `value` over seeds, and its bootstrap draws (R,); arguments as in `bootstrap`."""
    variants, seeds, examples, _ = sums.shape
    example_rng, seed_rng = np.random.default_rng(seed).spawn(2)
    sums = sums.astype(np.float64)
    flat = np.moveaxis(sums, 2, 0).reshape(examples, -1)  # (N, V S k)
    observed = float(np.mean(value(sums.sum(axis=2))))
    draws = np.empty(resamples)
    # The mean of S resampled seeds has (S - 1) / S of the variance of the mean of S new ones.
    stretch = math.sqrt(seeds / (seeds - 1)) if seeds > 1 else 1.0
    rows = max(1, _CHUNK // examples)
    for begin in range(0, resamples, rows):
        count = min(rows, resamples - begin)
        totals = (_counts(example_rng, examples, count) @ flat).reshape(count, variants, seeds, -1)
        by_seed = value(np.moveaxis(totals, 1, 0))  # (R, S)
        shares = _counts(seed_rng, seeds, count) / seeds
        mean = by_seed.mean(axis=1)
        deviation = (shares * by_seed).sum(axis=1) - mean
        draws[begin : begin + count] = mean + stretch * deviation
    return observed, draws


def error_reduction(old: float, new: float) -> float:
    """(new - old) / (1 - old): the share of errors removed; negative if errors were added.

    The "relative" column of Peters et al. 2018 (ELMo), table 1. Raises ValueError if `old` is 1.
    """
    if old >= 1:
        raise ValueError(f"a variant with score {old} has no errors to reduce")
    return (new - old) / (1 - old)


def sign_agreement(published: float, ours: Estimate) -> Agreement:
    """Whether our difference has the published sign.

    Unresolved if our interval contains 0 or does not exist, or the published difference is 0.
    """
    if published == 0 or not (ours.low > 0 or ours.high < 0):
        return "unresolved"
    return "agrees" if (ours.mean > 0) == (published > 0) else "disagrees"


def _counts(rng: np.random.Generator, size: int, resamples: int) -> NDArray[np.float64]:
    """Multinomial counts (R, size); faster than numpy's multinomial."""
    draws = rng.integers(size, size=(resamples, size))
    draws += size * np.arange(resamples)[:, None]
    counts = np.bincount(draws.ravel(), minlength=resamples * size)
    return counts.reshape(resamples, size).astype(np.float64)
