"""Trials: the settings to try, by the block shared by `sweep` (fine-tuning) and `search`
(pretraining), and the records of what came of them.

A draw depends only on the seed and the trial's number, so that a restart draws the same, and adding
trials does not change the earlier ones. The driver adds to a trial's record what only it knows
(stopped early, failed). After a kill, the records alone tell which trials have ended; Tune's
snapshots lag.

Dodge et al. 2019, "Show your work", EMNLP, arXiv:1909.03004: a result means little without the
number of trials it is the best of. Trials are drawn without replacement, which is unbiased (Tang et
al. 2020, "Showing your work doesn't always work", ACL).
"""

import itertools
import json
import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import comb, inf
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from rungwise.core.configuration.canonical import canonical_json, flatten
from rungwise.core.configuration.config import Config, ConfigT
from rungwise.core.configuration.overrides import find_value, resolve
from rungwise.core.errors import ConfigError
from rungwise.core.stages.artifact import Summary, SummaryPart, seal, unseal
from rungwise.core.stages.stage import LazyFunction, StageType
from rungwise.core.storage.folder import Folder
from rungwise.finetune import FinetuneConfig, check_task
from rungwise.tasks.kinds.examples import TaskInfo

T = TypeVar("T")
Values = dict[str, Any]  # of one trial, by dotted key
FINETUNE = "finetune"
EPOCHS = f"{FINETUNE}.epochs"
_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")
# Position inside a range to test as well: 9.7 in 8 to 12 reveals that a key takes only integers.
_INSIDE = 0.4142
logger = logging.getLogger(__name__)
FOLDER = "trials"
STATES = ".states"  # training states to resume from, in the artifact until the sweep ends
# waiting: at a milestone of successive halving
State = Literal["running", "waiting", "finished", "stopped_early", "failed"]


def _number(value: Any) -> Any:
    # PyYAML follows YAML 1.1 and reads 5e-5, without a decimal point, as a string.
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


Value = Annotated[
    bool | int | float | str | list[Any] | dict[str, Any] | None, BeforeValidator(_number)
]


class OneOf(Config):
    """One of `values`, all equally likely."""

    kind: Literal["choice"] = "choice"
    values: list[Value] = Field(min_length=1)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        for place, value in enumerate(self.values):
            if value in self.values[:place]:
                raise ValueError(f"expected values that differ, found {value!r} twice")
        return self

    def probes(self) -> list[Any]:
        return list(self.values)

    def draw(self, rng: np.random.Generator) -> Any:
        return self.values[int(rng.integers(len(self.values)))]


class _Range(Config):
    low: float
    high: float

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low must be below high, found {self.low:g} and {self.high:g}")
        return self

    def probes(self) -> list[Any]:
        return [self.low, self.low + _INSIDE * (self.high - self.low), self.high]

    def _bound(self, value: float) -> float:
        return min(max(value, self.low), self.high)


class Uniform(_Range):
    """A number drawn uniformly from `low` to `high`."""

    kind: Literal["uniform"] = "uniform"

    def draw(self, rng: np.random.Generator) -> float:
        return self._bound(float(rng.uniform(self.low, self.high)))


class LogUniform(_Range):
    """A number drawn uniformly from `low` to `high` on a logarithmic scale."""

    kind: Literal["loguniform"] = "loguniform"
    low: float = Field(gt=0)
    high: float = Field(gt=0)

    def draw(self, rng: np.random.Generator) -> float:
        exponent = float(rng.uniform(math.log(self.low), math.log(self.high)))
        return self._bound(math.exp(exponent))


Space = Annotated[OneOf | Uniform | LogUniform, Field(discriminator="kind")]


def check_space(
    model: type[ConfigT], data: Mapping[str, Any], space: Mapping[str, Space], block: str = "sweep"
) -> None:
    """Test every listed value, and each range's bounds and one inner point, in `data`, a valid
    `model` as plain data. Raises ConfigError as `resolve_exactly` does."""
    for key, allowed in space.items():
        for value in allowed.probes():
            resolve_exactly(model, data, {key: value}, block)


def resolve_exactly(
    model: type[ConfigT], data: Mapping[str, Any], values: Values, block: str
) -> ConfigT:
    """Resolve `data` with these values. Raises ConfigError with `<block>.space.<key>` and the value
    for one that does not fit, or that the key would change."""
    drawn = ", ".join(f"{block}.space.{key}: {value!r}" for key, value in values.items())
    config = resolve(model, data, values, f"{drawn} does not fit")
    resolved = config.model_dump(mode="json")
    for key, value in values.items():
        if not matches(actual := find_value(resolved, key), value):
            raise ConfigError(
                f"{block}.space.{key}: {value!r} would become {actual!r}; give values as the key "
                "takes them (whole numbers: kind choice)"
            )
    return config


def matches(resolved: Any, value: Any) -> bool:
    """True if `resolved` equals `value`; dicts may have more keys than `value`."""
    if isinstance(value, dict) and isinstance(resolved, dict):
        return all(name in resolved and matches(resolved[name], one) for name, one in value.items())
    # 1 == True in Python, and no key takes both.
    return resolved == value and isinstance(resolved, bool) == isinstance(value, bool)


