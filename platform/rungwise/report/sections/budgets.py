"""The sections about label budgets, and about the layers that tasks learnt to weigh."""

from collections.abc import Mapping
from dataclasses import asdict

import numpy as np

from rungwise.evaluation.suites.section import Panel, Point, plot_estimate, plot_value
from rungwise.report import style
from rungwise.report.formats import metric_axis
from rungwise.report.page import Section
from rungwise.report.palette import MUTED, Series
from rungwise.report.sections.variants import TaskResult, VariantComparison, locate

_APART = 0.022  # fraction of the axis between variants at one budget
_TRIVIAL = "best trivial baseline"


def write_budgets(
    comparison: VariantComparison | None, *, were_swept: bool = False
) -> Section | None:
    """The score of every variant by the number of labelled examples; None for a single number."""
    if comparison is None or not comparison.has_budgets:
        return None
    panels = [_panel_of_task(task) for task in comparison.tasks if len(task.by_budget) > 1]
    looks = {**comparison.looks, _TRIVIAL: Series(MUTED, "", "--")}
    rows = [
        {**locate(evaluation), "variant": name, "metric": evaluation.metric, **asdict(estimate)}
        for evaluation in comparison.evaluations
        for name, estimate in evaluation.estimates().items()
    ]
    plots = {"budgets": style.draw_panels(panels, looks)}
    return Section(
        "budgets", "Label efficiency", {"were_swept": were_swept}, plots, {"budgets": rows}
    )


def _panel_of_task(task: TaskResult) -> Panel:
    counts = [each.examples.train for each in task.by_budget]
    names = [
        name
        for name in task.evaluation.estimates()
        if all(name in each.estimates() for each in task.by_budget)
    ]
    lines: dict[str, list[Point]] = {}
    for place, name in enumerate(names):
        shift = (max(counts) / min(counts)) ** (_APART * (place - (len(names) - 1) / 2))
        for count, evaluation in zip(counts, task.by_budget, strict=True):
            estimate = evaluation.estimates()[name]
            lines.setdefault(name, []).append(plot_estimate(count * shift, estimate, 100))
    for count, evaluation in zip(counts, task.by_budget, strict=True):
        if trivial := evaluation.best_trivial():
            lines.setdefault(_TRIVIAL, []).append(plot_value(count, 100 * trivial[1]))
    unit = metric_axis(task.metric)
    return Panel(task.name, "labelled examples", unit, lines, is_size=True)


def write_mix(comparison: VariantComparison | None) -> Section | None:
    """The weight of every layer, means over seeds with the standard deviation; None if no task
    learnt to mix layers."""
    tasks = layer_weights(comparison) if comparison else []
    if comparison is None or not tasks:
        return None
    panels = [_panel_of_weights(task, variants) for task, variants in tasks]
    rows = [
        {**locate(evaluation), "variant": seed.variant, "seed": seed.seed, "layer": layer}
        | {"weight": weight}
        for evaluation in comparison.evaluations
        for seed in evaluation.rows
        for layer, weight in enumerate(seed.mix or ())
    ]
    plots = {"mix": style.draw_panels(panels, comparison.looks, columns=2)}
    return Section("mix", "Layer weights", {}, plots, {"mix": rows})


def layer_weights(comparison: VariantComparison) -> list[tuple[TaskResult, dict[str, np.ndarray]]]:
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


def _panel_of_weights(task: TaskResult, variants: Mapping[str, np.ndarray]) -> Panel:
    lines: dict[str, list[Point]] = {}
    for name, weights in variants.items():
        means = 100 * weights.mean(axis=0)
        spreads = 100 * weights.std(axis=0, ddof=1) if len(weights) > 1 else np.zeros(len(means))
        lines[name] = [
            (float(layer), float(mean), float(mean - spread), float(mean + spread))
            for layer, (mean, spread) in enumerate(zip(means, spreads, strict=True))
        ]
    uniform = 100 / max(map(len, lines.values()))
    return Panel(task.name, "layer", "weight (%)", lines, ("uniform weights", uniform))
