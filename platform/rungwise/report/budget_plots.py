"""Plots of scores by number of labelled examples, and of the layer weights that a task learnt."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from rungwise.report import style
from rungwise.report.compared import Compared, TaskResult
from rungwise.report.formats import metric_axis

_COLUMNS = 3
_APART = 0.022  # fraction of the axis between variants at one budget
_TRIVIAL = "best trivial baseline"
_ALIKE = "uniform weights"
_LABEL = 0.13  # fraction of the axis that a tick label takes
_GROUP = 0.8  # fraction of a layer's slot that its bars fill


def budgets(compared: Compared) -> bytes:
    """Score of every variant against the number of labelled examples, one panel per task."""
    tasks = [task for task in compared.tasks if len(task.by_budget) > 1]
    drawn, panels = style.panels(len(tasks), _COLUMNS, 3.2, 0.7)
    for axes, task in zip(panels, tasks, strict=True):
        _panel(axes, task, compared.looks)
    style.legend_below(drawn, panels, last=[_TRIVIAL])
    return style.png(drawn)


def _panel(axes: Axes, task: TaskResult, looks: Mapping[str, style.Series]) -> None:
    counts = [each.examples.train for each in task.by_budget]
    names = list(task.evaluated.variants)
    span = max(counts) / min(counts)
    for place, name in enumerate(names):
        look = looks[name]
        estimates = [each.variants[name].estimates[task.metric] for each in task.by_budget]
        mean, low, high = 100 * np.array([(e.mean, e.low, e.high) for e in estimates]).T
        moved = span ** (_APART * (place - (len(names) - 1) / 2))
        axes.errorbar(
            np.array(counts) * moved,
            mean,
            yerr=(mean - low, high - mean),
            color=look.colour,
            marker=look.marker,
            linestyle=look.line,
            markersize=6,
            linewidth=1.7,
            elinewidth=1.2,
            capsize=3,
            label=name,
        )
    trivial = [each.best_trivial() for each in task.by_budget]
    if any(trivial):
        axes.plot(
            counts,
            [100 * best[1] if best else np.nan for best in trivial],
            color=style.MUTED,
            linestyle=style.DASHED,
            linewidth=1.3,
            label=_TRIVIAL,
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(counts))
    axes.xaxis.set_minor_locator(NullLocator())
    gaps = [math.log(b / a) for a, b in itertools.pairwise(counts)]
    crowded = min(gaps) < _LABEL * math.log(span)
    axes.set_xticklabels([_short(count) for count in counts], rotation=40 if crowded else 0)
    style.dress(axes, task.name, "labelled examples", metric_axis(task.metric))


def _short(count: int) -> str:
    """10, 100, 1k, 67k: tick labels are close together on a log axis."""
    return f"{count}" if count < 1000 else f"{count / 1000:.3g}k"


def mixed(compared: Compared) -> list[tuple[TaskResult, dict[str, np.ndarray]]]:
    """Tasks whose variants learnt to mix layers, each with {variant: weights (seeds, layers)},
    embeddings first."""
    mixes = []
    for task in compared.tasks:
        rows: dict[str, list[tuple[float, ...]]] = {}
        for row in task.evaluated.rows:
            if row.mix:
                rows.setdefault(row.variant, []).append(row.mix)
        if rows:
            mixes.append((task, {name: np.array(each) for name, each in rows.items()}))
    return mixes


def mix(compared: Compared) -> bytes:
    """Layer weights, one panel per task: means over seeds with the standard deviation."""
    tasks = mixed(compared)
    drawn, panels = style.panels(len(tasks), 2, 3.0, 0.7)
    for axes, (task, variants) in zip(panels, tasks, strict=True):
        layers = max(weights.shape[1] for weights in variants.values())
        bar = _GROUP / len(variants)
        for place, (name, weights) in enumerate(variants.items()):
            axes.bar(
                np.arange(weights.shape[1]) + bar * (place - (len(variants) - 1) / 2),
                100 * weights.mean(axis=0),
                yerr=100 * weights.std(axis=0, ddof=1) if len(weights) > 1 else None,
                width=0.92 * bar,
                color=compared.looks[name].colour,
                error_kw={"ecolor": style.INK, "elinewidth": 1.1, "capsize": 2},
                label=name,
            )
        axes.axhline(
            100 / layers, color=style.MUTED, linestyle=style.DASHED, linewidth=1.2, label=_ALIKE
        )
        axes.set_xticks(range(layers), ["emb.", *(str(layer) for layer in range(1, layers))])
        style.dress(axes, task.name, "layer", "weight (%)")
    style.legend_below(drawn, panels, last=[_ALIKE])
    return style.png(drawn)