class Halving(Config):
    """Synchronous successive halving: when all trials have come as far, the best go on. Jamieson &
    Talwalkar 2016, "Non-stochastic best arm identification and hyperparameter optimization",
    AISTATS, arXiv:1502.07943. The same scores have the same survivors each time."""

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

    blocks: ClassVar[tuple[str, ...]] = ()  # whose keys may be tried; none: any
    advice: ClassVar[str] = ""  # an example of such a key, and where others are tried

    space: dict[str, Space] = Field(min_length=1)  # by dotted key of the recipe: the values to try
    # independent draws, at most as many as there are combinations; null: every combination
    trials: int | None = Field(default=None, ge=1)
    seed: int = Field(default=0, ge=0)  # of the draws, and of every trial of a sweep
    halving: Halving | None = None  # stops trials early; null: every trial runs to its end

    @model_validator(mode="after")
    def _check_space(self) -> Self:
        for key, allowed in self.space.items():
            block, _, rest = key.partition(".")
            if self.blocks and not (rest and block in self.blocks):
                raise ValueError(
                    f"space.{key}: expected a dotted key of {', '.join(self.blocks)}, such as "
                    f"{self.advice}"
                )
            inside = [other for other in self.space if other.startswith(f"{key}.")]
            if inside:
                raise ValueError(f"space.{inside[0]} lies inside space.{key}; keep one of them")
            if self.trials is None and not isinstance(allowed, OneOf):
                raise ValueError(
                    f"space.{key}: without trials, their number, all values are tried, so list "
                    f"them (kind choice), found kind {allowed.kind}"
                )
        return self

    def size(self) -> int | None:
        """The number of combinations of values; None if a key has a range."""
        if not all(isinstance(allowed, OneOf) for allowed in self.space.values()):
            return None
        return math.prod(len(allowed.probes()) for allowed in self.space.values())


class SweepConfig(TuningConfig):
    """Which settings of fine-tuning to try: keys of finetune."""

    blocks: ClassVar[tuple[str, ...]] = (FINETUNE,)
    advice: ClassVar[str] = (
        "finetune.learning_rate; settings of what comes before are those of `search`, or variants"
    )


class SweepStageConfig(Config):
    """The two blocks of a recipe that this stage reads."""

    finetune: FinetuneConfig
    sweep: SweepConfig

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        data = {FINETUNE: self.finetune.model_dump(mode="json")}
        check_space(_Finetune, data, self.sweep.space)
        return self

    @property
    def rounds(self) -> list[int]:
        """The epochs at the end of each round; one round unless trials are halved."""
        allowed = self.sweep.space.get(EPOCHS)
        most = self.finetune.epochs if allowed is None else int(max(allowed.probes()))
        return [most] if self.sweep.halving is None else self.sweep.halving.milestones(most)


class _Finetune(Config):
    finetune: FinetuneConfig


def draw_trials(config: TuningConfig) -> list[Values]:
    """The values of every trial, by number."""
    keys, possible = sorted(config.space), config.size()
    if config.trials is None:
        lists = [config.space[key].probes() for key in keys]
        return [dict(zip(keys, values, strict=True)) for values in itertools.product(*lists)]
    trials: list[Values] = []
    for number in range(config.trials if possible is None else min(config.trials, possible)):
        # Redraw duplicates: the same settings and seed would repeat a trial.
        for attempt in itertools.count():
            rng = np.random.default_rng([config.seed, number, attempt])
            values = {key: config.space[key].draw(rng) for key in keys}
            if canonical_json(values) not in map(canonical_json, trials):
                trials.append(values)
                break
    return trials


def describe_values(values: Values) -> str:
    """The values of a trial by the last words of their keys."""
    return ", ".join(
        f"{key.rpartition('.')[2]} {f'{value:.3g}' if isinstance(value, float) else value}"
        for key, value in values.items()
    )


def resolve_settings(config: SweepStageConfig, values: Values) -> FinetuneConfig:
    """The `finetune` block of a trial. Raises ConfigError unless it holds each value exactly."""
    data = {FINETUNE: config.finetune.model_dump(mode="json")}
    return resolve_exactly(_Finetune, data, values, "sweep").finetune


def check_values(config: SweepStageConfig, info: TaskInfo) -> None:
    """Raise ConfigError, naming the key, for a value that does not fit the task."""
    for key, allowed in config.sweep.space.items():
        for value in allowed.probes():
            check_task(resolve_settings(config, {key: value}), info)


def rank_trials(
    trials: Iterable[tuple[int, float | None, float | None]], higher_is_better: bool = True
) -> list[int]:
    """The numbers of trials that have a score, the best first, of (number, score, loss). Ties:
    smaller loss, then number, so that the same scores have the same winner."""
    sign = -1 if higher_is_better else 1
    ranked = sorted(
        (sign * score, inf if loss is None else loss, number)
        for number, score, loss in trials
        if score is not None
    )
    return [number for *_, number in ranked]


