"""A toy suite in one file: is the number of a word's letters even, as the model says?"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np

from rungwise.evaluation.suites.base import (
    Column,
    MeasuredRung,
    Suite,
    SuiteBlock,
    compare_rungs,
    tabulate_scores,
)
from rungwise.evaluation.suites.items import Items

WORDS = ["a", "toy", "suite", "asks", "four", "or", "five", "words"]


class LettersSuite(Suite):
    """Words with an even number of letters, told by each layer."""

    needs: ClassVar[str] = "letters"
    capability: ClassVar[type] = object
    section: ClassVar[str] = "Toys"

    kind: Literal["letters"] = "letters"

    def measure(self, rung: Any, name: str) -> list[Items]:
        even = np.array([len(word) % 2 == 0 for word in WORDS])
        right = {f"layer {layer}": even == (layer > 0) for layer in range(2)}
        groups = [""] * len(WORDS)
        return [
            Items.of_credit(name, part, WORDS, groups, credit) for part, credit in right.items()
        ]

    def columns(self, name: str, rungs: Sequence[MeasuredRung]) -> list[Column]:
        return [compare_rungs(rungs, name, "accuracy", "layer 1", name="even words")]

    def show(self, name: str, rungs: Sequence[MeasuredRung]) -> SuiteBlock:
        return replace(tabulate_scores(rungs, name), words="Even or odd?")
