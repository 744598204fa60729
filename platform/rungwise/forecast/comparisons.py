"""Comparisons of rungs: at what cost of training one passes another, and which of them to take.

Curves are compared at equal core-seconds, in each draw. A rung that learns by gradient reads as
many tokens as its seconds allow; one that counts has its text counted by a moment, and stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType
from typing import Literal

import numpy as np

from rungwise.forecast.forecast import FARTHEST, RungForecast
from rungwise.forecast.intervals import Curves, Interval
from rungwise.forecast.laws import Array
from rungwise.forecast.points import Increase, grow

STEPS = 240  # places of the grid of seconds, evenly spaced in logarithms
LIKELY = 0.5  # a crossing whose median lies within the limit is one that is foretold
BITS, POINT = 0.02, 0.01  # margins of advice: bits per byte, a share of correct answers
_UNITS = (("core-hours", 3600.0), ("core-minutes", 60.0), ("core-seconds", 1.0))
_ROUND = 2.0  # of a unit, from which on it is used


@dataclass(frozen=True)
class Crossing:
    """Where `passing` becomes better than `passed`, in core-seconds of each.

    `chance` is the share of draws that cross within the limit; bounds beyond it are infinite. A
    draw in which `passing` leads from the first comparable budget on crosses there.
    """

    passing: str
    passed: str
    seconds: Interval
    chance: float

    @property
    def foretold(self) -> bool:
        return self.chance > LIKELY


def predict_at_seconds(curves: Curves, seconds: Array, text: float = 1.0) -> Array:
    """Return draws of bits after so many core-seconds, on `text` times the training text."""
    last = curves.last
    distinct = grow(last, Increase(text=text)).distinct
    tokens = last.tokens * seconds / last.seconds
    if last.fitted == "counts":
        tokens = np.minimum(tokens, distinct)
    return curves.predict(tokens, np.minimum(tokens, distinct))


def find_crossings(
    forecasts: Sequence[RungForecast], text: float = 1.0, limit: float = FARTHEST
) -> list[Crossing]:
    """Return a crossing for each pair of rungs that are measured alike and can be forecast.

    They are in the order of their medians, pairs that do not cross within `limit` times the larger
    of their budgets last.
    """
    rungs = [one for one in forecasts if not one.refusal]
    crossings = [
        _cross(one.curves, other.curves, text, limit)
        for one, other in combinations(rungs, 2)
        if one.last.measure == other.last.measure
    ]
    return sorted(crossings, key=lambda crossing: (crossing.seconds.median, -crossing.chance))


def _cross(one: Curves, other: Curves, text: float, limit: float) -> Crossing:
    first = max(one.first_seconds, other.first_seconds)
    last = limit * max(one.last.seconds, other.last.seconds)
    seconds = np.geomspace(first, last, STEPS)
    # Positive where `other` is better.
    gaps = np.log(predict_at_seconds(one, seconds, text) / predict_at_seconds(other, seconds, text))
    if np.mean(gaps[:, 0] > 0) > 0.5:
        one, other, gaps = other, one, -gaps
    places = interpolate(np.log(seconds), gaps)
    # Median, low and high, each a draw's own: infinite draws cannot be interpolated.
    ranks = np.quantile(places, [0.5, 0.025, 0.975], method="inverted_cdf")
    return Crossing(
        passing=other.last.rung,
        passed=one.last.rung,
        seconds=Interval(*np.exp(ranks).tolist()),
        chance=float(np.isfinite(places).mean()),
    )


def interpolate(places: Array, gaps: Array) -> Array:
    """Return where each row of gaps first becomes positive, infinite where it does not."""
    positive = gaps > 0
    index = np.argmax(positive, axis=1)
    rows = np.arange(len(gaps))
    before = np.maximum(index - 1, 0)
    low, high = gaps[rows, before], gaps[rows, index]
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.where(index > 0, -low / (high - low), 0.0)
    crossing = places[before] + part * (places[index] - places[before])
    return np.where(positive.any(axis=1), crossing, np.inf)


def describe_crossing(crossing: Crossing, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """`GPT passes 3-gram at 9 [6, 15] core-minutes`."""
    passing = names.get(crossing.passing, crossing.passing)
    passed = names.get(crossing.passed, crossing.passed)
    unit, seconds = next(
        (unit for unit in _UNITS if crossing.seconds.median >= _ROUND * unit[1]), _UNITS[-1]
    )
    median, low, high = (
        "never"
        if math.isinf(value)
        else f"{value / seconds:.2g}"
        if value < 10 * seconds
        else f"{value / seconds:,.0f}"
        for value in (crossing.seconds.median, crossing.seconds.low, crossing.seconds.high)
    )
    return f"{passing} passes {passed} at {median} [{low}, {high}] {unit}"


@dataclass(frozen=True)
class PricedModel:
    """A rung, or a rival without pretraining, with its score and its price in core-seconds."""

    name: str
    score: float
    seconds: float
    draws: Array | None = None  # of the score, drawn jointly with the other candidates'


@dataclass(frozen=True)
class Advice:
    """Which candidate to take.

    `gain` is how much better the best is (never below zero), `times` what it costs more. `chance`
    is the share of draws in which the choice is within the margin of the best; None without draws.
    """

    choice: PricedModel
    best: PricedModel
    gain: float
    times: float
    chance: float | None


def advise(
    candidates: Sequence[PricedModel], margin: float, better: Literal["lower", "higher"]
) -> Advice:
    """Choose the cheapest candidate whose score is within `margin` of the best score."""
    sign = 1.0 if better == "lower" else -1.0
    best = min(candidates, key=lambda one: (sign * one.score, one.seconds))
    near = [one for one in candidates if sign * (one.score - best.score) <= margin]
    choice = min(near, key=lambda one: (one.seconds, sign * one.score))
    draws = [sign * one.draws for one in candidates if one.draws is not None]
    chance = None
    if choice.draws is not None and len(draws) == len(candidates):
        chance = float(np.mean(sign * choice.draws - np.min(draws, axis=0) <= margin))
    return Advice(
        choice=choice,
        best=best,
        gain=sign * (choice.score - best.score),
        times=best.seconds / choice.seconds,
        chance=chance,
    )
