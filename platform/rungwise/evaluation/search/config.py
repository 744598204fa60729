"""The `search` block: which settings of pretraining to try, for how long, and by what to choose."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rungwise.core.configuration.config import Config
from rungwise.evaluation.suites.base import Paths
from rungwise.sweep.config import Draws, Halving, NoScheduler, refuse_optuna_with_halving
from rungwise.sweep.space import Space

BLOCKS = ("tokenizer", "instances", "model", "pretrain")  # whose keys may be tried


class ValidationLoss(Config):
    """The loss on held-out text, or of held-out pairs of words where vectors are learnt."""

    kind: Literal["validation_loss"] = "validation_loss"


class BitsPerByte(Config):
    """Bits for each byte of held-out text, which compare over tokenizers."""

    kind: Literal["bits_per_byte"] = "bits_per_byte"


class WordList(Config):
    """The correlation with people's ratings of pairs of words, the mean over the lists; of lists
    that `measure` does not report, since the best of several trials is too good on its own list."""

    kind: Literal["word_list"] = "word_list"
    path: Paths  # files or folders, as of a suite `similarity`


class HalvingRounds(Halving):
    """Successive halving by steps: all trials run for a part of theirs, and the best go on from
    there.

    A longer run continues from the checkpoints of the shorter one, so it needs a schedule whose
    first steps do not depend on their number.
    """

    rounds: int = Field(default=3, ge=2)  # how often trials are compared, the end included

    def fractions(self) -> list[float]:
        """The part of its steps that a trial has run at the end of each round."""
        last = self.rounds - 1
        return [self.reduction_factor ** (number - last) for number in range(self.rounds)]


Measure = Annotated[ValidationLoss | BitsPerByte | WordList, Field(discriminator="kind")]
Rounds = Annotated[NoScheduler | HalvingRounds, Field(discriminator="kind")]


class SearchConfig(Draws):
    """Which settings of pretraining to try. Every trial is a pretraining; the recipe then goes on
    with the values of the best.

    With a budget, the trials share it equally, whatever their settings cost; without one each runs
    as long as its settings say.
    """

    # by dotted key of tokenizer, instances, model and pretrain: the values to try
    space: dict[str, Space] = Field(default_factory=dict)
    scheduler: Rounds = NoScheduler()  # which trials are stopped early
    measure: Measure = ValidationLoss()  # by what the best is chosen
    # the same where vectors of words are learnt, whose loss does not compare; null: `measure`
    measure_of_vectors: Measure | None = None
    # budget of all trials together, in seconds of training; null: none
    seconds: float | None = Field(default=None, gt=0)
    tokens: int | None = Field(default=None, ge=1)  # the same in tokens read; null: none
    # pretrainings of the best with consecutive seeds, the first included; their spread is reported
    winner_seeds: int = Field(default=3, ge=1)

    def check_key(self, key: str, allowed: Space) -> None:
        block, _, rest = key.partition(".")
        if not rest or block not in BLOCKS:
            raise ValueError(
                f"space.{key}: expected a dotted key of {', '.join(BLOCKS)}, such as "
                "pretrain.optimizer.learning_rate; settings of finetune are those of `sweep`"
            )

    @model_validator(mode="after")
    def _check_budget(self) -> SearchConfig:
        refuse_optuna_with_halving(self.search, self.scheduler)
        if self.seconds is not None and self.tokens is not None:
            raise ValueError("seconds and tokens are both set; set one of them to null")
        if isinstance(self.scheduler, HalvingRounds) and self.seconds is not None:
            raise ValueError(
                "scheduler halving stops trials after a part of their steps, and seconds would end "
                "them elsewhere; give tokens instead, or take scheduler none"
            )
        return self

    @property
    def budget(self) -> Literal["seconds", "tokens"] | None:
        """The key that limits the trials, if there is one."""
        return "seconds" if self.seconds else "tokens" if self.tokens else None
