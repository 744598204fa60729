"""Points of a curve: what a rung was worth at one share of its budget, and what that took.

All rungs of a ladder are measured on one held-out text and count tokens by one tokenizer, so that
points of different rungs lie on common axes: core-seconds, tokens, bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Measure = Literal["bits_per_byte", "bits_per_masked_token"]
Fitted = Literal["gradient", "counts"]


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

    @property
    def unique(self) -> float:
        """Tokens that were read at least once."""
        return min(self.tokens, self.distinct)

    @property
    def repeats(self) -> float:
        """Passes after the first."""
        return self.tokens / self.unique - 1


@dataclass(frozen=True)
class Increase:
    """Factors over budget 1 that a forecast is for: of core-seconds, and of training text. With
    `seconds`, each rung that learns by gradient has so many core-seconds instead."""

    compute: float = 1.0
    text: float = 1.0
    seconds: float | None = None


def grow(point: Point, growth: Increase) -> Point:
    """Return where a point would lie with more compute and text; its bits are unknown (NaN).

    A rung that learns by gradient reads more tokens with more compute; one that counts reads its
    text once, so that its compute follows its text.
    """
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
    )


def group_by_rung(points: Iterable[Point]) -> dict[str, list[Point]]:
    """Return the points of each rung, by rising budget and seed; rungs in the order of points."""
    rungs: dict[str, list[Point]] = {}
    for point in points:
        rungs.setdefault(point.rung, []).append(point)
    return {
        rung: sorted(rows, key=lambda row: (row.budget, row.tokens, row.distinct, row.seed))
        for rung, rows in rungs.items()
    }
