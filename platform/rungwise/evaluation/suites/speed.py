"""Reading speed in tokens per second, by length of the text.

    a text of 16 tokens, one of 128, the first again ... ──> seconds of each ──> tokens a second

A model that reads a text in parallel gets faster per token with longer texts, until the processor
is full; one that reads token by token does not (Vaswani et al. 2017, section 4; claim K21). Texts
are read one at a time, so that no other text fills the processor. An item is a round through all
lengths, so that all see the same background load.

Compare numbers within one ladder only: they depend on the machine and its load.
"""

import time
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from rungwise.evaluation.suites.base import Rung, Suite, SuiteResult
from rungwise.evaluation.suites.items import Items
from rungwise.models.trained.capabilities import LanguageModel


class SpeedSuite(Suite):
    """Tokens read per second, for texts of different lengths."""

    needs: ClassVar[str] = "the probability of a text"
    capability: ClassVar[type] = LanguageModel

    kind: Literal["speed"] = "speed"
    # lengths of the texts, in tokens; each is reported by itself
    lengths: tuple[int, ...] = Field(default=(16, 128), min_length=1)
    rounds: int = Field(default=20, ge=3)  # times each text is read

    @field_validator("lengths")
    @classmethod
    def _check_lengths(cls, lengths: tuple[int, ...]) -> tuple[int, ...]:
        if min(lengths) < 1 or len({*lengths}) < len(lengths):
            raise ValueError(f"expected different numbers from 1, found {list(lengths)}")
        return lengths

    def measure(self, rung: Rung, name: str) -> SuiteResult:
        ordinary = sorted(set(range(rung.model.vocab_size)) - set(rung.special.ids))
        rng = np.random.default_rng(0)
        texts = [rng.choice(ordinary, length).tolist() for length in self.lengths]
        seconds = np.zeros((1 + self.rounds, len(texts)))  # the first round warms up
        for round_seconds in seconds:
            for place, text in enumerate(texts):
                start = time.perf_counter()
                rung.model.log_probabilities([text])
                round_seconds[place] = time.perf_counter() - start
        names = [str(number) for number in range(1, 1 + self.rounds)]
        items = []
        for length, durations in zip(self.lengths, seconds[1:].T, strict=True):
            numbers = np.stack([np.full(self.rounds, float(length)), durations], axis=1)
            part, groups = f"length {length}", [""] * self.rounds
            items.append(Items(name, "tokens_per_second", names, groups, numbers, part))
        return SuiteResult(items)
