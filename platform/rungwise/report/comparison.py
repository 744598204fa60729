"""The sections that compare variants: task by task, their errors, in a table, by label budget, and
by the layers that tasks learnt to weigh."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from rungwise.core.stages.artifact import Artifact
from rungwise.evaluation.comparison import errors
from rungwise.evaluation.comparison.errors import ErrorAnalysis
from rungwise.evaluation.comparison.summary import EvaluateSummary, PretrainingCost
from rungwise.evaluation.comparison.table import RowDifference, TableSummary, TaskScore
from rungwise.evaluation.suites.base import Panel, Point, plot_estimate, plot_value
from rungwise.report import style
from rungwise.report.findings import judge
from rungwise.report.formats import MUTED, Series, metric_axis, number, points, spoken
from rungwise.report.page import Row, Section
from rungwise.report.variants import (
    TaskResult,
    VariantComparison,
    input_artifact,
    rename_variants,
    select_stage,
)
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import TaskSummary

_APART = 0.022  # fraction of the axis between variants at one budget
_TRIVIAL = "best trivial baseline"
_CellT = TypeVar("_CellT", TaskScore, RowDifference)


def write_comparison(comparison: VariantComparison) -> Section | None:
    """The section task by task; None if nothing was evaluated."""
    if not comparison.tasks:
        return None
    fields = {"comparison": comparison, "judge": judge, "cuts": cuts}
    fields["costs"] = costs(comparison)
    plots = {f"scores-{task.name}": draw_scores(task, comparison) for task in comparison.tasks}
    csv = {"seeds": _seed_rows(comparison)}
    return Section("comparison", "Comparison", fields, plots, csv)


def cuts(task: TaskResult) -> list[Row]:
    """The share of examples beyond `sequence_length` by variant and split, where there are any."""
    return [
        {"variant": name, "split": split, "share": share, "of": variant.finetune.sequence_length}
        for name, variant in task.evaluation.variants.items()
        for split, share in variant.cut.items()
        if share
    ]


def costs(comparison: VariantComparison) -> list[Row]:
    """The cost of pretraining each variant, and its ratio to that of the first one of the task, a
    row for all `tasks` where both are the same."""
    rows: list[Row] = []
    for name in comparison.variants:
        tasks: dict[tuple[PretrainingCost | None, float | None], list[str]] = {}
        for task in comparison.tasks:
            variants = task.evaluation.variants
            if name not in variants:
                continue
            cost, first = variants[name].pretraining, next(iter(variants.values())).pretraining
            flops, base = (each.flops if each else None for each in (cost, first))
            share = flops / base if flops and base else None
            tasks.setdefault((cost, share), []).append(task.name)
        for (cost, share), shared in tasks.items():
            where = ", ".join(shared) if len(tasks) > 1 else ""
            rows.append({"variant": name, "tasks": where, "cost": cost, "share": share})
    return rows


def _seed_rows(comparison: VariantComparison) -> list[Row]:
    return [
        {
            "task": evaluation.task,
            "train_examples": evaluation.examples.train,
            "all_examples": evaluation.budget is None,
            "variant": seed.variant,
            "pretraining": seed.pretraining,
            "seed": seed.seed,
            "epoch": seed.epoch,
            **{f"validation_{metric}": value for metric, value in seed.validation.items()},
            **{f"test_{metric}": value for metric, value in seed.test.items()},
        }
        for task in comparison.tasks
        for evaluation in task.by_budget
        for seed in evaluation.rows
    ]


def draw_scores(task: TaskResult, comparison: VariantComparison) -> bytes:
    """The test score of every variant and rival, with 95 % intervals and trivial baselines."""
    estimates = task.evaluation.estimates()
    rows = list(reversed(estimates))
    height = style.MARGIN_INCHES + style.ROW_INCHES * len(rows)
    figure = style.new_figure(style.HALF, height)
    axes = figure.subplots()
    floors = task.evaluation.trivial()
    style.draw_bars(axes, estimates, rows, task.metric, True, comparison.looks, floors)
    style.dress(axes, spoken(task.name), metric_axis(task.metric), grid="x")
    axes.set_yticks(range(len(rows)), rows, parse_math=False)
    return style.png(figure)


def gather_errors(
    inputs: Mapping[str, Artifact], names: Mapping[str, str]
) -> dict[str, ErrorAnalysis]:
    """The errors of the first variant on every task but those of numbers, with all labels."""
    analyses = {}
    for artifact in select_stage(inputs, "evaluate").values():
        evaluation = EvaluateSummary.of(artifact)
        if evaluation.budget is not None or not artifact.folder.exists(errors.FILE):
            continue
        data = input_artifact(artifact, "task", inputs)
        kind, first = task_kind(TaskSummary.of(data).info), next(iter(evaluation.variants))
        if not kind.numeric:
            rows = errors.read_predictions(artifact.folder)
            analysis = errors.analyse_errors(rows, first, kind)
            analyses[evaluation.task] = replace(analysis, variant=names.get(first, first))
    return analyses


def write_errors(inputs: Mapping[str, Artifact], names: Mapping[str, str]) -> Section | None:
    """The section about errors; None if no predictions were kept."""
    analyses = gather_errors(inputs, names)
    return Section("errors", "Error analysis", {"errors": analyses}) if analyses else None


def write_table(
    inputs: Mapping[str, Artifact],
    comparison: VariantComparison,
    names: Mapping[str, str],
    *,
    is_ladder: bool = False,
) -> Section | None:
    """The section of the table stage, on a ladder with the scores and not the steps alone; None
    without one. `names` are those of variants on the page, where they differ."""
    stage = next(iter(select_stage(inputs, "table").values()), None)
    if stage is None:
        return None
    table = rename_variants(TableSummary.of(stage), names)
    # The difference of two variants stands in the comparison.
    is_repeated = table.published is None and len(comparison.variants) < 3
    if not is_ladder and (is_repeated or not table.differences):
        return None
    fields = {
        "table": table,
        "comparison": comparison,
        "rows": _group_by_variant(table.scores),
        "differences": _group_by_variant(table.differences),
    }
    return Section("table", "Table" if is_ladder else "Steps", fields)


def _group_by_variant(cells: Iterable[_CellT]) -> dict[str, dict[str, _CellT]]:
    groups: dict[str, dict[str, _CellT]] = {}
    for cell in cells:
        groups.setdefault(cell.variant, {})[cell.task] = cell
    return groups


def write_budgets(comparison: VariantComparison) -> Section | None:
    """The score of every variant by the number of labelled examples; None for a single number."""
    tasks = [
        task
        for task in comparison.tasks
        if len({each.examples.train for each in task.by_budget}) > 1
    ]
    if not tasks:
        return None
    looks = {**comparison.looks, _TRIVIAL: Series(MUTED, "", "--")}
    plots = {"budgets": style.draw_panels([_plot_budgets(task) for task in tasks], looks)}
    gains = [_describe_gains(task) for task in tasks]
    return Section("budgets", "Label efficiency", {"gains": gains}, plots)


def _describe_gains(task: TaskResult) -> str:
    """`library, from 60 to 200 labels: BERT +7.1, random weights +2.0`, points a doubling."""
    # A budget may be all of the training split.
    fewer, more = list({each.examples.train: each for each in task.by_budget}.values())[-2:]
    doublings = math.log2(more.examples.train / fewer.examples.train)
    before, after = fewer.estimates(), more.estimates()
    gains = ", ".join(
        f"{name} {points((after[name].mean - before[name].mean) / doublings)}"
        for name in after
        if name in before
    )
    labels = f"from {number(fewer.examples.train)} to {number(more.examples.train)} labels"
    return f"{spoken(task.name)}, {labels}: {gains}"


def _plot_budgets(task: TaskResult) -> Panel:
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
    return Panel(
        spoken(task.name), "labelled examples", metric_axis(task.metric), lines, is_size=True
    )


def write_mix(comparison: VariantComparison) -> Section | None:
    """The weight of every layer, embeddings first, means over seeds with the standard deviation;
    None if no task learnt to mix layers."""
    panels = []
    for task in comparison.tasks:
        lines: dict[str, list[Point]] = {}
        for name in task.evaluation.variants:
            seeds = [row for row in task.evaluation.rows if row.variant == name and row.mix]
            if seeds:
                weights = 100 * np.array([seed.mix for seed in seeds])
                means, spread = weights.mean(axis=0), np.zeros(weights.shape[1])
                if len(seeds) > 1:
                    spread = weights.std(axis=0, ddof=1)
                columns: Any = np.stack([means, means - spread, means + spread], axis=1)
                lines[name] = [(layer, *column) for layer, column in enumerate(columns)]
        if lines:
            panels.append(Panel(spoken(task.name), "layer", "weight (%)", lines))
    if not panels:
        return None
    plots = {"mix": style.draw_panels(panels, comparison.looks, columns=2)}
    return Section("mix", "Layer weights", {}, plots)