def expected_best(scores: Sequence[float], higher_is_better: bool) -> list[float]:
    """The mean of the best of 1, 2, ... of these scores over all ways to draw so many of them."""
    ranked = sorted(scores, reverse=not higher_is_better)  # the worst first
    total = len(ranked)
    return [
        sum(score * comb(worse, count - 1) for worse, score in enumerate(ranked))
        / comb(total, count)
        for count in range(1, total + 1)
    ]


def best_so_far(scores: Sequence[float], higher_is_better: bool) -> list[float]:
    """The best of the first 1, 2, ... scores: for trials that were chosen by earlier ones."""
    return list(accumulate(scores, max if higher_is_better else min))


class Epoch(SummaryPart):
    """One epoch of a trial."""

    epoch: int
    score: float
    loss: float | None
    seconds: float  # since the start of the trial
    metrics: dict[str, float]

    def points(self) -> dict[str, float]:
        """The points of curves."""
        return {f"validation/{key}": value for key, value in self.metrics.items()}


class TrialRecord(SummaryPart):
    """A trial of a sweep or of a search; `score` is None if it failed."""

    number: int
    values: dict[str, Any]  # by dotted key of the recipe
    state: State
    score: float | None
    seconds: float
    error: str

    @property
    def stopped_early(self) -> bool:
        return self.state == "stopped_early"

    @property
    def name(self) -> str:
        return trial_name(self.number)

    def columns(self) -> dict[str, Any]:
        """The cells of a table of trials besides those that every trial has."""
        return {}


class SweepTrial(TrialRecord, frozen=False):
    """A trial of a sweep, which changes as it runs. Score and loss are those of its last epoch.
    `finetune` is the resolved block, `saved_epoch` that of the state to resume from."""

    finetune: FinetuneConfig
    seed: int
    state: State = "running"
    history: tuple[Epoch, ...] = ()
    saved_epoch: int | None = None
    score: float | None = None
    loss: float | None = None
    seconds: float = 0.0
    error: str = ""

    @property
    def ended(self) -> bool:
        """True if it need not run again; failed trials are retried."""
        return self.state in ("finished", "stopped_early")

    def fail(self, error: str) -> None:
        self.state, self.error, self.score, self.loss = "failed", error, None, None

    def state_file(self, epoch: int) -> str:
        """The file of its training state after an epoch."""
        return f"{STATES}/{self.name}-{epoch:04d}"

    def parameters(self) -> dict[str, Any]:
        """Parameters for tracking: the whole `finetune` block."""
        return flatten(self.finetune.model_dump(mode="json"), "finetune")

    def columns(self) -> dict[str, Any]:
        epochs = {"epochs_run": len(self.history), "epochs_asked": self.finetune.epochs}
        return epochs | {"loss": self.loss}


class SweepSummary(Summary):
    """All trials and the winner."""

    trials: tuple[SweepTrial, ...]
    best: SweepTrial
    metric: str
    stopped_early: int
    failed: int
    epochs_run: int
    epochs_asked: int
    seconds: float

    @property
    def best_score(self) -> float:
        assert self.best.score is not None, "the best did not fail"
        return self.best.score


SWEEP = StageType(
    "sweep", 13, LazyFunction("rungwise.tuning.running:run_sweep"), SweepSummary, resumes=True
)


def trial_name(number: int) -> str:
    return f"trial-{number:03d}"


def write_record(record: SweepTrial, output: Folder) -> None:
    sealed = seal(record.model_dump(mode="json"))
    text = json.dumps(sealed, indent=1, ensure_ascii=False, allow_nan=False)
    output.write_bytes(f"{FOLDER}/{record.name}.json", text.encode("utf-8"))


def read_record(name: str, output: Folder) -> SweepTrial | None:
    """The record of one trial; None if it has not begun, or what is there was damaged or edited."""
    file = f"{FOLDER}/{name}.json"
    if not output.exists(file):
        return None
    try:
        return SweepTrial.model_validate(unseal(json.loads(output.read_bytes(file))))
    except (ValueError, TypeError, AttributeError) as error:
        logger.warning("%s is damaged (%s): the trial runs again", output.path(file), error)
        return None


def read_records(output: Folder) -> list[SweepTrial]:
    """The records of all trials that have begun, by number."""
    files = [file for file in (output / FOLDER).names() if not file.startswith(".")]
    records = [read_record(file.removesuffix(".json"), output) for file in files]
    return sorted((each for each in records if each), key=lambda record: record.number)


def tabulate(trials: Iterable[TrialRecord]) -> list[dict[str, Any]]:
    """Trials as flat rows, with a column for each key of the space."""

    def cell(value: Any) -> Any:
        return json.dumps(value) if isinstance(value, dict | list | bool | None) else value

    return [
        {
            "trial": trial.name,
            "state": trial.state,
            **{key: cell(value) for key, value in trial.values.items()},
            "score": "" if trial.score is None else trial.score,
            "seconds": trial.seconds,
            **trial.columns(),
            "error": trial.error,
        }
        for trial in trials
    ]
