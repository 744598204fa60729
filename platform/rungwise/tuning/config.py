"""The block of settings to try, shared by `sweep` (fine-tuning) and `search` (pretraining)."""

import math
from collections.abc import Sequence
from typing import Self, TypeVar

from pydantic import Field, model_validator

from rungwise.core.configuration.config import Config
from rungwise.finetune import FinetuneConfig
from rungwise.tuning.space import Grid, OneOf, Space, check_space

T = TypeVar("T")
FINETUNE = "finetune"
EPOCHS = f"{FINETUNE}.epochs"
# Blocks that affect neither the data nor the training of a trial.
_OUTSIDE = (
    "sweep",
    "search",
    "evaluate",
    "registry",
    "report",
    "compute",
    "tracking",
    "name",
    "root",
)


class Halving(Config):
    """Synchronous successive halving: when all trials have come as far, the best go on.

    Jamieson & Talwalkar 2016, "Non-stochastic best arm identification and hyperparameter
    optimization", AISTATS, arXiv:1502.07943. The same scores have the same survivors each time.
    """

    # the part of the longest trial after which trials are compared first
    grace_period: float = Field(default=0.25, gt=0, lt=1)
    # one trial in so many goes on, each time to so many times as far
    reduction_factor: int = Field(default=2, ge=2)

    def fractions(self) -> list[float]:
        """The part of its length that a trial has run at the end of each round, the last whole."""
        fractions, fraction = list[float](), self.grace_period
        while fraction < 1:
            fractions.append(fraction)
            fraction *= self.reduction_factor
        return [*fractions, 1.0]

    def milestones(self, epochs: int) -> list[int]:
        """The ends of the rounds of trials of at most `epochs`, in epochs."""
        return sorted({max(1, round(fraction * epochs)) for fraction in self.fractions()})

    def select(self, ranked: Sequence[T]) -> list[T]:
        """Those of `ranked`, the best first, that go on: at least one."""
        return list(ranked[: max(1, len(ranked) // self.reduction_factor)])


class TuningConfig(Config):
    """Which settings to try, and which trials to stop early."""

    space: dict[str, Space]  # by dotted key of the recipe: the values to try
    # independent draws, at most as many as there are combinations, each with every combination of
    # the grid keys; null: every combination of all values
    trials: int | None = Field(default=None, ge=1)
    seed: int = Field(default=0, ge=0)  # of the draws, and of every trial of a sweep
    halving: Halving | None = None  # stops trials early; null: every trial runs to its end

    @model_validator(mode="after")
    def _check_space(self) -> Self:
        for key, allowed in self.space.items():
            self.check_key(key, allowed)
            inside = [other for other in self.space if other.startswith(f"{key}.")]
            if inside:
                raise ValueError(f"space.{inside[0]} lies inside space.{key}; keep one of them")
            if self.trials is None and allowed.finite() is None:
                raise ValueError(
                    f"space.{key}: without trials, their number, all values are tried, so list "
                    f"them (kind choice, grid or integer), found kind {allowed.kind}"
                )
        return self

    def check_key(self, key: str, allowed: Space) -> None:
        """Raise ValueError for a key that is not one to try, or not with such values."""

    def size(self) -> int | None:
        """The number of combinations of values; None if a key has a range."""
        sizes = [allowed.finite() for allowed in self.space.values()]
        return None if None in sizes else math.prod(len(values or ()) for values in sizes)


class SweepConfig(TuningConfig):
    """Which settings to try. Keys of `finetune` are cheap to vary.

    For each value of a key of an earlier block, everything before fine-tuning is built again, so
    such a key takes a list of values.
    """

    space: dict[str, Space] = Field(min_length=1)  # by dotted key of the recipe: the values to try

    def check_key(self, key: str, allowed: Space) -> None:
        block, _, rest = key.partition(".")
        if not rest or block in _OUTSIDE:
            raise ValueError(
                f"space.{key}: expected a dotted key of finetune or of a block before it, "
                "such as finetune.learning_rate"
            )
        if block != FINETUNE and not isinstance(allowed, OneOf | Grid):
            raise ValueError(
                f"space.{key}: every value of an earlier block is built before the sweep, so "
                f"list them (kind choice or grid), found kind {allowed.kind}"
            )


class SweepStageConfig(Config):
    """The two blocks of a recipe that this stage reads. Keys of other blocks: `check_space`."""

    finetune: FinetuneConfig
    sweep: SweepConfig

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        own = {k: v for k, v in self.sweep.space.items() if k.startswith(f"{FINETUNE}.")}
        check_space(_Finetune, {FINETUNE: self.finetune.model_dump(mode="json")}, own)
        return self

    @property
    def rounds(self) -> list[int]:
        """The epochs at the end of each round; one round unless trials are halved."""
        allowed = self.sweep.space.get(EPOCHS)
        most = self.finetune.epochs if allowed is None else int(max(allowed.probes()))
        return [most] if self.sweep.halving is None else self.sweep.halving.milestones(most)


class _Finetune(Config):
    finetune: FinetuneConfig
