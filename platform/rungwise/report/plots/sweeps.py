"""Plots of sweeps: where the good settings lie, and how trials went epoch by epoch.

Each task has its own panel, since scores of different tasks do not compare; each variant has its
own colour, marker and line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from rungwise.report import style
from rungwise.report.formats import metric_axis, score, setting
from rungwise.report.sections.variants import VariantSweep
from rungwise.sweep.config import HalvingScheduler
from rungwise.sweep.record import Trial

_PANEL_INCHES = 3.7
_ROW_INCHES = 3.4  # of a full-width panel
_SHIFT = 0.012  # between lines through the same value
_WIDE_RANGE = 0.5  # powers of ten above which an axis is logarithmic


def draw_parallel(sweeps: Sequence[VariantSweep]) -> bytes:
    """Parallel coordinates: every trial as a line through its settings, coloured by its score."""
    tasks = group_by_task(sweeps)
    figure = style.new_figure((style.WIDE[0], 0.5 + _ROW_INCHES * len(tasks)))
    panels = figure.subplots(len(tasks), 1, squeeze=False)[:, 0]
    colours = colormaps["viridis"]
    for axes, (task, task_sweeps) in zip(panels, tasks.items(), strict=True):
        keys = sweep_keys(task_sweeps)
        lines = [(trial, sweep) for sweep in task_sweeps for trial in sweep.summary.scored]
        lines.sort(key=lambda pair: pair[0].score)
        lowest, highest = lines[0][0].score, lines[-1][0].score
        scales = [key_axis(key, task_sweeps) for key in keys]
        scales.append(Axis("score", [lowest, highest], None))
        shades = Normalize(100 * lowest, 100 * highest)
        metric = task_sweeps[0].summary.metric
        for number, (trial, sweep) in enumerate(lines):
            values = trial.values | {"score": trial.score}
            shift = _SHIFT * (number % 5 - 2)
            heights = [
                scale.height(values[scale.key]) + (shift if scale.labels else 0.0)
                if scale.key in values
                else math.nan
                for scale in scales
            ]
            winner = trial.name == sweep.summary.best.name
            axes.plot(
                range(len(scales)),
                heights,
                color=colours(shades(100 * trial.score)),
                linestyle=":" if trial.stopped_early else "-",
                linewidth=3.0 if winner else 1.3,
                alpha=1.0 if winner else 0.85,
                zorder=3 if winner else 2,
            )
            axes.scatter(
                [len(scales) - 1],
                heights[-1:],
                color=sweep.look.colour,
                marker=sweep.look.marker,
                s=60 if winner else 24,
                edgecolor="white",
                linewidth=0.8,
                zorder=4,
            )
        for place, scale in enumerate(scales):
            last = place == len(scales) - 1
            axes.axvline(place, color=style.MUTED, linewidth=0.9, zorder=1)
            for value in scale.marks():
                axes.annotate(
                    score(value, metric) if last else setting(value),
                    (place, scale.height(value)),
                    xytext=(8 if last else -4, 0),
                    textcoords="offset points",
                    ha="left" if last else "right",
                    va="center",
                    fontsize=8,
                    color=style.INK,
                    parse_math=False,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8},
                    zorder=5,
                )
        names = [readable(key) for key in keys]
        axes.set_xticks(range(len(scales)), [*names, metric_axis(metric, "validation")])
        title = _title(task, _winners(task_sweeps, keys))
        style.dress(axes, title, grid="x")
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlim(-0.35, len(scales) - 0.7)
        bar = figure.colorbar(ScalarMappable(shades, colours), ax=axes, pad=0.01, aspect=25)
        bar.set_label(metric_axis(metric, "validation"), fontsize=9, color=style.MUTED)
        bar.ax.tick_params(labelsize=8, colors=style.MUTED)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    handles = {
        s.variant: Line2D([], [], color=s.look.colour, marker=s.look.marker, linestyle="none")
        for s in sweeps
    }
    early = Line2D([], [], color=style.MUTED, linestyle=":")
    style.add_key_below(figure, handles | {"stopped early": early})
    return style.png(figure)


def draw_curves(sweeps: Sequence[VariantSweep]) -> bytes:
    """The validation score of every trial by epoch, with a cross where it was stopped and dotted
    lines where successive halving compares trials."""
    tasks = group_by_task(sweeps)
    figure, panels = style.new_panels(len(tasks), 2, _PANEL_INCHES, 0.5)
    for axes, (task, task_sweeps) in zip(panels, tasks.items(), strict=True):
        for sweep in task_sweeps:
            for epoch in halving_epochs(sweep.settings, sweep.summary.trials):
                axes.axvline(
                    epoch, color=style.FAINT, linestyle=style.DOTTED, linewidth=1.4, zorder=0
                )
            for trial in sweep.summary.scored:
                winner = trial.name == sweep.summary.best.name
                epochs = [row.epoch for row in trial.history]
                values = [100 * row.score for row in trial.history]
                axes.plot(
                    epochs,
                    values,
                    color=sweep.look.colour,
                    linestyle=sweep.look.line,
                    linewidth=2.6 if winner else 1.1,
                    alpha=1.0 if winner else 0.6,
                    label=sweep.variant,
                    zorder=3 if winner else 2,
                )
                if len(epochs) == 1:
                    axes.scatter(epochs, values, s=12, color=sweep.look.colour, zorder=2)
                point: Any = {"color": sweep.look.colour, "zorder": 4}
                if trial.stopped_early:
                    point |= {"marker": "x", "linewidth": 1.8, "label": "stopped early"}
                    axes.scatter(epochs[-1], values[-1], 46, **point)
        ran = sum(s.summary.epochs_run for s in task_sweeps)
        total = sum(s.summary.grid_epochs for s in task_sweeps)
        title = _title(task, f"{ran} of {total} epochs run")
        is_halving = any(halving_epochs(s.settings, s.summary.trials) for s in task_sweeps)
        x = "epoch (dotted: where trials are compared)" if is_halving else "epoch"
        style.dress(axes, title, x, metric_axis(task_sweeps[0].summary.metric, "validation"))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.add_legend_below(figure, panels, last=["stopped early"])
    return style.png(figure)


def _winners(sweeps: Sequence[VariantSweep], keys: Sequence[str]) -> str:
    """The settings that the winners have in common."""
    values = [sweep.summary.best.values for sweep in sweeps]
    same = [key for key in keys if len({value_text(one.get(key)) for one in values}) == 1]
    if not same:
        return "winners (thick) have no setting in common"
    shared = ", ".join(f"{readable(key)} {setting(values[0].get(key))}" for key in same)
    return f"winners (thick) share {shared}" if len(values) > 1 else f"winner (thick): {shared}"


def _title(task: str, finding: str) -> str:
    return f"{task}: {finding}" if task and task != "sweep" else finding[:1].upper() + finding[1:]


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
        if self.key == "score" or not self._numeric or min(self.values) <= 0:
            return False
        return math.log10(max(self.values) / min(self.values)) > _WIDE_RANGE

    def height(self, value: Any) -> float:
        """Coordinate between 0 and 1, for parallel axes."""
        if not self._numeric:
            texts = [value_text(one) for one in self.values]
            return (texts.index(value_text(value)) + 0.5) / len(texts)
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


def value_text(value: Any) -> str:
    """A text that is equal for equal values, lists and blocks included."""
    return json.dumps(value, sort_keys=True)


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
