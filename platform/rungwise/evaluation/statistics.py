"""Means over seeds with confidence intervals, and differences between variants. All fine-tuning
runs of one pretraining share its luck, so with several pretrainings they are one value.

S seeds, U runs, N examples, k sums per example, R resamples
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy  # its parts are imported when they are used
from numpy.typing import NDArray

Agreement = Literal["agrees", "disagrees", "unresolved"]
Range = tuple[float, float]  # the lowest and highest possible value of a metric
Sums = NDArray[np.floating]
_ANY: Range = (-math.inf, math.inf)
_FARTHEST, _HALVINGS = 37.0, 40  # standard errors, of which floats still have a p; of the search
_CHUNK = 1 << 22  # weights (resamples times examples) held at once
_MISSED = 3  # heavy examples, as many as benchmarks/perplexity.py needs


@dataclass(frozen=True)
class Estimate:
    """A mean over `count` values with its 95 % interval; the bounds are NaN for one value."""

    mean: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Difference:
    """First minus second variant with its 95 % interval and two-sided `p` for a difference of 0."""

    difference: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class Error:
    """A standard error and its degrees of freedom."""

    size: float
    freedom: float

    def bound(self, p: float) -> float:
        """How far from the truth a value lies in a share `p` of cases, to one side."""
        return -float(scipy.special.stdtrit(self.freedom, p)) * self.size if self.size else 0.0


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of scores with the errors of trainings and of `count` examples. Their half
    widths add up as the sides of a right angle: Satterthwaite's degrees of freedom for both would
    be too many where few trainings happen to agree, above all for small p."""

    mean: float
    trainings: Error
    examples: Error
    count: int

    @property
    def low(self) -> float:
        return self.mean - self._bound(0.025)

    @property
    def high(self) -> float:
        return self.mean + self._bound(0.025)

    def estimate(self, lowest: float = -math.inf, highest: float = math.inf) -> Estimate:
        """The interval, clipped to what is possible; NaN if its error is unknown."""
        if math.isinf(self._bound(0.025)):
            return Estimate(self.mean, math.nan, math.nan, self.count)
        return Estimate(self.mean, max(self.low, lowest), min(self.high, highest), self.count)

    def p_above(self, threshold: float = 0.0) -> float:
        """The one-sided p of a value above `threshold`; 1 without a value (NaN)."""
        return self._p_beyond(self.mean - threshold)

    def p_below(self, threshold: float = 0.0) -> float:
        return self._p_beyond(threshold - self.mean)

    def _bound(self, p: float) -> float:
        return math.hypot(self.trainings.bound(p), self.examples.bound(p))

    def _p_beyond(self, distance: float) -> float:
        if math.isnan(distance):
            return 1.0
        if not (self.trainings.size or self.examples.size):
            return 0.0 if distance > 0 else 1.0
        if distance < 0:
            return 1.0 - self._p_beyond(-distance)
        # By the normal quantile of p, in which the search is even.
        low, high = 0.0, _FARTHEST
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if self._bound(float(scipy.special.ndtr(-middle))) < distance:
                low = middle
            else:
                high = middle
        return float(scipy.special.ndtr(-low))


def combine(
    mean: float, groups: Sequence[Sequence[float]], examples: Sequence[Error], count: int
) -> Contrast:
    """A contrast with the errors of its independent sources: `groups` with the values of their
    trainings, whose means sum up to `mean`, and `examples` of the test sets, `count` in all. A
    group of one value adds nothing: its luck is unknown."""
    trainings = [
        Error(math.sqrt(np.var(values, ddof=1) / len(values)), len(values) - 1)
        for values in groups
        if len(values) > 1
    ]
    return Contrast(mean, _add_errors(trainings), _add_errors(examples), count)


def _add_errors(errors: Sequence[Error]) -> Error:
    """The error of a sum of means. Degrees of freedom by Satterthwaite 1946 ("An approximate
    distribution of estimates of variance components", Biometrics Bulletin 2)."""
    total = math.hypot(*(each.size for each in errors))
    shares = [(each.size / total) ** 4 / each.freedom for each in errors if 0 < total < math.inf]
    return Error(total, 1 / sum(shares) if shares else math.inf)


