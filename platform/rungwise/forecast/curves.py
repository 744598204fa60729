"""Points of a curve, what a rung was worth at one share of its budget and what that took; laws of a
rung's loss, and their robust fits.

All rungs of a ladder are measured on one held-out text and count tokens by one tokenizer, so that
points of different rungs lie on common axes: core-seconds, tokens, bits.

All laws are one curve with some parameters fixed. With x the effective data in millions of tokens,
for U distinct tokens and R repeats of them:

    L = exp(level) (1 - share + share y^-exponent + rise R)
    y = ((x^2 + onset^2) / (1 + onset^2))^(1/2)
    x = U + U worth (1 - exp(-R / worth))
    exponent = slope (1 + onset^2) + bend,  share = slope (1 + onset^2) / exponent

exp(level) is the loss after a million new tokens, and slope how fast log L falls there with log x.
Bend says how much of that is lost further on: none at 0, where the floor, a share 1 - share of the
loss, is 0 as well; the floor is never below. Before the onset little is learnt.
Effective data is from Muennighoff et al. 2023 (arXiv:2305.16264), power laws with a floor from
Hestness et al. 2017 (1712.00409) and Hoffmann et al. 2022 (2203.15556). What is counted or solved
reads its text once, so that the same curve is a law of the text alone.

Parameters are fitted as logarithms, with a normal prior each, on residuals of log L with Huber's
loss. Every fit is a batch of problems: a grid of starts, or draws of the noise.

Intervals and comparisons come from joint draws of all curves. A draw of a rung is one law, chosen
by how well each foretold the largest budget from the others; its parameters, fitted to points and
priors moved by their noise; and a misfit that grows with every doubling beyond the last point,
widened by a factor of earlier backtests. To them come the luck of the run and that of the held-out
documents, which are drawn once for all rungs.

priors.yaml is written by `python -m benchmarks.forecast --write` from every corpus with a curve.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray

Measure = Literal["bits_per_byte", "bits_per_masked_token"]
Fitted = Literal["gradient", "counts"]
Array = NDArray[np.float64]
Places = tuple[Array, Array]  # the tokens of points, and the distinct ones among them
Normal = tuple[float, float]  # mean, standard deviation
PARAMETERS = ("level", "slope", "bend", "worth", "onset", "rise")
# Logarithms at which a term has no effect; fifteen passes are the paper's worth.
FIXED = {"bend": -20.0, "worth": float(np.log(15)), "onset": -20.0, "rise": -20.0}
LEVEL: Normal = (0.0, 20.0)  # without a tie, nothing is known about the level
MILLION = 1e6
HUBER = 1.5  # residuals beyond so many standard deviations count by their size, not its square
ROUNDS = 3  # of weights for Huber's loss
STEP = 1e-5  # of numerical slopes
FROM_GRID, FROM_FIT = 40, 10  # steps from a grid of starts, and from the fit of draws
SMALL, IDLE = 1e-9, 4  # a share of its cost that no start gains, in so many steps, ends them
DRAWS, SEED = 500, 0
TAIL = 4.0  # degrees of freedom of the error by which laws are weighed
FREEDOM = 4.0  # the prior of the noise counts as so many pairs of seeds
LEVEL_LAW = "onset"  # whose level is compared
LawPriors = Mapping[str, Mapping[str, Normal]]


@dataclass(frozen=True)
class Point:
    """A rung, trained with one seed on a share of its budget.

    `rung`       name of the variant
    `budget`     share of the recipe's: of the steps (gradient) or of the text (counts); 1 is all
    `seed`       of the weights and of the order; runs that differ in it alone give the noise
    `tokens`     read in training, all passes together
    `distinct`   tokens of the training text that the run could read, each counted once; a run that
                 reads less than one pass has `tokens` below `distinct`
    `seconds`    of cores: wall-clock seconds times cores in use, from a start to the weights
    `bits`       of held-out text, in the unit of `measure`; lower is better
    `documents`  the same measure of each held-out document, in one order for all points of a
                 ladder; None where it was not kept
    `fitted`     "gradient": more steps help; "counts" (counted or solved): only more text does
    `measure`    bits per byte, or per masked token where a rung has no code length
    `family`     `model.kind` of the variant ("gpt", "ngram"), by which priors are kept; "" if none
    `network`    the rung that a mixture weighs against counts, and is never worse than; "" if none
    `scores`     on each task that the rung was fine-tuned on: one for each seed of fine-tuning
    """

    rung: str
    budget: float
    seed: int
    tokens: float
    distinct: float
    seconds: float
    bits: float
    documents: tuple[float, ...] | None = None
    fitted: Fitted = "gradient"
    measure: Measure = "bits_per_byte"
    family: str = ""
    network: str = ""
    scores: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def unique(self) -> float:
        """Tokens that were read at least once."""
        return min(self.tokens, self.distinct)


@dataclass(frozen=True)
class Increase:
    """Factors over budget 1 that a forecast is for: of core-seconds, and of training text. With
    `seconds`, each rung that learns by gradient has so many core-seconds instead."""

    compute: float = 1.0
    text: float = 1.0
    seconds: float | None = None


def grow(point: Point, growth: Increase) -> Point:
    """Return where a point would lie with more compute and text; its bits are unknown (NaN). A rung
    that learns by gradient reads more tokens with more compute; one that counts reads its text
    once, so that its compute follows its text."""
    if point.fitted == "counts":
        factor = growth.text / point.budget
    elif growth.seconds is None:
        factor = growth.compute / point.budget
    else:
        factor = growth.seconds / point.seconds
    return replace(
        point,
        budget=point.budget * factor,
        tokens=point.tokens * factor,
        distinct=point.distinct * (factor if point.fitted == "counts" else growth.text),
        seconds=point.seconds * factor,
        bits=math.nan,
        documents=None,
        scores={},
    )


Points = Sequence[Point]
Rungs = Mapping[str, Points]


def group_by_rung(points: Iterable[Point]) -> dict[str, list[Point]]:
    """Return the points of each rung, by rising budget and seed; rungs in the order of points."""
    rungs: dict[str, list[Point]] = {}
    for point in points:
        rungs.setdefault(point.rung, []).append(point)
    return {
        rung: sorted(rows, key=lambda row: (row.budget, row.tokens, row.distinct, row.seed))
        for rung, rows in rungs.items()
    }


@dataclass(frozen=True)
class Law:
    """Names the free parameters of a law, and how fast earlier points lose weight."""

    name: str
    free: tuple[str, ...]
    fades: float = 0.0  # the error of a point doubles with every so many octaves before the last

    @property
    def columns(self) -> list[int]:
        return [PARAMETERS.index(name) for name in self.free]


LAWS: dict[Fitted, tuple[Law, ...]] = {
    "gradient": (
        Law("floor", ("level", "slope", "bend", "worth"), fades=1.0),
        Law("onset", ("level", "slope", "bend", "worth", "onset")),
        Law("rising", ("level", "slope", "bend", "worth", "onset", "rise")),
        Law("line", ("level", "slope", "worth"), fades=1.0),
    ),
    "counts": (
        Law("floor", ("level", "slope", "bend")),
        Law("onset", ("level", "slope", "bend", "onset")),
        Law("line", ("level", "slope"), fades=1.0),
    ),
}


@dataclass(frozen=True)
class Fit:
    """A law through points: the likeliest parameters, and what draws around them need."""

    law: Law
    tokens: Array  # n
    unique: Array
    logs: Array  # of the measured bits
    errors: Array  # standard deviations of logs, Huber's weights included
    prior: Array  # mean and standard deviation of each free parameter: 2, p
    best: Array  # all parameters
    covariance: Array  # p, p

    def predict(self, tokens: Any, unique: Any) -> Array:
        """Return log L of the likeliest curve."""
        return log_loss(self.best[None], np.asarray(tokens), np.asarray(unique))[0]

    def predict_error(self, tokens: Any, unique: Any) -> Array:
        """Return standard deviations of `predict`, by the curvature at the likeliest curve."""
        tokens, unique = np.atleast_1d(tokens), np.atleast_1d(unique)
        slopes = differentiate(self.best[None], self.law, tokens, unique)[0]
        return np.sqrt(np.einsum("np,pq,nq->n", slopes, self.covariance, slopes))


def log_loss(parameters: Array, tokens: Array, unique: Array) -> Array:
    """Return log L: a row of parameters a curve, a column a point."""
    level, slope, bend, worth, onset, rise = np.ascontiguousarray(parameters.T)[..., None]
    repeats = tokens / unique - 1
    slope, bend, worth, ahead = np.exp(slope), np.exp(bend), np.exp(worth), np.exp(2 * onset)
    effective = unique / MILLION * (1 - worth * np.expm1(-repeats / worth))
    logs = np.log((effective**2 + ahead) / (1 + ahead)) / 2
    steep = slope * (1 + ahead)
    exponent = steep + bend
    # expm1 keeps a small share exact; far below the first point a power would overflow.
    power = np.expm1(np.clip(-exponent * logs, -700, 50))
    return level + np.log1p(steep / exponent * power + np.exp(rise) * repeats)


def differentiate(parameters: Array, law: Law, tokens: Array, unique: Array) -> Array:
    """Return slopes of log L by each free parameter: curves, points, parameters."""
    moves = np.zeros((len(law.free), 1, len(PARAMETERS)))
    moves[np.arange(len(law.free)), 0, law.columns] = STEP
    moved = np.concatenate([parameters + moves, parameters - moves])
    logs = log_loss(moved.reshape(-1, len(PARAMETERS)), tokens, unique)
    above, below = logs.reshape(2, len(law.free), len(parameters), len(tokens))
    return np.moveaxis((above - below) / (2 * STEP), 0, -1)


def fit_law(law: Law, points: Points, prior: Mapping[str, Normal], noise: float) -> Fit:
    """Fit a law to points of one rung, whose logs have errors of `noise`."""
    tokens = np.array([point.tokens for point in points])
    unique = np.array([point.unique for point in points])
    logs = np.log([point.bits for point in points])
    normals = np.array([prior.get(name, LEVEL) for name in law.free]).T
    errors = np.full(len(points), noise)
    if law.fades:
        errors = errors * 2 ** (np.log2(tokens.max() / tokens) / law.fades)
    starts = _list_starts(law, normals, tokens, unique, logs)
    places = tokens, unique
    fits, costs = minimise(law, places, logs, errors, normals, starts, FROM_GRID)
    best = fits[[np.argmin(costs)]]
    weighted = errors
    for _ in range(ROUNDS):
        residuals = np.abs(logs - log_loss(best, tokens, unique)[0]) / errors
        weighted = errors * np.sqrt(np.maximum(residuals / HUBER, 1))
        best = minimise(law, places, logs, weighted, normals, best, FROM_FIT)[0]
    errors = weighted
    slopes = differentiate(best, law, tokens, unique)[0] / errors[:, None]
    precision = slopes.T @ slopes + np.diag(normals[1] ** -2)
    return Fit(law, tokens, unique, logs, errors, normals, best[0], np.linalg.inv(precision))


def draw_fits(fit: Fit, generator: np.random.Generator, scales: Array) -> Array:
    """Return parameters of one curve a draw. Each draw moves the points by their errors, times its
    scale, and the means of the priors by theirs, and fits anew: a sample of the posterior where the
    law is nearly linear (randomise, then optimise)."""
    draws = len(scales)
    errors = fit.errors * scales[:, None]
    logs = fit.logs + errors * generator.standard_normal((draws, len(fit.logs)))
    mean, sd = fit.prior
    means = mean + sd * generator.standard_normal((draws, len(mean)))
    starts = np.repeat(fit.best[None], draws, axis=0)
    places, prior = (fit.tokens, fit.unique), np.stack([means, sd + 0 * means])
    return minimise(fit.law, places, logs, errors, prior, starts, FROM_FIT)[0]


def _list_starts(law: Law, normals: Array, tokens: Array, unique: Array, logs: Array) -> Array:
    """A grid over what the prior allows, each start level with the last point."""
    grids = []
    for name, mean, sd in zip(law.free, *normals, strict=True):
        wide = name in ("bend", "onset")
        grids.append([mean - 1.5 * sd, mean, mean + 1.5 * sd] if wide else [mean])
    rows = np.array(np.meshgrid(*grids)).reshape(len(grids), -1).T
    starts = np.tile([FIXED.get(name, 0.0) for name in PARAMETERS], (len(rows), 1))
    starts[:, law.columns] = rows
    last = int(np.argmax(tokens))
    starts[:, 0] += logs[last] - log_loss(starts, tokens, unique)[:, last]
    return starts


def minimise(
    law: Law, places: Places, logs: Array, errors: Array, prior: Array, starts: Array, steps: int
) -> tuple[Array, Array]:
    """Return the parameters and costs that Levenberg and Marquardt's steps reach from each start.
    `logs`, `errors` and `prior` are the same for all starts or have a row for each."""
    columns, (mean, sd) = law.columns, prior

    def measure(parameters: Array) -> tuple[Array, Array, Array]:
        residuals = (log_loss(parameters, *places) - logs) / errors
        strains = (parameters[:, columns] - mean) / sd
        return residuals, strains, (residuals**2).sum(1) + (strains**2).sum(1)

    current = starts.copy()
    residuals, strains, costs = measure(current)
    damping = np.full(len(starts), 1e-2)
    diagonal = np.arange(len(columns))
    idle = 0
    for _ in range(steps):
        slopes = differentiate(current, law, *places)
        slopes = slopes / np.broadcast_to(errors, residuals.shape)[..., None]
        matrix = np.einsum("bnp,bnq->bpq", slopes, slopes)
        gradient = np.einsum("bnp,bn->bp", slopes, residuals) + strains / sd
        matrix[:, diagonal, diagonal] += sd**-2.0
        matrix[:, diagonal, diagonal] *= 1 + damping[:, None]
        change = np.linalg.solve(matrix, gradient[..., None])[..., 0]
        trial = current.copy()
        trial[:, columns] -= np.clip(change, -2, 2)
        trial_residuals, trial_strains, trial_costs = measure(trial)
        better = trial_costs < costs
        idle = 0 if np.any(costs - trial_costs > SMALL * costs) else idle + 1
        damping = np.clip(np.where(better, damping / 5, damping * 5), 1e-8, 1e8)
        current = np.where(better[:, None], trial, current)
        residuals = np.where(better[:, None], trial_residuals, residuals)
        strains = np.where(better[:, None], trial_strains, strains)
        costs = np.where(better, trial_costs, costs)
        if idle == IDLE:
            break
    return current, costs


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


def estimate_noise(points: Points, priors: Priors) -> Noise:
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


def tie_levels(rungs: Rungs, noise: Noise, priors: Priors) -> dict[str, Normal]:
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


def fit_level(rows: Points, noise: float, priors: Priors) -> Normal:
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


def draw_curves(points: Points, priors: Priors) -> dict[str, Curves]:
    """Return draws of the curve of every rung; the same for any order of points."""
    noise = estimate_noise(points, priors)
    rungs = group_by_rung(points)
    weights = _draw_documents(points, np.random.default_rng((SEED, 0)))
    ties = tie_levels(rungs, noise, priors)
    curves = {}
    for rung, rows in rungs.items():
        tie = {"level": ties[rung]} if rung in ties else {}
        curves[rung] = _draw_rung(rows, noise, priors, tie, weights)
    for rung, rows in rungs.items():
        curves[rung] = replace(curves[rung], network=curves.get(rows[-1].network))
    return curves


def _draw_documents(points: Points, generator: np.random.Generator) -> Array:
    """Return how often each draw has each document: draws, documents (none if none were kept)."""
    number = max((len(point.documents or ()) for point in points), default=0)
    if number < 2:
        return np.ones((DRAWS, 0))
    return generator.multinomial(number, np.full(number, 1 / number), size=DRAWS).astype(float)


def _move_by_documents(rows: Points, weights: Array) -> Array:
    """Return by how much each draw of documents moves log L of a rung's last point."""
    documents = rows[-1].documents
    if documents is None or len(documents) != weights.shape[1]:
        return np.zeros(len(weights))
    values = np.array(documents)
    return np.log(weights @ values / weights.sum(1) / values.mean())


def _draw_rung(
    rows: Points, noise: Noise, priors: Priors, tie: Mapping[str, Normal], weights: Array
) -> Curves:
    generator = np.random.default_rng((SEED, zlib.crc32(rows[-1].rung.encode())))
    prior = {law.name: {**priors.choose(rows[-1], law), **tie} for law in LAWS[rows[-1].fitted]}
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


def weigh_laws(rows: Points, noise: Noise, misfit: float, prior: LawPriors) -> dict[str, float]:
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
