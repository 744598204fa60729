"""Joint draws of the curves of a ladder's rungs, from which intervals and comparisons come.

A draw of a rung is one law, chosen by how well each foretold the largest budget from the others;
its parameters, fitted to points and priors moved by their noise; and a misfit that grows with every
doubling beyond the last point, widened by a factor of earlier backtests. To them come the luck of
the run and that of the held-out documents, which are drawn once for all rungs.

priors.yaml is written by `python -m benchmarks.forecast --write` from every corpus with a curve.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

import numpy as np
import yaml

from rungwise.forecast.laws import (
    LAWS,
    Array,
    Fitted,
    Law,
    Measure,
    Normal,
    Point,
    draw_fits,
    fit_law,
    group_by_rung,
    log_loss,
)

DRAWS, SEED = 500, 0
TAIL = 4.0  # degrees of freedom of the error by which laws are weighed
FREEDOM = 4.0  # the prior of the noise counts as so many pairs of seeds
LEVEL_LAW = "onset"  # whose level is compared

LawPriors = Mapping[str, Mapping[str, Normal]]


@dataclass(frozen=True)
class Priors:
    """Knowledge from other corpora.

    `noise`   standard deviation of log L between seeds
    `misfit`  standard deviation of log L from the best law, for each doubling beyond the last point
    `factors` by which intervals are widened so that they cover what they say: masked losses fall in
              steps, which no law foretells
    `gaps`    between the level of a family and that of its ladder
    """

    noise: float
    misfit: float
    factors: Mapping[Measure, float]
    parameters: Mapping[Fitted, LawPriors]
    families: Mapping[str, LawPriors] = field(default_factory=dict)
    gaps: Mapping[str, Normal] = field(default_factory=dict)

    def choose(self, point: Point, law: Law) -> dict[str, Normal]:
        """Return the priors of a law's parameters for the rung of a point."""
        family = self.families.get(point.family, {})
        return dict(family.get(law.name) or self.parameters[point.fitted][law.name])


def read_priors() -> Priors:
    text = (resources.files("rungwise.forecast") / "priors.yaml").read_text("utf-8")
    return Priors(**yaml.safe_load(text))


@dataclass(frozen=True)
class Noise:
    """The standard deviation of log L between seeds, and its degrees of freedom."""

    size: float
    freedom: float


def estimate_noise(points: Sequence[Point], priors: Priors) -> Noise:
    """Pool the seeds of all rungs and budgets of a ladder, and the prior."""
    squares, freedom = FREEDOM * priors.noise**2, FREEDOM
    for _, rows in sorted(group_by_rung(points).items()):
        runs: dict[tuple[float, float], list[float]] = {}
        for row in rows:
            runs.setdefault((row.budget, row.distinct), []).append(np.log(row.bits))
        for logs in runs.values():
            squares += float(np.var(logs)) * len(logs)
            freedom += len(logs) - 1
    return Noise((squares / freedom) ** 0.5, freedom)


def tie_levels(
    rungs: Mapping[str, Sequence[Point]], noise: Noise, priors: Priors
) -> dict[str, Normal]:
    """Return a prior of the level of each rung of a known family, from the other rungs. The loss of
    a family after a million tokens lies at much the same distance from that of others on any text.
    Counts are known well from little, and tell a network's level before it has learnt much."""
    levels: dict[str, Normal] = {}  # of the ladder, as each rung has it: mean and variance
    for rung, rows in rungs.items():
        if rows[-1].family in priors.gaps and rows[-1].measure == "bits_per_byte":
            gap, sd = priors.gaps[rows[-1].family]
            level, variance = fit_level(rows, noise.size, priors)
            levels[rung] = (level - gap, variance + sd**2)
    ties: dict[str, Normal] = {}
    for rung in sorted(levels):
        others = [levels[other] for other in sorted(levels) if other != rung]
        if others:
            weights = [1 / variance for _, variance in others]
            mean = sum(w * level for w, (level, _) in zip(weights, others, strict=True))
            gap, sd = priors.gaps[rungs[rung][-1].family]
            ties[rung] = (mean / sum(weights) + gap, (1 / sum(weights) + sd**2) ** 0.5)
    return ties


def fit_level(rows: Sequence[Point], noise: float, priors: Priors) -> Normal:
    """Return the level of a rung by its own points, and its variance."""
    (law,) = [law for law in LAWS[rows[-1].fitted] if law.name == LEVEL_LAW]
    fit = fit_law(law, rows, priors.choose(rows[-1], law), noise)
    return float(fit.best[0]), float(fit.covariance[0, 0])


