"""The `sweep` block: what to try, how to choose settings, and which trials to stop early."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, model_validator

from rungwise.core.configuration.config import Config
from rungwise.finetune import FinetuneConfig
from rungwise.sweep.space import Choice, Grid, Space, check_space

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


class RandomSearch(Config):
    """Independent draws, each with every combination of the grid keys, if any.

    Bergstra and Bengio 2012, "Random search for hyper-parameter optimization", JMLR 13.
    """

    kind: Literal["random"] = "random"


class GridSearch(Config):
    """Every combination of all values of all keys."""

    kind: Literal["grid"] = "grid"


class OptunaSearch(Config):
    """Optuna's tree-structured Parzen estimator: tries more where earlier trials were good.

    Bergstra et al. 2011, "Algorithms for hyper-parameter optimization", NeurIPS.
    """

    kind: Literal["optuna"] = "optuna"


class NoScheduler(Config):
    """Every trial runs to its end."""

    kind: Literal["none"] = "none"


class Halving(Config):
    """Synchronous successive halving: when all trials have come as far, the best go on.

    Jamieson & Talwalkar 2016, arXiv:1502.07943. The same scores have the same survivors each time.
    """

    kind: Literal["halving"] = "halving"
    # one trial in so many goes on, each time to so many times as far
    reduction_factor: int = Field(default=2, ge=2)

    def select(self, ranked: Sequence[T]) -> list[T]:
        """Those of `ranked`, the best first, that go on: at least one."""
        return list(ranked[: max(1, len(ranked) // self.reduction_factor)])


class HalvingScheduler(Halving):
    """Successive halving by epochs of fine-tuning."""

    grace_epochs: int = Field(default=1, ge=1)  # epochs before trials are compared first

    def milestones(self, most_epochs: int) -> list[int]:
        """The epochs after which trials of at most `most_epochs` are compared."""
        epochs, epoch = [], self.grace_epochs
        while epoch < most_epochs:
            epochs.append(epoch)
            epoch *= self.reduction_factor
        return epochs


Search = Annotated[RandomSearch | GridSearch | OptunaSearch, Field(discriminator="kind")]
Scheduler = Annotated[NoScheduler | HalvingScheduler, Field(discriminator="kind")]


class Draws(Config):
    """Which settings to try: what sweeps over fine-tuning and searches over pretraining share."""

    space: dict[str, Space]  # by dotted key of the recipe: the values to try
    search: Search = RandomSearch()  # how settings are chosen
    # number of draws; null with search grid, which tries all of `space`
    trials: int | None = Field(default=None, ge=1)
    seed: int = Field(default=0, ge=0)  # of the draws, and of every trial of a sweep

    @model_validator(mode="after")
    def _check_draws(self) -> Self:
        for key, allowed in self.space.items():
            self.check_key(key, allowed)
            inside = [other for other in self.space if other.startswith(f"{key}.")]
            if inside:
                raise ValueError(f"space.{inside[0]} lies inside space.{key}; keep one of them")
        ranges = [key for key, allowed in self.space.items() if allowed.finite() is None]
        grids = [key for key, allowed in self.space.items() if isinstance(allowed, Grid)]
        if isinstance(self.search, GridSearch):
            if ranges:
                raise ValueError(
                    f"space.{ranges[0]}: search grid tries all values, so list them (kind choice, "
                    f"grid or integer), found kind {self.space[ranges[0]].kind}"
                )
            if self.trials is not None:
                raise ValueError(
                    f"trials: leave it out, search grid has {self.size()}; found {self.trials}"
                )
        elif self.trials is None:
            raise ValueError(f"trials: search {self.search.kind} needs their number")
        elif isinstance(self.search, OptunaSearch) and grids:
            raise ValueError(f"space.{grids[0]}: search optuna draws every key; use kind choice")
        return self

    def check_key(self, key: str, allowed: Space) -> None:
        """Raise ValueError for a key that is not one to try, or not with such values."""

    def size(self) -> int | None:
        """The number of combinations of values; None if a key has a range."""
        return _product(list(self.space.values()))

    def combinations(self) -> int | None:
        """The number of combinations of the keys that are drawn; None if one has a range."""
        return _product([each for each in self.space.values() if not isinstance(each, Grid)])


class SweepConfig(Draws):
    """Which settings to try. Keys of `finetune` are cheap to vary.

    For each value of a key of an earlier block, everything before fine-tuning is built again, so
    such a key takes a list of values.
    """

    space: dict[str, Space] = Field(min_length=1)  # by dotted key of the recipe: the values to try
    scheduler: Scheduler = NoScheduler()  # which trials are stopped early

    def check_key(self, key: str, allowed: Space) -> None:
        block, _, rest = key.partition(".")
        if not rest or block in _OUTSIDE:
            raise ValueError(
                f"space.{key}: expected a dotted key of finetune or of a block before it, "
                "such as finetune.learning_rate"
            )
        if block != FINETUNE and not isinstance(allowed, Choice | Grid):
            raise ValueError(
                f"space.{key}: every value of an earlier block is built before the sweep, so "
                f"list them (kind choice or grid), found kind {allowed.kind}"
            )

    @model_validator(mode="after")
    def _check_trials(self) -> Self:
        refuse_optuna_with_halving(self.search, self.scheduler)
        combinations = self.combinations()
        draws = isinstance(self.search, RandomSearch)
        if draws and combinations is not None and (self.trials or 0) > combinations:
            raise ValueError(
                f"trials: the keys that are drawn have {combinations} combinations, found "
                f"{self.trials}; ask for fewer, or use search: {{kind: grid}}"
            )
        return self


class SweepStageConfig(Config):
    """The two blocks of a recipe that this stage reads. Keys of other blocks: `check_space`."""

    finetune: FinetuneConfig
    sweep: SweepConfig

    @model_validator(mode="after")
    def _known_keys(self) -> Self:
        own = {k: v for k, v in self.sweep.space.items() if k.startswith(f"{FINETUNE}.")}
        check_space(_Finetune, {FINETUNE: self.finetune.model_dump(mode="json")}, own)
        return self


class _Finetune(Config):
    finetune: FinetuneConfig


def most_epochs(config: SweepStageConfig) -> int:
    allowed = config.sweep.space.get(EPOCHS)
    return config.finetune.epochs if allowed is None else int(max(allowed.probes()))


def refuse_optuna_with_halving(search: Search, scheduler: Config) -> None:
    """Raise ValueError for both together."""
    if isinstance(search, OptunaSearch) and not isinstance(scheduler, NoScheduler):
        raise ValueError(
            "scheduler halving compares all trials at its first milestone, and search optuna "
            "draws them one after the other: use search random or grid, or scheduler none"
        )


def _product(spaces: list[Any]) -> int | None:
    sizes = [allowed.finite() for allowed in spaces]
    return None if any(one is None for one in sizes) else math.prod(len(one) for one in sizes)