def leave_one_out(
    sums: Sums, statistic: Callable[[Sums], Sums], weights: NDArray[np.floating] | None = None
) -> Error:
    """The jackknife error over the examples of `sums` (U, N, k); `statistic` maps summed rows
    (R, U, k) to values (R,). It is infinite over one example.

    Of a mean with unequal `weights` (N,), few examples may make up most of the variance. Added is
    that of `_MISSED` more such; degrees of freedom are those of Bell & McCaffrey 2002
    ("Bias reduction in standard errors for linear regression with multi-stage samples", Survey
    Methodology 28): N - 1 if all weigh the same.
    """
    count = sums.shape[1]
    if count == 1:
        return Error(math.inf, 1)
    totals = sums.astype(np.float64).sum(axis=1)
    moves_N = statistic(totals - np.moveaxis(sums, 1, 0)) - statistic(totals[None])
    shares_N = np.full(count, 1 / count) if weights is None else weights / weights.sum()
    # As heavy examples as the heaviest may have been missed, and no move tells of them.
    missed = _MISSED * float(shares_N.max() ** 2 / (shares_N @ shares_N) - 1 / count)
    size = math.sqrt((count - 1) / count * (1 + missed) * float(moves_N @ moves_N))
    # Without example i a mean moves by its residual times its odds. If all vary alike, two moves
    # have the covariance odds_i odds_j ([i = j] + excess_i + excess_j).
    squares_N = (shares_N / (1 - shares_N)) ** 2  # of the odds
    excess_N = float(shares_N @ shares_N) / 2 - shares_N
    trace = squares_N.sum() + 2 * squares_N @ excess_N
    of_square = squares_N.sum() * (squares_N @ excess_N**2) + (squares_N @ excess_N) ** 2
    of_square = 2 * of_square + squares_N**2 @ (1 + 4 * excess_N)
    return Error(size, float(trace**2 / of_square))


def false_verdicts(seeds: int, ratio: float) -> float:
    """How often Student's interval over `seeds` of fine-tuning leaves out 0 between two equally
    good families pretrained once each, if pretraining varies `ratio` times as much: its luck
    inflates the difference and not its interval."""
    bound = float(scipy.special.stdtrit(seeds - 1, 0.975)) / math.sqrt(1 + seeds * ratio**2)
    return 2 * float(scipy.special.stdtr(seeds - 1, -bound))


def estimate(values: Sequence[float], within: Range = _ANY) -> Estimate:
    """The mean of independent values with Student's t interval, clipped to the metric's range
    `within`. Raises ValueError without values."""
    if not values:
        raise ValueError("expected at least one value to estimate a mean, found none")
    mean = float(np.mean(values))
    if len(values) == 1:
        return Estimate(mean, math.nan, math.nan, 1)
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(scipy.special.stdtrit(len(values) - 1, 0.975)) * error
    low, high = max(mean - half, within[0]), min(mean + half, within[1])
    return Estimate(mean, low, high, len(values))


def paired_difference(
    first: Sequence[float], second: Sequence[float], within: Range = _ANY
) -> Estimate:
    """The mean of first - second over pairs that share a seed; `within` is the metric's range."""
    widest = within[1] - within[0]
    return estimate([a - b for a, b in zip(first, second, strict=True)], (-widest, widest))


def holm(ps: Sequence[float]) -> list[float]:
    """p values adjusted for all comparisons of a family, whatever their dependence (Holm 1979, "A
    simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics)."""
    order = np.argsort(ps, kind="stable")
    factors = np.arange(len(ps), 0, -1)
    adjusted = np.empty(len(ps))
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, factors * np.asarray(ps, float)[order]))
    return adjusted.tolist()


@dataclass(frozen=True)
class Bootstrap:
    """A metric of a variant's runs: as observed (S,), and over draws of test examples (R, S)."""

    observed: NDArray[np.floating]
    resampled: NDArray[np.floating]


