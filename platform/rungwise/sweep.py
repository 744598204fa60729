"""Sweep stage: Ray Tune over the fine-tuning function, scored on the validation split only.

The space is a mapping from keys of the `finetune` block to what they may be; a trial's values go
through the same override function as the command line. ASHA (Li et al. 2020, "A system for
massively parallel hyperparameter tuning", MLSys, arXiv:1810.05934) stops trials that lag behind at
a rung of epochs. Each initialisation is swept on its own, with the same space and number of trials,
so that what is compared later is the best of each and not one at the other's settings.

The score of a sweep's winner is a maximum over trials and so too good; the honest score comes from
new seeds on the test split (evaluation/compare.py).
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rungwise.artifact import Artifact
from rungwise.cluster.session import shared_scratch
from rungwise.config import Config, validate, with_overrides
from rungwise.context import Context, Reporter
from rungwise.errors import UserError, user_error_in
from rungwise.finetune import FinetuneConfig, Initialisation, finetune, load_data
from rungwise.storage import Folder

METRIC = "accuracy"


class Choice(Config):
    """One of `values`."""

    kind: Literal["choice"] = "choice"
    values: list[float | int | str | bool] = Field(min_length=1)


class Uniform(Config):
    """A number between `low` and `high`, every one as likely."""

    kind: Literal["uniform"] = "uniform"
    low: float
    high: float


class LogUniform(Config):
    """A number between `low` and `high`, every order of magnitude as likely."""

    kind: Literal["loguniform"] = "loguniform"
    low: float = Field(gt=0)
    high: float = Field(gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> LogUniform:
        if self.low >= self.high:
            raise ValueError(f"low must be below high, found {self.low} and {self.high}")
        return self


Space = Annotated[Choice | Uniform | LogUniform, Field(discriminator="kind")]


class SweepConfig(Config):
    """What is tried. `trials` counts for each initialisation."""

    trials: int = Field(default=8, ge=1)
    initialisations: list[Initialisation] = Field(default=["pretrained", "random"], min_length=1)
    space: dict[str, Space] = Field(min_length=1)
    grace_epochs: int = Field(default=2, ge=1)  # no trial is stopped before so many
    reduction_factor: int = Field(default=2, ge=2)  # one in so many goes on at a rung
    seed: int = Field(default=0, ge=0)  # of the draws and of every trial


class SweepStageConfig(Config):
    """The two blocks of a recipe that this stage reads."""

    finetune: FinetuneConfig
    sweep: SweepConfig

    @model_validator(mode="after")
    def _known_keys(self) -> SweepStageConfig:
        for key, space in self.sweep.space.items():
            first = space.values[0] if isinstance(space, Choice) else space.low
            validate(
                FinetuneConfig,
                with_overrides(self.finetune.model_dump(), {key: first}),
                source="sweep.space",
            )
        return self


def run(
    config: SweepStageConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> dict[str, Any]:
    """Sweep each initialisation; the winner of each is the highest validation accuracy.

    Raises UserError if every trial of an initialisation failed.
    """
    total = config.sweep.trials * len(config.sweep.initialisations)
    trials: list[dict[str, Any]] = []
    with shared_scratch(output, "ray-tune") as scratch:
        for initialisation in config.sweep.initialisations:
            trials += _tune(config, inputs, initialisation, scratch, context, len(trials), total)
    best = {}
    for initialisation in config.sweep.initialisations:
        finished = [t for t in trials if t["initialisation"] == initialisation and "score" in t]
        # Of equal scores the smaller loss, then the earlier trial, so that a tie is no coin toss.
        best[initialisation] = min(finished, key=lambda t: (-t["score"], t["loss"], t["name"]))
    first = best[config.sweep.initialisations[0]]
    stopped = sum(t["stopped_early"] for t in trials)
    return {
        "trials": trials,
        "best": best,
        "metric": METRIC,
        "stopped_early": stopped,
        "epochs_run": sum(t["epochs_run"] for t in trials),
        "epochs_asked": sum(t["finetune"]["epochs"] for t in trials),
        "headline": f"{len(trials)} trials, {stopped} stopped early  best validation accuracy "
        f"{first['score']:.1%} at learning rate {first['finetune']['learning_rate']:.1e}",
    }


def _tune(
    config: SweepStageConfig,
    inputs: dict[str, Artifact],
    initialisation: Initialisation,
    scratch: str,
    context: Context,
    before: int,
    total: int,
) -> list[dict[str, Any]]:
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search import BasicVariantGenerator

    sweep = config.sweep
    trainable = functools.partial(
        _trial, config=config, inputs=inputs, initialisation=initialisation, report=context.report
    )
    results = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space={key: _domain(space) for key, space in sorted(sweep.space.items())},
        tune_config=tune.TuneConfig(
            metric=METRIC,
            mode="max",
            num_samples=sweep.trials,
            search_alg=BasicVariantGenerator(
                random_state=sweep.seed, max_concurrent=context.compute.max_concurrent_trials
            ),
            scheduler=ASHAScheduler(
                time_attr="training_iteration",
                max_t=max(_most_epochs(config), sweep.grace_epochs),
                grace_period=sweep.grace_epochs,
                reduction_factor=sweep.reduction_factor,
            ),
            trial_name_creator=lambda trial: _name(initialisation, trial.trial_id),
        ),
        run_config=tune.RunConfig(
            name=initialisation,
            storage_path=scratch,
            verbose=0,
            callbacks=[_counter(context.report, before, total)],
        ),
    ).fit()
    errors = [result.error for result in results if result.error is not None]
    if len(errors) == len(results):
        raise user_error_in(errors[0]) or UserError(
            f"every trial of the sweep failed, the first with: {errors[0]}"
        ) from errors[0]
    rows = []
    for result in results:
        metrics = result.metrics or {}
        name = _name(initialisation, metrics["trial_id"])
        finetune_config = _values(config, result.config or {})
        epochs = int(metrics.get("training_iteration", 0))
        row: dict[str, Any] = {
            "name": name,
            "initialisation": initialisation,
            "finetune": finetune_config.model_dump(mode="json"),
            "epochs_run": epochs,
            "stopped_early": result.error is None and epochs < finetune_config.epochs,
            "seconds": metrics.get("time_total_s", 0.0),
        }
        if result.error is None and METRIC in metrics:
            row |= {"score": metrics[METRIC], "loss": metrics["loss"], "curve": metrics["curve"]}
        rows.append(row)
        context.report.nested(name, {}, "FAILED" if result.error is not None else "FINISHED")
    return sorted(rows, key=lambda row: row["name"])


def _trial(
    values: dict[str, Any],
    *,
    config: SweepStageConfig,
    inputs: dict[str, Artifact],
    initialisation: Initialisation,
    report: Reporter,
) -> None:
    """One trial in a process of its own. It reads the cached artifacts and no Ray Data."""
    from ray import tune

    settings = _values(config, values)
    name = _name(initialisation, tune.get_context().get_trial_id())
    report.nested(name, {"initialisation": initialisation, **settings.model_dump(mode="json")})
    data = load_data(
        inputs["task"], inputs["tokenizer"], inputs["pretrain"], settings.sequence_length
    )
    curve: list[float] = []

    def on_epoch(epoch: int, metrics: dict[str, float]) -> None:
        curve.append(metrics[METRIC])
        report.metrics({f"validation/{k}": v for k, v in metrics.items()}, epoch, run=name)
        tune.report({**metrics, "curve": list(curve)})

    try:
        finetune(settings, data, initialisation, config.sweep.seed, on_epoch)
    finally:
        report.flush()


def _values(config: SweepStageConfig, values: dict[str, Any]) -> FinetuneConfig:
    return validate(
        FinetuneConfig, with_overrides(config.finetune.model_dump(), values), source="sweep.space"
    )


def _name(initialisation: str, trial_id: str) -> str:
    return f"{initialisation}-{int(trial_id.rpartition('_')[2]):03d}"


def _domain(space: Choice | Uniform | LogUniform) -> Any:
    from ray import tune

    match space:
        case Choice():
            return tune.choice(space.values)
        case Uniform():
            return tune.uniform(space.low, space.high)
        case LogUniform():
            return tune.loguniform(space.low, space.high)


def _most_epochs(config: SweepStageConfig) -> int:
    space = config.sweep.space.get("epochs")
    match space:
        case Choice():
            return max(int(value) for value in space.values)
        case Uniform() | LogUniform():
            return int(space.high)
        case None:
            return config.finetune.epochs


def _counter(report: Reporter, before: int, total: int) -> Any:
    from ray.tune import Callback

    class Counter(Callback):
        """Tells how many trials have ended."""

        def __init__(self) -> None:
            self.ended = before

        def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
            self.ended += 1
            score = (trial.last_result or {}).get(METRIC, 0.0)
            report.progress(self.ended, total, trial=str(trial), accuracy=score)

    return Counter()
