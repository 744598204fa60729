"""Helpers of the sweep plots: sweeps by task, and the axis of a setting."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rungwise.report.formats import setting
from rungwise.report.sections.variants import VariantSweep
from rungwise.sweep.config import HalvingScheduler
from rungwise.sweep.record import Trial

_WIDE_RANGE = 0.5  # powers of ten above which an axis is logarithmic


def group_by_task(sweeps: Sequence[VariantSweep]) -> dict[str, list[VariantSweep]]:
    tasks: dict[str, list[VariantSweep]] = {}
    for sweep in sweeps:
        tasks.setdefault(sweep.task, []).append(sweep)
    return tasks


def sweep_keys(sweeps: Sequence[VariantSweep]) -> list[str]:
    """The keys that any of these sweeps varied, learning rates first."""
    keys = dict.fromkeys(key for sweep in sweeps for key in sorted(sweep.settings["space"]))
    return sorted(keys, key=lambda key: not key.endswith("learning_rate"))


def halving_epochs(settings: Mapping[str, Any], trials: Sequence[Trial]) -> list[int]:
    """The epochs after which successive halving compares trials; none for another scheduler."""
    if settings["scheduler"]["kind"] != "halving":
        return []
    scheduler = HalvingScheduler.model_validate(settings["scheduler"])
    return scheduler.milestones(max(trial.epochs_asked for trial in trials))


@dataclass(frozen=True)
class Axis:
    """Where the values of a key lie. `values` are all listed ones, with their `labels`, or the two
    bounds of a range if `labels` is None."""

    key: str
    values: list[Any]
    labels: list[str] | None

    @property
    def _numeric(self) -> bool:
        return _are_numbers(self.values)

    @property
    def _logarithmic(self) -> bool:
        return self.key != "score" and self._numeric and is_wide(self.values)

    def height(self, value: Any) -> float:
        """Coordinate between 0 and 1, for parallel axes."""
        if not self._numeric:
            return (self._position(value) + 0.5) / len(self.values)
        low, high = min(self.values), max(self.values)
        if low == high:
            return 0.5
        if self._logarithmic:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)

    def marks(self) -> list[Any]:
        """The values labelled on a parallel axis."""
        if self.labels or self.values[0] == self.values[-1]:
            return self.values if self.labels else self.values[:1]
        low, high = self.values
        return [low, math.sqrt(low * high) if self._logarithmic else (low + high) / 2, high]

    def _position(self, value: Any) -> int:
        return [value_text(one) for one in self.values].index(value_text(value))


def key_axis(key: str, sweeps: Sequence[VariantSweep]) -> Axis:
    """The axis of a key over a task's sweeps: its search space and the values that trials had."""
    spaces = [s.settings["space"][key] for s in sweeps if key in s.settings["space"]]
    trial_values = [t.values[key] for s in sweeps for t in s.summary.scored if key in t.values]
    if all("values" in space for space in spaces):
        distinct = {value_text(value): value for space in spaces for value in space["values"]}
        distinct |= {value_text(value): value for value in trial_values}
        values = list(distinct.values())
        if _are_numbers(values):
            values.sort()
        return Axis(key, values, [setting(value) for value in values])
    ends = [end for s in spaces for end in s.get("values", (s.get("low"), s.get("high")))]
    numbers = ends + trial_values
    return Axis(key, [min(numbers), max(numbers)], None)


def readable(key: str) -> str:
    """`finetune.learning_rate` -> `learning rate`; other blocks keep their name."""
    return key.removeprefix("finetune.").replace("_", " ").replace(".", " ")


def is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and math.log10(max(values) / min(values)) > _WIDE_RANGE


def value_text(value: Any) -> str:
    """A text that is equal for equal values, lists and blocks included."""
    return json.dumps(value, sort_keys=True)


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
