"""The `search` block: which settings of pretraining to try, for how long, and by what to choose."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rungwise.evaluation.search.measures import AnyMeasure, ValidationLoss
from rungwise.tuning.config import TuningConfig
from rungwise.tuning.space import Space

_BLOCKS = ("tokenizer", "instances", "model", "pretrain")  # whose keys may be tried


class SearchConfig(TuningConfig):
    """Which settings of pretraining to try. Every trial is a pretraining; the recipe then goes on
    with the values of the best.

    With a budget, the trials share it equally, whatever their settings cost; without one each runs
    as long as its settings say. With `halving`, a longer run continues from the checkpoints of the
    shorter one, so it needs a schedule whose first steps do not depend on their number.
    """

    # by dotted key of tokenizer, instances, model and pretrain: the values to try; if empty, values
    # around those that the family suggests
    space: dict[str, Space] = Field(default_factory=dict)
    measure: AnyMeasure = ValidationLoss()  # by what the best is chosen
    # the same where vectors of words are learnt, whose loss does not compare; null: `measure`
    measure_of_vectors: AnyMeasure | None = None
    # budget of all trials together, in seconds of training; null: none
    seconds: float | None = Field(default=None, gt=0)
    tokens: int | None = Field(default=None, ge=1)  # the same in tokens read; null: none
    # pretrainings of the best with consecutive seeds, the first included; their spread is reported
    seeds: int = Field(default=3, ge=1)

    def check_key(self, key: str, allowed: Space) -> None:
        block, _, rest = key.partition(".")
        if not rest or block not in _BLOCKS:
            raise ValueError(
                f"space.{key}: expected a dotted key of {', '.join(_BLOCKS)}, such as "
                "pretrain.optimizer.learning_rate; settings of finetune are those of `sweep`"
            )

    @model_validator(mode="after")
    def _check_budget(self) -> SearchConfig:
        if not self.space and self.trials is None:
            raise ValueError("trials: values are drawn where space is empty; give their number")
        if self.seconds is not None and self.tokens is not None:
            raise ValueError("seconds and tokens are both set; set one of them to null")
        if self.halving and self.seconds is not None:
            raise ValueError(
                "halving stops trials after a part of their steps, and seconds would end them "
                "elsewhere; give tokens instead, or leave halving out"
            )
        return self

    @property
    def budget(self) -> Literal["seconds", "tokens"] | None:
        """The key that limits the trials, if there is one."""
        return "seconds" if self.seconds else "tokens" if self.tokens else None
