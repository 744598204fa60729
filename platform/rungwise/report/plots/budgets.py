"""Plots of scores by number of labelled examples, and of the layer weights that a task learnt."""

import itertools
import math
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from rungwise.report import palette, style
from rungwise.report.formats import metric_axis
from rungwise.report.sections.variants import Comparison, TaskResult

_COLUMNS = 3
_APART = 0.022  # fraction of the axis between variants at one budget
_TRIVIAL = "best trivial baseline"
_UNIFORM = "uniform weights"
_LABEL = 0.13  # fraction of the axis that a tick label takes


def draw_all(comparison: Comparison) -> dict[str, bytes]:
    """Both plots by name, as far as there is something to draw."""
    plots = {}
    if comparison.has_budgets:
        plots["budgets"] = draw_budgets(comparison)
    if layer_weights(comparison):
        plots["mix"] = draw_layer_weights(comparison)
    return plots


def draw_budgets(comparison: Comparison) -> bytes:
    """Score of every variant against the number of labelled examples, one panel per task."""
    tasks = [task for task in comparison.tasks if len(task.by_budget) > 1]
    figure, panels = style.new_panels(len(tasks), _COLUMNS, 3.2, 0.7)
    for axes, task in zip(panels, tasks, strict=True):
        _draw_task(axes, task, comparison.looks)
    style.add_legend_below(figure, panels, last=[_TRIVIAL])
    return style.png(figure)


def _draw_task(axes: Axes, task: TaskResult, looks: Mapping[str, palette.Series]) -> None:
    counts = [each.examples.train for each in task.by_budget]
    names = [
        name
        for name in task.evaluation.variants
        if all(name in each.variants for each in task.by_budget)
    ]
    span = max(counts) / min(counts)
    for place, name in enumerate(names):
        estimates = [each.variants[name].estimates[task.metric] for each in task.by_budget]
        bounds = [(100 * each.mean, 100 * each.low, 100 * each.high) for each in estimates]
        shift = span ** (_APART * (place - (len(names) - 1) / 2))
        style.draw_estimates(axes, np.array(counts) * shift, bounds, looks[name], name)
    trivial = [each.best_trivial() for each in task.by_budget]
    if any(trivial):
        axes.plot(
            counts,
            [100 * best[1] if best else np.nan for best in trivial],
            color=palette.MUTED,
            linestyle=style.DASHED,
            linewidth=1.3,
            label=_TRIVIAL,
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(counts))
    axes.xaxis.set_minor_locator(NullLocator())
    gaps = [math.log(b / a) for a, b in itertools.pairwise(counts)]
    crowded = min(gaps) < _LABEL * math.log(span)
    # 10, 100, 1k, 67k: tick labels are close together on a log axis.
    labels = [str(count) if count < 1000 else f"{count / 1000:.3g}k" for count in counts]
    axes.set_xticklabels(labels, rotation=40 if crowded else 0)
    style.dress(axes, task.name, "labelled examples", metric_axis(task.metric))


def layer_weights(comparison: Comparison) -> list[tuple[TaskResult, dict[str, np.ndarray]]]:
    """Tasks whose variants learnt to mix layers, each with {variant: weights (seeds, layers)},
    embeddings first."""
    tasks = []
    for task in comparison.tasks:
        weights: dict[str, list[tuple[float, ...]]] = {}
        for seed in task.evaluation.rows:
            if seed.mix:
                weights.setdefault(seed.variant, []).append(seed.mix)
        if weights:
            tasks.append((task, {name: np.array(each) for name, each in weights.items()}))
    return tasks


def draw_layer_weights(comparison: Comparison) -> bytes:
    """Layer weights, one panel per task: means over seeds with the standard deviation."""
    tasks = layer_weights(comparison)
    figure, panels = style.new_panels(len(tasks), 2, 3.0, 0.7)
    for axes, (task, variants) in zip(panels, tasks, strict=True):
        layers = max(weights.shape[1] for weights in variants.values())
        for place, (name, weights) in enumerate(variants.items()):
            style.draw_bars(
                *(axes, place, len(variants), 100 * weights.mean(axis=0)),
                *(comparison.looks[name], name),
                yerr=100 * weights.std(axis=0, ddof=1) if len(weights) > 1 else None,
                error_kw={"ecolor": palette.INK, "elinewidth": 1.1, "capsize": 2},
            )
        axes.axhline(
            100 / layers, color=palette.MUTED, linestyle=style.DASHED, linewidth=1.2, label=_UNIFORM
        )
        axes.set_xticks(range(layers), ["emb.", *(str(layer) for layer in range(1, layers))])
        style.dress(axes, task.name, "layer", "weight (%)")
    style.add_legend_below(figure, panels, last=[_UNIFORM])
    return style.png(figure)