@dataclass(frozen=True)
class Interval:
    """A median with its 95 % interval."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, draws: Array) -> Interval:
        low, median, high = np.quantile(draws, [0.025, 0.5, 0.975])
        return cls(float(median), float(low), float(high))

    def covers(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Curves:
    """Draws of one rung's curve, a row each, and where its measured points begin and end."""

    first_seconds: float
    last: Point
    parameters: Array  # draws, parameters
    luck: Array  # draws, of log L: of the run
    misfit: Array  # of log L for each doubling
    documents: Array  # of log L
    factor: float
    network: Curves | None = None  # of a mixture, which could leave all to its network

    def predict(self, tokens: Array, unique: Array) -> Array:
        """Return draws of bits at each place: draws, places."""
        bits = self._predict_alone(tokens, unique)
        if self.network is None:
            return bits
        # A little better, so that the mixture is the winner where its network alone would be one.
        return np.minimum(bits, np.nextafter(self.network.predict(tokens, unique), 0))

    def _predict_alone(self, tokens: Array, unique: Array) -> Array:
        octaves = count_octaves(self.last, tokens, unique)
        logs = log_loss(self.parameters, tokens, unique) + self.misfit[:, None] * octaves
        middle = np.median(logs, axis=0)
        logs = middle + self.factor * (logs - middle)
        return np.exp(logs + (self.luck + self.documents)[:, None])

    def predict_point(self, point: Point) -> Array:
        """Return draws of bits at a point."""
        return self.predict(np.array([point.tokens]), np.array([point.unique]))[:, 0]


def count_octaves(last: Point, tokens: Any, unique: Any) -> Array:
    """Return how often the tokens or the distinct ones of the last point have doubled."""
    return np.log2(np.maximum(np.maximum(tokens / last.tokens, unique / last.unique), 1))


def draw_curves(points: Sequence[Point], priors: Priors) -> dict[str, Curves]:
    """Return draws of the curve of every rung; the same for any order of points."""
    noise = estimate_noise(points, priors)
    rungs = group_by_rung(points)
    weights = _draw_documents(points, np.random.default_rng((SEED, 0)))
    ties = tie_levels(rungs, noise, priors)
    curves = {}
    for rung, rows in rungs.items():
        prior = {
            law.name: priors.choose(rows[-1], law) | ({"level": ties[rung]} if rung in ties else {})
            for law in LAWS[rows[-1].fitted]
        }
        generator = np.random.default_rng((SEED, zlib.crc32(rung.encode())))
        curves[rung] = _draw_rung(rows, noise, priors, prior, weights, generator)
    for rung, rows in rungs.items():
        curves[rung] = replace(curves[rung], network=curves.get(rows[-1].network))
    return curves


def _draw_documents(points: Sequence[Point], generator: np.random.Generator) -> Array:
    """Return how often each draw has each document: draws, documents (none if none were kept)."""
    number = max((len(point.documents or ()) for point in points), default=0)
    if number < 2:
        return np.ones((DRAWS, 0))
    return generator.multinomial(number, np.full(number, 1 / number), size=DRAWS).astype(float)


def _move_by_documents(rows: Sequence[Point], weights: Array) -> Array:
    """Return by how much each draw of documents moves log L of a rung's last point."""
    documents = rows[-1].documents
    if documents is None or len(documents) != weights.shape[1]:
        return np.zeros(len(weights))
    values = np.array(documents)
    return np.log(weights @ values / weights.sum(1) / values.mean())


def _draw_rung(
    rows: Sequence[Point],
    noise: Noise,
    priors: Priors,
    prior: LawPriors,
    weights: Array,
    generator: np.random.Generator,
) -> Curves:
    laws = weigh_laws(rows, noise, priors.misfit, prior)
    # One scale of the noise a draw: its size is known from few seeds.
    scales = np.sqrt(noise.freedom / generator.chisquare(noise.freedom, DRAWS))
    luck, misfit = generator.standard_normal((2, DRAWS))
    counts = generator.multinomial(DRAWS, list(laws.values()))
    shares = np.split(scales, np.cumsum(counts)[:-1])
    parameters = []
    for law, share in zip(LAWS[rows[-1].fitted], shares, strict=True):
        fit = fit_law(law, rows, prior[law.name], noise.size)
        parameters.append(draw_fits(fit, generator, share))
    return Curves(
        first_seconds=min(row.seconds for row in rows),
        last=rows[-1],
        parameters=np.concatenate(parameters),
        luck=noise.size * scales * luck,
        misfit=priors.misfit * misfit,
        documents=_move_by_documents(rows, weights),
        factor=priors.factors[rows[-1].measure],
    )


def weigh_laws(
    rows: Sequence[Point], noise: Noise, misfit: float, prior: LawPriors
) -> dict[str, float]:
    """Return weights of the laws, by how each foretells the largest budget from the smaller ones.
    The density of a t distribution around what a law foretold, as wide as its own error; equal
    weights where leaving out the largest budget leaves fewer than two."""
    last = rows[-1]
    hidden = [row for row in rows if row.budget == last.budget]
    smaller = [row for row in rows if row.budget < last.budget]
    laws = LAWS[last.fitted]
    if len({row.budget for row in smaller}) < 2:
        return {law.name: 1 / len(laws) for law in laws}
    actual = float(np.mean(np.log([row.bits for row in hidden])))
    octaves = count_octaves(smaller[-1], last.tokens, last.unique)
    densities = []
    for law in laws:
        fit = fit_law(law, smaller, prior[law.name], noise.size)
        foretold = fit.predict(last.tokens, last.unique)[0]
        own = fit.predict_error(last.tokens, last.unique)[0]
        error = np.sqrt(own**2 + noise.size**2 + (misfit * octaves) ** 2)
        distance = (actual - foretold) / error
        densities.append((1 + distance**2 / TAIL) ** (-(TAIL + 1) / 2) / error)
    total = sum(densities)
    return {law.name: float(d / total) for law, d in zip(laws, densities, strict=True)}
