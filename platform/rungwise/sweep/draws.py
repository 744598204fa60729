"""The settings to try: a pure function of the `sweep` block, except with Optuna.

A restarted sweep therefore draws the same trials. A draw depends only on the seed and the trial's
number, so adding trials does not change the earlier ones.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from rungwise.core.configuration.canonical import canonical_json
from rungwise.core.configuration.overrides import resolve, value_at
from rungwise.core.errors import ConfigError
from rungwise.finetune import FinetuneConfig, check_task
from rungwise.sweep.config import (
    EPOCHS,
    FINETUNE,
    GridSearch,
    OptunaSearch,
    SweepConfig,
    SweepStageConfig,
)
from rungwise.sweep.space import Grid, holds
from rungwise.tasks.kinds.examples import TaskInfo

Values = dict[str, Any]  # of one trial, by dotted key


def points(sweep: SweepConfig) -> list[Values]:
    """The values of every trial, by number. Not for Optuna, which chooses as it goes."""
    assert not isinstance(sweep.search, OptunaSearch)
    keys = sorted(sweep.space)
    all_of = isinstance(sweep.search, GridSearch)
    grid = [key for key in keys if all_of or isinstance(sweep.space[key], Grid)]
    drawn = [key for key in keys if key not in grid]
    combinations = _combinations(sweep, grid)
    drawn_values: list[Values] = []
    seen: set[str] = set()
    for number in range(len(combinations) * (sweep.trials or 1)):
        fixed = combinations[number % len(combinations)]
        values = None
        # Redraw duplicates: the same settings and seed would repeat a trial.
        for attempt in itertools.count():
            rng = np.random.default_rng([sweep.seed, number, attempt])
            values = fixed | {key: sweep.space[key].draw(rng) for key in drawn}
            if canonical_json(values) not in seen:
                break
        assert values is not None
        seen.add(canonical_json(values))
        drawn_values.append({key: values[key] for key in keys})
    return drawn_values


def upstream_values(sweep: SweepConfig) -> list[Values]:
    """The distinct values of keys of blocks before `finetune`, each needing its own artifacts;
    their indices number the titles of the stage's inputs."""
    keys = sorted(key for key in sweep.space if not key.startswith(f"{FINETUNE}."))
    if not keys:
        return []
    if isinstance(sweep.search, OptunaSearch):
        return _combinations(sweep, keys)
    tried = [{key: values[key] for key in keys} for values in points(sweep)]
    return [values for place, values in enumerate(tried) if values not in tried[:place]]


def upstream_of(sweep: SweepConfig, values: Values) -> int | None:
    """The index in `upstream_values` that matches a trial's values; None if there are none."""
    for place, upstream in enumerate(upstream_values(sweep)):
        if all(values[key] == value for key, value in upstream.items()):
            return place
    return None


def settings_of(config: SweepStageConfig, values: Values) -> FinetuneConfig:
    """The `finetune` block of a trial. Raises ConfigError unless it holds each value exactly."""
    own = {
        key.removeprefix(f"{FINETUNE}."): value
        for key, value in values.items()
        if key.startswith(f"{FINETUNE}.")
    }
    data = config.finetune.model_dump(mode="json")
    settings = resolve(FinetuneConfig, data, own, f"sweep.space: {own} together")
    read_back = settings.model_dump(mode="json")
    for key, value in own.items():
        if not holds(resolved := value_at(read_back, key), value):
            raise ConfigError(
                f"sweep.space.{FINETUNE}.{key}: drew {value!r}, which became {resolved}"
            )
    return settings


def check_values(config: SweepStageConfig, info: TaskInfo) -> None:
    """Raise ConfigError, naming the key, for a value that does not fit the task."""
    for key, allowed in config.sweep.space.items():
        for value in allowed.probes():
            check_task(settings_of(config, {key: value}), info)


def grid_epochs(config: SweepStageConfig, epochs_asked: int) -> int:
    """Total epochs of the full grid without stopping; `epochs_asked` if a key has a range."""
    size = config.sweep.size()
    if size is None:
        return epochs_asked
    allowed = config.sweep.space.get(EPOCHS)
    epochs = [config.finetune.epochs] if allowed is None else allowed.finite()
    assert epochs is not None
    return size // (len(epochs) if allowed is not None else 1) * sum(epochs)


def _combinations(sweep: SweepConfig, keys: list[str]) -> list[Values]:
    lists = [sweep.space[key].finite() or [] for key in keys]
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*lists)]
