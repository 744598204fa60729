"""The settings to try: a pure function of the `sweep` block, except with Optuna.

A restarted sweep therefore draws the same trials. A draw depends only on the seed and the trial's
number, so adding trials does not change the earlier ones.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from rungwise.core.configuration.canonical import canonical_json
from rungwise.core.configuration.overrides import find_value, resolve
from rungwise.core.errors import ConfigError
from rungwise.finetune import FinetuneConfig, check_task
from rungwise.sweep.config import (
    EPOCHS,
    FINETUNE,
    Draws,
    GridSearch,
    OptunaSearch,
    SweepConfig,
    SweepStageConfig,
)
from rungwise.sweep.space import Grid, Listed, holds
from rungwise.tasks.kinds.examples import TaskInfo

Values = dict[str, Any]  # of one trial, by dotted key


def draw_trials(sweep: Draws) -> list[Values]:
    """The values of every trial, by number. Not for Optuna, which chooses as it goes."""
    assert not isinstance(sweep.search, OptunaSearch)
    keys = sorted(sweep.space)
    whole = isinstance(sweep.search, GridSearch)
    grid = [key for key in keys if whole or isinstance(sweep.space[key], Grid)]
    combinations = _combine(sweep, grid)
    trials: list[Values] = []
    texts: set[str] = set()
    for number in range(len(combinations) * (sweep.trials or 1)):
        # Redraw duplicates: the same settings and seed would repeat a trial.
        for attempt in itertools.count():
            rng = np.random.default_rng([sweep.seed, number, attempt])
            values = combinations[number % len(combinations)] | {
                key: sweep.space[key].draw(rng) for key in keys if key not in grid
            }
            if (text := canonical_json(values)) not in texts:
                texts.add(text)
                trials.append({key: values[key] for key in keys})
                break
    return trials


def propose(sweep: Draws, number: int, scored: Sequence[tuple[Values, float]]) -> Values:
    """The values that Optuna proposes for a trial, given those of others and their scores, of which
    higher ones are better. The same arguments give the same values."""
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    def distribution(allowed: Any) -> Any:
        match allowed.kind:
            case "integer":
                return IntDistribution(allowed.low, allowed.high, step=allowed.step)
            case "uniform" | "loguniform":
                log = allowed.kind == "loguniform"
                return FloatDistribution(allowed.low, allowed.high, log=log)
            case _:  # by index, since values may be lists and blocks
                return CategoricalDistribution(range(len(allowed.values)))

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    state = np.random.SeedSequence([sweep.seed, number, len(scored)]).generate_state(1)
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(
            n_startup_trials=max(1, min(10, (sweep.trials or 0) // 3)), seed=int(state[0])
        ),
    )
    distributions = {key: distribution(sweep.space[key]) for key in sorted(sweep.space)}
    for values, score in scored:
        parameters = {
            key: allowed.values.index(values[key]) if isinstance(allowed, Listed) else values[key]
            for key, allowed in sweep.space.items()
        }
        study.add_trial(
            optuna.trial.create_trial(params=parameters, distributions=distributions, value=score)
        )
    proposal = study.ask(distributions).params
    return {
        key: allowed.values[proposal[key]] if isinstance(allowed, Listed) else proposal[key]
        for key, allowed in sorted(sweep.space.items())
    }


def describe_values(values: Values) -> str:
    """The values of a trial by the last words of their keys."""
    return ", ".join(
        f"{key.rpartition('.')[2]} {f'{value:.3g}' if isinstance(value, float) else value}"
        for key, value in values.items()
    )


def upstream_values(sweep: SweepConfig) -> list[Values]:
    """The distinct values of keys of blocks before `finetune`, each needing its own artifacts;
    their indices number the titles of the stage's inputs."""
    keys = sorted(key for key in sweep.space if not key.startswith(f"{FINETUNE}."))
    if not keys:
        return []
    if isinstance(sweep.search, OptunaSearch):
        return _combine(sweep, keys)
    upstream: list[Values] = []
    for trial in draw_trials(sweep):
        values = {key: trial[key] for key in keys}
        if values not in upstream:
            upstream.append(values)
    return upstream


def find_upstream(sweep: SweepConfig, values: Values) -> int | None:
    """The index in `upstream_values` that matches a trial's values; None if there are none."""
    for place, upstream in enumerate(upstream_values(sweep)):
        if all(values[key] == value for key, value in upstream.items()):
            return place
    return None


def resolve_settings(config: SweepStageConfig, values: Values) -> FinetuneConfig:
    """The `finetune` block of a trial. Raises ConfigError unless it holds each value exactly."""
    own = {
        key.removeprefix(f"{FINETUNE}."): value
        for key, value in values.items()
        if key.startswith(f"{FINETUNE}.")
    }
    data = config.finetune.model_dump(mode="json")
    settings = resolve(FinetuneConfig, data, own, f"sweep.space: {own} together")
    data = settings.model_dump(mode="json")
    for key, value in own.items():
        if not holds(resolved := find_value(data, key), value):
            raise ConfigError(
                f"sweep.space.{FINETUNE}.{key}: drew {value!r}, which became {resolved}"
            )
    return settings


def check_values(config: SweepStageConfig, info: TaskInfo) -> None:
    """Raise ConfigError, naming the key, for a value that does not fit the task."""
    for key, allowed in config.sweep.space.items():
        for value in allowed.probes():
            check_task(resolve_settings(config, {key: value}), info)


def grid_epochs(config: SweepStageConfig, epochs_asked: int) -> int:
    """Total epochs of the full grid without stopping; `epochs_asked` if a key has a range."""
    size = config.sweep.size()
    if size is None:
        return epochs_asked
    allowed = config.sweep.space.get(EPOCHS)
    epochs = [config.finetune.epochs] if allowed is None else allowed.finite()
    assert epochs is not None
    return size // (len(epochs) if allowed is not None else 1) * sum(epochs)


def _combine(sweep: Draws, keys: list[str]) -> list[Values]:
    lists = [sweep.space[key].finite() or [] for key in keys]
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*lists)]