def draw_values(
    variants: Sequence[Sums], value: Callable[[Sums], Sums], seed: int, resamples: int = 10_000
) -> list[Bootstrap]:
    """The draws of each variant. Its runs hold per-example sums (S, N, k), such as true positives,
    and all see the same drawn examples; `value` maps summed rows (..., k) to the metric (...)."""
    sums = np.concatenate(variants).astype(np.float64)  # (U, N, k), the runs of all variants
    runs, examples, _ = sums.shape
    flat = np.moveaxis(sums, 1, 0).reshape(examples, -1)  # (N, U k)
    rng = np.random.default_rng(seed).spawn(1)[0]
    rows, resampled = max(1, _CHUNK // examples), []
    for begin in range(0, resamples, rows):
        count = min(rows, resamples - begin)
        totals = (_counts(rng, examples, count) @ flat).reshape(count, runs, -1)
        resampled.append(value(totals))  # (R, U)
    ends = np.cumsum([len(each) for each in variants])[:-1]
    observed = np.split(value(sums.sum(axis=1)), ends)
    by_variant = np.split(np.concatenate(resampled), ends, axis=1)
    return [Bootstrap(*each) for each in zip(observed, by_variant, strict=True)]


def paired_draws(
    first: Bootstrap, second: Bootstrap, seed: int, within: Range = _ANY, pretrainings: int = 1
) -> Difference:
    """The difference of a metric between two variants, over the runs that both have, paired by
    seed, with its percentile interval by bootstrap.

    Both variants see the same drawn examples, so that shared difficulty cancels (Koehn 2004,
    "Statistical significance tests for machine translation evaluation", EMNLP). Drawn are seeds
    too, or the `pretrainings` that the seeds are of, one after the other. Drawing both is
    conservative (Owen 2007, "The pigeonhole bootstrap", Annals of Applied Statistics), but too
    narrow where most noise comes from a few seeds; one seed covers examples only.
    """
    runs = min(len(first.observed), len(second.observed))
    observed = float(np.mean(first.observed[:runs] - second.observed[:runs]))
    by_seed = first.resampled[:, :runs] - second.resampled[:, :runs]
    # Draw the trainings too: the seeds, or the pretrainings where there are several.
    outer = pretrainings if pretrainings > 1 else runs
    # The mean of S resampled seeds has (S - 1) / S of the variance of the mean of S new ones.
    stretch = math.sqrt(outer / (outer - 1)) if outer > 1 else 1.0
    by_outer = by_seed.reshape(len(by_seed), outer, -1).mean(axis=2)
    shares = _counts(np.random.default_rng(seed).spawn(2)[1], outer, len(by_seed)) / outer
    mean = by_outer.mean(axis=1)
    draws = mean + stretch * ((shares * by_outer).sum(axis=1) - mean)
    widest = within[1] - within[0]
    low, high = np.quantile(draws, [0.025, 0.975]).clip(-widest, widest)
    # Adding one to each count keeps p above 0 (Davison and Hinkley 1997, sec. 4.2).
    tails = [(np.sum(draws <= 0) + 1), (np.sum(draws >= 0) + 1)]
    p = min(1.0, 2 * float(min(tails)) / (len(draws) + 1))
    return Difference(observed, float(low), float(high), p)


def sign_agreement(published: float, ours: Estimate | Contrast) -> Agreement:
    """Whether our difference has the published sign; unresolved if our interval contains 0 or does
    not exist, or the published difference is 0."""
    if published == 0 or not (ours.low > 0 or ours.high < 0):
        return "unresolved"
    return "agrees" if (ours.mean > 0) == (published > 0) else "disagrees"


def _counts(rng: np.random.Generator, size: int, resamples: int) -> NDArray[np.float64]:
    """Multinomial counts (R, size); faster than numpy's multinomial."""
    draws = rng.integers(size, size=(resamples, size))
    draws += size * np.arange(resamples)[:, None]
    counts = np.bincount(draws.ravel(), minlength=resamples * size)
    return counts.reshape(resamples, size).astype(np.float64)
