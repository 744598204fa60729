"""Plots over label budgets and over layers: what few labels give, and which layers a task reads."""

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
_APART = 0.022  # of the axis, between the variants at one budget
_TRIVIAL = "best trivial baseline"
_ALIKE = "all layers alike"
_LABEL = 0.13  # of the axis, the room of a tick's label
_GROUP = 0.8  # of the room of a layer, for all its bars


def budgets(compared: Compared) -> bytes:
    """Score against the number of labelled examples for every variant, one panel a task."""
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
    """10, 100, 1k, 67k: labels stand close on a logarithmic axis."""
    return f"{count}" if count < 1000 else f"{count / 1000:.3g}k"


def mixed(compared: Compared) -> list[tuple[TaskResult, dict[str, np.ndarray]]]:
    """Tasks with the variants that learnt to mix layers: weights, a row a seed and a column a
    layer, the embeddings first."""
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
    """The weight of every layer, mean over seeds with their standard deviation, a panel a task."""
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
