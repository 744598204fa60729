"""The `sweep` block: what to try, how to choose settings, and which trials to stop early."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rungwise.core.configuration.config import Config
from rungwise.finetune import FinetuneConfig
from rungwise.sweep.space import Choice, Grid, Space, check_space

FINETUNE = "finetune"
EPOCHS = f"{FINETUNE}.epochs"
# Settings that can change between epochs: training reads them at every step.
MUTABLE = tuple(f"{FINETUNE}.{name}" for name in ("learning_rate", "weight_decay", "dropout"))
# Blocks that affect neither the data nor the training of a trial.
_OUTSIDE = ("sweep", "evaluate", "registry", "report", "compute", "tracking", "name", "root")


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


class HalvingScheduler(Config):
    """Synchronous successive halving: when all trials have reached a rung, the best go on.

    Jamieson & Talwalkar 2016, arXiv:1502.07943. The same sweep has the same survivors each time.
    """

    kind: Literal["halving"] = "halving"
    # epochs before the first rung; each next rung is reduction_factor times as late
    grace_epochs: int = Field(default=1, ge=1)
    reduction_factor: int = Field(default=2, ge=2)  # one trial in so many goes on at a rung

    def rungs(self, most: int) -> list[int]:
        """The epochs after which trials of at most `most` epochs are compared."""
        epochs, epoch = [], self.grace_epochs
        while epoch < most:
            epochs.append(epoch)
            epoch *= self.reduction_factor
        return epochs


class PbtScheduler(Config):
    """Population based training: bad trials copy the weights of good ones and vary their settings.

    Jaderberg et al. 2017, arXiv:1711.09846. A trial is then the result of a schedule of settings,
    which its last ones alone do not reproduce. All trials start at once and take turns on the
    cluster: compute.max_concurrent_trials does not apply. Which trial copies which depends on who
    arrives first, so a second run differs.
    """

    kind: Literal["pbt"] = "pbt"
    perturbation_interval_epochs: int = Field(default=1, ge=1)  # epochs between such copies
    # keys of `space` that may change while a trial trains
    mutations: list[str] = Field(min_length=1)


Search = Annotated[RandomSearch | GridSearch | OptunaSearch, Field(discriminator="kind")]
Scheduler = Annotated[NoScheduler | HalvingScheduler | PbtScheduler, Field(discriminator="kind")]


class SweepConfig(Config):
    """Which settings to try. Keys of `finetune` are cheap to vary.

    For each value of a key of an earlier block, everything before fine-tuning is built again, so
    such a key takes a list of values.
    """

    space: dict[str, Space] = Field(min_length=1)  # by dotted key of the recipe: the values to try
    search: Search = RandomSearch()  # how settings are chosen
    scheduler: Scheduler = NoScheduler()  # which trials are stopped early
    # number of draws; null with search grid, whose size follows from `space`
    trials: int | None = Field(default=None, ge=1)
    seed: int = Field(default=0, ge=0)  # of the draws and of every trial

    @model_validator(mode="after")
    def _sensible(self) -> SweepConfig:
        self._check_keys()
        self._check_search()
        if isinstance(self.scheduler, PbtScheduler):
            self._check_pbt(self.scheduler)
        if isinstance(self.scheduler, HalvingScheduler) and isinstance(self.search, OptunaSearch):
            raise ValueError(
                "scheduler halving compares all trials at its first rung, and search optuna draws "
                "them one after the other: use search random or grid, or scheduler none"
            )
        return self

    def _check_keys(self) -> None:
        for key, allowed in self.space.items():
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
            inside = [other for other in self.space if other.startswith(f"{key}.")]
            if inside:
                raise ValueError(f"space.{inside[0]} lies inside space.{key}; keep one of them")

    def _check_search(self) -> None:
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
            return
        if self.trials is None:
            raise ValueError(f"trials: search {self.search.kind} needs their number")
        if isinstance(self.search, OptunaSearch):
            if grids:
                raise ValueError(
                    f"space.{grids[0]}: search optuna draws every key; use kind choice"
                )
            return
        drawn = [allowed for allowed in self.space.values() if not isinstance(allowed, Grid)]
        different = _product(drawn)
        if different is not None and self.trials > different:
            raise ValueError(
                f"trials: the keys that are drawn have {different} combinations, found "
                f"{self.trials}; ask for fewer, or use search: {{kind: grid}}"
            )

    def _check_pbt(self, scheduler: PbtScheduler) -> None:
        if isinstance(self.search, OptunaSearch):
            raise ValueError("scheduler pbt finds settings itself: use search random or grid")
        if EPOCHS in self.space:
            raise ValueError(f"space.{EPOCHS}: scheduler pbt needs the same epochs in every trial")
        for key in scheduler.mutations:
            if key not in MUTABLE:
                raise ValueError(
                    f"scheduler.mutations: {key} cannot change while a trial trains; these can: "
                    f"{', '.join(MUTABLE)}"
                )
            if key not in self.space:
                raise ValueError(f"scheduler.mutations: {key} is no key of space")

    def size(self) -> int | None:
        """The number of combinations of values; None if a key has a range."""
        return _product(list(self.space.values()))


class SweepStageConfig(Config):
    """The two blocks of a recipe that this stage reads. Keys of other blocks: `check_space`."""

    finetune: FinetuneConfig
    sweep: SweepConfig

    @model_validator(mode="after")
    def _known_keys(self) -> SweepStageConfig:
        own = {k: v for k, v in self.sweep.space.items() if k.startswith(f"{FINETUNE}.")}
        check_space(_Finetune, {FINETUNE: self.finetune.model_dump(mode="json")}, own)
        return self


class _Finetune(Config):
    finetune: FinetuneConfig


def most_epochs(config: SweepStageConfig) -> int:
    allowed = config.sweep.space.get(EPOCHS)
    return config.finetune.epochs if allowed is None else int(max(allowed.probes()))


def _product(spaces: list[Any]) -> int | None:
    sizes = [allowed.finite() for allowed in spaces]
    return None if any(one is None for one in sizes) else math.prod(len(one) for one in sizes)
