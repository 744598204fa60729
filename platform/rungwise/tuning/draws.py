"""The settings to try: a pure function of the block, so a restarted sweep or search draws the same.

A draw depends only on the seed and the trial's number, so adding trials does not change the earlier
ones.
"""

import itertools
from typing import Any

import numpy as np

from rungwise.core.configuration.canonical import canonical_json
from rungwise.core.configuration.overrides import find_value, resolve
from rungwise.core.errors import ConfigError
from rungwise.finetune import FinetuneConfig, check_task
from rungwise.tasks.kinds.examples import TaskInfo
from rungwise.tuning.config import EPOCHS, FINETUNE, SweepConfig, SweepStageConfig, TuningConfig
from rungwise.tuning.space import Grid, matches

Values = dict[str, Any]  # of one trial, by dotted key


def draw_trials(config: TuningConfig) -> list[Values]:
    """The values of every trial, by number."""
    if config.trials is None:
        return _combine(config, list(config.space))
    grid = [key for key, allowed in config.space.items() if isinstance(allowed, Grid)]
    combinations = _combine(config, grid)
    possible = config.size()
    total = len(combinations) * config.trials
    trials: list[Values] = []
    texts: set[str] = set()
    for number in range(total if possible is None else min(total, possible)):
        # Redraw duplicates: the same settings and seed would repeat a trial.
        for attempt in itertools.count():
            rng = np.random.default_rng([config.seed, number, attempt])
            values = combinations[number % len(combinations)] | {
                key: config.space[key].draw(rng) for key in sorted(config.space) if key not in grid
            }
            if (text := canonical_json(values)) not in texts:
                texts.add(text)
                trials.append({key: values[key] for key in sorted(values)})
                break
    return trials


def describe_values(values: Values) -> str:
    """The values of a trial by the last words of their keys."""
    return ", ".join(
        f"{key.rpartition('.')[2]} {f'{value:.3g}' if isinstance(value, float) else value}"
        for key, value in values.items()
    )


def list_upstream(sweep: SweepConfig) -> list[Values]:
    """The distinct values of keys of blocks before `finetune`, each needing its own artifacts;
    their indices number the titles of the stage's inputs."""
    upstream: list[Values] = []
    for trial in draw_trials(sweep):
        values = _upstream(trial)
        if values and values not in upstream:
            upstream.append(values)
    return upstream


def find_upstream(sweep: SweepConfig, values: Values) -> int | None:
    """The index in `list_upstream` that matches a trial's values; None if there are none."""
    upstream = _upstream(values)
    return list_upstream(sweep).index(upstream) if upstream else None


def _upstream(values: Values) -> Values:
    return {key: value for key, value in values.items() if not key.startswith(f"{FINETUNE}.")}


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
        if not matches(resolved := find_value(data, key), value):
            raise ConfigError(
                f"sweep.space.{FINETUNE}.{key}: drew {value!r}, which became {resolved}"
            )
    return settings


def check_values(config: SweepStageConfig, info: TaskInfo) -> None:
    """Raise ConfigError, naming the key, for a value that does not fit the task."""
    for key, allowed in config.sweep.space.items():
        for value in allowed.probes():
            check_task(resolve_settings(config, {key: value}), info)


def count_grid_epochs(config: SweepStageConfig, epochs_asked: int) -> int:
    """Total epochs of the full grid without stopping; `epochs_asked` if a key has a range."""
    size = config.sweep.size()
    if size is None:
        return epochs_asked
    allowed = config.sweep.space.get(EPOCHS)
    epochs = [config.finetune.epochs] if allowed is None else allowed.finite()
    assert epochs is not None
    return size // (len(epochs) if allowed is not None else 1) * sum(epochs)


def _combine(config: TuningConfig, keys: list[str]) -> list[Values]:
    lists = [config.space[key].finite() or [] for key in sorted(keys)]
    return [dict(zip(sorted(keys), values, strict=True)) for values in itertools.product(*lists)]
