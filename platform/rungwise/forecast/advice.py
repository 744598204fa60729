"""Advice: the cheapest candidate within a margin of the best, and what the best costs more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rungwise.forecast.laws import Array

BITS, POINT = 0.02, 0.01  # margins: bits per byte, a share of correct answers


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
