"""Keys of training by gradient: the block `pretrain` with kind gradient."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rungwise.core.configuration.config import Config
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import BlockError, ConfigError
from rungwise.core.randomness import bits
from rungwise.core.stages.stage import LazyFunction
from rungwise.instances.order import OrderConfig
from rungwise.instances.summary import InstancesConfig
from rungwise.models.config import ModelConfig
from rungwise.models.family import Family
from rungwise.models.fitting import Fitting
from rungwise.models.losses.objectives import BatchShapes, Objective
from rungwise.training.optimizer import AnyOptimizerConfig, AverageConfig, OptimizerConfig

# "auto" is bfloat16 where the processor multiplies it natively, else float32. Weights, moments and
# losses are always float32.
Precision = Literal["float32", "bfloat16", "auto"]


_MIXTURE = 0x317  # separates the turns of a mixture from other random numbers

# Keys that must keep their default for a model that carries a state, and why.
_FIXED_BY_STREAMS = {
    "pretrain.order.window_instances": "it reads contiguous text, which no window permutes",
    "pretrain.order.lanes": "it has as many streams as pretrain.global_batch_size",
    "compute.parallel": "it has no Transformer blocks to share out",
    "compute.recompute_activations": "it has no Transformer blocks to recompute",
}


class EarlyStopConfig(Config):
    """When the validation loss counts as no longer falling."""

    patience: int = Field(default=3, ge=1)  # validations in a row without an improvement
    # fall of the loss that counts as an improvement, in nats
    minimum_improvement: float = Field(default=0.001, ge=0.0)


class MixedConfig(Config):
    """An objective after the first of a mixture, and the rows that its steps read."""

    instances: InstancesConfig  # of labelled pairs: those of the step's `task`
    # it trains one step in so many; null: it is drawn as often as each of the others
    every: int | None = Field(default=None, ge=2)
    # instances of its steps, over all workers; null: as many as of the first objective
    global_batch_size: int | None = Field(default=None, ge=1)


class GradientConfig(Fitting):
    """Training by gradient descent: the keys that decide the resulting weights.

    A run ends after `steps`, or when its budget of tokens or seconds is spent, whichever comes
    first. The learning rate follows the largest share spent, so its schedule is complete by then.
    """

    fitter: ClassVar = LazyFunction("rungwise.training.ray.gradient:pretrain_by_gradient")
    saves_on_request: ClassVar[bool] = True

    kind: Literal["gradient"] = "gradient"
    # folder of a transformers model to start from, or one of the hub (ORG/NAME), whose model and
    # tokenizer are used; null: random weights
    initial: str | None = Field(default=None, min_length=1)
    steps: int = Field(ge=1)
    # share of the steps, at the end, that read `longer_instances`; null: none
    longer_share: float | None = Field(default=None, gt=0, lt=1)
    max_tokens: int | None = Field(default=None, ge=1)  # budget of tokens; null: none
    # budget of seconds in the training loop, validation included; null: none
    max_seconds: float | None = Field(default=None, gt=0)
    global_batch_size: int = Field(default=256, ge=1)  # instances per step, over all workers
    # by name: the objectives behind the first of a mixture, `first+second+...`, of which each step
    # trains on one
    mixture: dict[str, MixedConfig] = Field(default_factory=dict)
    order: OrderConfig = OrderConfig()
    optimizer: AnyOptimizerConfig = OptimizerConfig()
    # of computation; auto: bfloat16 where the processor multiplies it natively, else float32
    precision: Precision = "auto"
    validation_every_steps: int = Field(default=1000, ge=1)
    validation_instances: int = Field(default=512, ge=1)  # held-out instances per validation
    log_every_steps: int = Field(default=20, ge=1)
    # steps that may be skipped for a non-finite gradient before the run fails
    max_skipped_steps: int = Field(default=10, ge=0)
    # where the bias of an output over words begins: at the logarithm of their frequencies in the
    # training rows, so that the first loss is that of order 1, or at zeros; ignored without a bias
    output_bias: Literal["frequencies", "zeros"] = "frequencies"
    # mean of the weights over the last steps, for validation and the final model; null: none
    average: AverageConfig | None = None
    # end the run when the validation loss stops falling; null: never
    early_stop: EarlyStopConfig | None = None
    seed: int = Field(default=0, ge=0)

    @property
    def reads_longer(self) -> bool:
        return self.longer_share is not None

    @property
    def imported(self) -> str | None:
        return self.initial

    @property
    def mixed_rows(self) -> dict[str, InstancesConfig]:
        return {name: each.instances for name, each in self.mixture.items()}

    def length_key(self, model: Family) -> str:
        return "steps"

    def takes_weights(self, model: Family) -> bool:
        return True

    def trains_alone(self, compute: ComputeConfig) -> bool:
        return compute.is_one_process

    def require_gradient(self, purpose: str) -> Self:
        return self

    @property
    def watched(self) -> set[str]:
        keys = {"log_every_steps", "max_skipped_steps"}
        # Where its losses or its seconds end the run, validation decides the weights.
        ends_the_run = self.early_stop is not None or self.max_seconds is not None
        return keys if ends_the_run else keys | {"validation_every_steps"}

    def check(self, model: Family, compute: ComputeConfig) -> None:
        workers = compute.num_workers
        logical = compute.logical_workers or workers
        if logical % workers:
            raise ConfigError(
                f"compute.logical_workers is {logical}, which compute.num_workers {workers} does "
                "not divide; change one of them"
            )
        for key, parts in (("num_workers", workers), ("logical_workers", logical)):
            if self.global_batch_size < parts:
                raise ConfigError(
                    f"pretrain.global_batch_size is {self.global_batch_size}, too few for "
                    f"compute.{key} {parts}; lower the second"
                )
        if compute.min_workers is not None and compute.min_workers > workers:
            raise ConfigError(
                f"compute.min_workers is {compute.min_workers}, more than compute.num_workers "
                f"{workers}; lower the first"
            )
        objective = model.objective(self.objective)
        later = {each.name for each in objective.members[1:]}
        if later != {*self.mixture}:
            raise ConfigError(
                f"pretrain.objective is {self.objective} and pretrain.mixture has "
                f"{', '.join(self.mixture) or 'nothing'}: expected the objectives behind the first "
                "plus sign in it, and no others"
            )
        intervals = [each.every for each in self.mixture.values() if each.every]
        if len(set(intervals)) < len(intervals):
            raise ConfigError(
                f"pretrain.mixture: expected a different `every` for each member, found {intervals}"
                "; two would train in the same steps"
            )
        if self.mixture and (self.longer_share is not None or self.ends_early):
            key = self.ends_early or "longer_share"
            raise ConfigError(
                f"pretrain.{key} and pretrain.mixture are both set, and the turns of a mixture are "
                f"drawn for a number of steps; set pretrain.{key} to null",
                {f"pretrain.{key}": None},
            )
        if self.global_batch_size < objective.fewest_rows:
            raise ConfigError(
                f"pretrain.global_batch_size is {self.global_batch_size}, but pretrain.objective "
                f"{objective.name} compares the texts of a batch; raise it to "
                f"{objective.fewest_rows} or more"
            )
        if model.carries_state(objective):
            self._check_streams(model, compute)

    def _check_streams(self, model: Family, compute: ComputeConfig) -> None:
        for key, reason in _FIXED_BY_STREAMS.items():
            block, field = self.order if ".order." in key else compute, key.rpartition(".")[2]
            value = getattr(block, field)
            only = type(block).model_fields[field].get_default(call_default_factory=True)
            if value != only:
                raise ConfigError(
                    f"{key} is {value}, but model.kind {model.kind} carries a state from block to "
                    f"block: {reason}; leave it at {only}"
                )

    def of_member(self, name: str) -> "GradientConfig":
        """The settings of the steps that train on this member of a mixture."""
        own = self.mixture.get(name)
        size = self.global_batch_size if own is None else own.global_batch_size
        changes = {"objective": name, "global_batch_size": size or self.global_batch_size}
        return self.model_copy(update={**changes, "mixture": {}})

    def draw_turns(self, names: Sequence[str]) -> NDArray[np.int64]:
        """For each step, the place in `names` of its member of a mixture. As in GenSen (Subramanian
        et al. 2018, arXiv:1804.00079) some train every so many steps, the others are drawn
        uniformly. A draw depends on the step alone, so a member keeps its order of rows."""
        steps = np.arange(self.steps)
        every = {name: each.every for name, each in self.mixture.items() if each.every}
        others = np.array([place for place, name in enumerate(names) if name not in every])
        turns = others[bits(self.seed, _MIXTURE, steps) % np.uint64(len(others))]
        # Of two whose turn it is, the one that has fewer.
        for name, interval in sorted(every.items(), key=lambda item: item[1]):
            turns[steps % interval == interval - 1] = names.index(name)
        return turns

    @property
    def first_longer_step(self) -> int:
        """The first step that reads longer instances; `steps` if none does."""
        return self.steps - round(self.steps * (self.longer_share or 0.0))

    @property
    def shared_steps(self) -> int:
        """How many first steps a run with other `steps` and another decay has in common. They end
        with the plateau of warmup_stable_decay, or where longer instances or the mean of the last
        steps begin. 0 if nothing is shared: other schedules decay all the way, a warm-up by
        fraction grows with the run, and a budget or early stop is no number of steps."""
        schedule = self.optimizer.schedule
        plateau = schedule.kind == "warmup_stable_decay" and self.ends_early is None
        if not plateau or (schedule.warmup_steps is None and schedule.warmup_fraction > 0):
            return 0
        mean_steps = self.average.steps if self.average else 0
        decay_from = schedule.decay_from(self.steps)
        return min(decay_from, self.first_longer_step, self.steps - mean_steps)

    @property
    def ends_early(self) -> str | None:
        """The key that can end the run before its last step, if there is one."""
        keys = ("max_tokens", "max_seconds", "early_stop")
        return next((key for key in keys if getattr(self, key) is not None), None)

    @model_validator(mode="after")
    def _fits_its_steps(self) -> Self:
        steps, average, schedule = self.steps, self.average, self.optimizer.schedule
        if self.longer_share is not None:
            if end := self.ends_early:
                raise BlockError(
                    f"longer_share {self.longer_share} is a share of the steps, and {end} could "
                    "end the run before the longer instances",
                    {end: None},
                )
            if not 0 < self.first_longer_step < steps:
                unread = "instances" if self.first_longer_step == 0 else "longer_instances"
                raise ValueError(
                    f"longer_share {self.longer_share} of steps {steps} leaves no step to read "
                    f"{unread}; raise steps, or set longer_share and longer_instances to null"
                )
        if average is not None:
            if end := self.ends_early:
                raise BlockError(
                    f"average is over the last {average.steps} steps, and {end} could end "
                    "the run before them",
                    {end: None},
                )
            if average.steps > steps:
                raise BlockError(
                    f"average.steps is {average.steps}, more than steps {steps}",
                    {"average.steps": steps},
                )
        if (warmup := schedule.warmup_steps or 0) > steps:
            raise BlockError(
                f"optimizer.schedule.warmup_steps is {warmup}, more than steps {steps}",
                {"optimizer.schedule.warmup_steps": steps // 10},
            )
        if self.global_batch_size % self.order.lanes:
            raise BlockError(
                f"order.lanes {self.order.lanes} does not divide global_batch_size "
                f"{self.global_batch_size}, so workers would change lanes at every step and fetch "
                "each other's shards",
                {"order.lanes": math.gcd(self.order.lanes, self.global_batch_size)},
            )
        return self


FittingT_co = TypeVar("FittingT_co", bound=Fitting, covariant=True)


@dataclass(frozen=True)
class FitConfig(Generic[FittingT_co]):
    """A model and how its weights are fitted, known to be of one kind: what a fitter takes."""

    model: ModelConfig
    pretrain: FittingT_co

    @property
    def objective(self) -> Objective:
        return self.model.objective(self.pretrain.objective)

    @property
    def compiles(self) -> bool:
        """Whether torch.compile takes the step: the model, and losses of known sizes."""
        return self.model.compiles and self.objective.shapes is not BatchShapes.UNKNOWN

    @property
    def carries_state(self) -> bool:
        """Whether rows are streams of text, with a state carried from each to the next."""
        return self.model.carries_state(self.objective)

    def blocks(self) -> dict[str, Any]:
        """Both blocks of the recipe as plain data."""
        return {
            "model": self.model.model_dump(mode="json"),
            "pretrain": self.pretrain.model_dump(mode="json"),
        }

    def identity(self) -> dict[str, Any]:
        """The keys that decide the artifact: all but those that are only watched."""
        blocks = self.blocks()
        for key in self.pretrain.watched:
            del blocks["pretrain"][key]
        if self.pretrain.revision:
            blocks["revision"] = self.pretrain.revision
        return blocks


GradientFit = FitConfig[GradientConfig]
