"""The sections that compare variants: task by task, their errors, in a table, by label budget, by
the layers that tasks learnt to weigh, and by how much was tried in tuning."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any, TypeVar

import numpy as np

from rungwise.core.errors import list_first
from rungwise.core.stages.artifact import Inputs
from rungwise.evaluation.comparison import errors
from rungwise.evaluation.comparison.claims import ClaimsSummary
from rungwise.evaluation.comparison.errors import ErrorAnalysis
from rungwise.evaluation.comparison.summary import (
    EvaluateSummary,
    PretrainingCost,
    RowDifference,
    TableSummary,
    TaskScore,
    input_name,
)
from rungwise.evaluation.pretrainings import SearchSummary
from rungwise.evaluation.suites.base import Panel, Point, plot_estimate, plot_value
from rungwise.report import findings, formats, style
from rungwise.report.findings import Names
from rungwise.report.formats import Looks
from rungwise.report.page import Row, Section
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import TaskSummary
from rungwise.tasks.scoring.metrics import format_metric
from rungwise.tuning.trials import SweepSummary, describe_values

_APART = 0.022  # fraction of the axis between variants at one budget
_TRIVIAL = "best trivial baseline"
_CellT = TypeVar("_CellT", TaskScore, RowDifference)
_MOST_NAMED = 8


def write_comparison(comparison: findings.VariantComparison) -> Section | None:
    """The section task by task; None if nothing was evaluated."""
    if not comparison.tasks:
        return None
    fields = {"comparison": comparison, "judge": findings.judge, "cuts": cuts}
    fields["costs"] = costs(comparison)
    plots = {f"scores-{task.name}": draw_scores(task, comparison) for task in comparison.tasks}
    csv = {"seeds": _seed_rows(comparison)}
    return Section("comparison", "Comparison", fields, plots, csv)


def cuts(task: findings.TaskResult) -> list[Row]:
    """The share of examples beyond `sequence_length` by variant and split, where there are any."""
    return [
        {"variant": name, "split": split, "share": share, "of": variant.finetune.sequence_length}
        for name, variant in task.evaluation.variants.items()
        for split, share in variant.cut.items()
        if share
    ]


def costs(comparison: findings.VariantComparison) -> list[Row]:
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


def _seed_rows(comparison: findings.VariantComparison) -> list[Row]:
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


def draw_scores(task: findings.TaskResult, comparison: findings.VariantComparison) -> bytes:
    """The test score of every variant and rival, with 95 % intervals and trivial baselines."""
    estimates = task.evaluation.estimates()
    rows = list(reversed(estimates))
    height = style.MARGIN_INCHES + style.ROW_INCHES * len(rows)
    figure = style.new_figure(style.HALF, height)
    axes = figure.subplots()
    floors = task.evaluation.trivial()
    style.draw_bars(axes, estimates, rows, task.metric, True, comparison.looks, floors)
    style.dress(axes, formats.spoken(task.name), formats.metric_axis(task.metric), grid="x")
    axes.set_yticks(range(len(rows)), rows, parse_math=False)
    return style.png(figure)


def gather_errors(inputs: Inputs, names: Names) -> dict[str, ErrorAnalysis]:
    """The errors of the first variant on every task but those of numbers, with all labels."""
    analyses = {}
    for artifact in findings.select_stage(inputs, "evaluate").values():
        evaluation = EvaluateSummary.of(artifact)
        if evaluation.budget is not None or not artifact.folder.exists(errors.FILE):
            continue
        data = findings.input_artifact(artifact, "task", inputs)
        kind, first = task_kind(TaskSummary.of(data).info), next(iter(evaluation.variants))
        if not kind.numeric:
            rows = errors.read_predictions(artifact.folder)
            analysis = errors.analyse_errors(rows, first, kind)
            analyses[evaluation.task] = replace(analysis, variant=names.get(first, first))
    return analyses


def write_errors(inputs: Inputs, names: Names) -> Section | None:
    """The section about errors; None if no predictions were kept."""
    analyses = gather_errors(inputs, names)
    return Section("errors", "Error analysis", {"errors": analyses}) if analyses else None


def write_table(
    inputs: Inputs, comparison: findings.VariantComparison, names: Names, *, is_ladder: bool = False
) -> Section | None:
    """The section of the table stage, on a ladder with the scores and not the steps alone; None
    without one. `names` are those of variants on the page, where they differ."""
    stage = next(iter(findings.select_stage(inputs, "table").values()), None)
    if stage is None:
        return None
    table = findings.rename_variants(TableSummary.of(stage), names)
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


def write_budgets(comparison: findings.VariantComparison) -> Section | None:
    """The score of every variant by the number of labelled examples; None for a single number."""
    tasks = [
        task
        for task in comparison.tasks
        if len({each.examples.train for each in task.by_budget}) > 1
    ]
    if not tasks:
        return None
    looks = {**comparison.looks, _TRIVIAL: formats.Series(formats.MUTED, "", "--")}
    plots = {"budgets": style.draw_panels([_plot_budgets(task) for task in tasks], looks)}
    gains = [_describe_gains(task) for task in tasks]
    return Section("budgets", "Label efficiency", {"gains": gains}, plots)


def _describe_gains(task: findings.TaskResult) -> str:
    """`library, from 60 to 200 labels: BERT +7.1, random weights +2.0`, points a doubling."""
    # A budget may be all of the training split.
    fewer, more = list({each.examples.train: each for each in task.by_budget}.values())[-2:]
    doublings = math.log2(more.examples.train / fewer.examples.train)
    before, after = fewer.estimates(), more.estimates()
    gains = ", ".join(
        f"{name} {formats.points((after[name].mean - before[name].mean) / doublings)}"
        for name in after
        if name in before
    )
    few, many = (formats.number(each.examples.train) for each in (fewer, more))
    return f"{formats.spoken(task.name)}, from {few} to {many} labels: {gains}"


def _plot_budgets(task: findings.TaskResult) -> Panel:
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
    title, score = formats.spoken(task.name), formats.metric_axis(task.metric)
    return Panel(title, "labelled examples", score, lines, is_size=True)


def write_mix(comparison: findings.VariantComparison) -> Section | None:
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
            panels.append(Panel(formats.spoken(task.name), "layer", "weight (%)", lines))
    if not panels:
        return None
    plots = {"mix": style.draw_panels(panels, comparison.looks, columns=2)}
    return Section("mix", "Layer weights", {}, plots)


@dataclass(frozen=True)
class Tuned:
    """The search of a rung and how the rung is drawn."""

    rung: str
    look: formats.Series
    summary: SearchSummary

    @property
    def shown(self) -> Mapping[str, str]:
        summary, winner = self.summary, self.summary.winner_scores
        scores = {"best": winner[0], "worst": summary.worst, "one": summary.expected[0]}
        scores |= {"mean": fmean(winner)} | ({"spread": stdev(winner)} if len(winner) > 1 else {})
        return {name: format_metric(score, summary.metric) for name, score in scores.items()}


def gather_searches(inputs: Inputs, looks: Looks, names: Names) -> list[Tuned]:
    """Every search of a run; `names` are those of variants on the page, where they differ."""
    searches = findings.select_stage(inputs, "search")
    summaries = [SearchSummary.of(each) for each in searches.values()]
    rungs = [names.get(each.variant, each.variant) for each in summaries]
    return [
        Tuned(rung, looks.get(rung) or formats.series(place), summary)
        for place, (rung, summary) in enumerate(zip(rungs, summaries, strict=True))
    ]


def gather_sweeps(inputs: Inputs, names: Names) -> list[Row]:
    """The sweep of each variant on each task, with its `settings` in the recipe, and `again`, the
    mean validation score of the winner with new seeds; `names` are those on the page."""
    sweeps: list[Row] = []
    for artifact in findings.select_stage(inputs, "evaluate").values():
        evaluation = EvaluateSummary.of(artifact)
        for variant in evaluation.variants:
            title = input_name("sweep", variant)
            if evaluation.budget is None and title in artifact.record["inputs"]:
                sweep = findings.input_artifact(artifact, title, inputs)
                again = fmean(evaluation.scores(variant, "validation"))
                row = {"task": evaluation.task, "variant": names[variant], "again": again}
                settings = sweep.record["config"]["sweep"]
                sweeps.append(row | {"summary": SweepSummary.of(sweep), "settings": settings})
    return sweeps


def list_untuned(searches: Sequence[Tuned], claims: ClaimsSummary) -> dict[str, list[str]]:
    """The rungs that were not tuned, of each claim that compares them with tuned ones."""
    tuned, untuned = {each.rung for each in searches}, dict[str, list[str]]()
    for claim in claims.claims:
        tested = [row for row in claim.comparisons if row.value is not None]
        # A term is a rung, or one at a layer or a label budget.
        rungs = {re.split("[/@]", term)[0] for row in tested for term in row.terms}
        if rungs & tuned and rungs - tuned:
            untuned[claim.id] = sorted(rungs - tuned)
    return untuned


def write_tuning(
    searches: Sequence[Tuned], sweeps: Sequence[Row] = (), *, names: Iterable[str]
) -> Section | None:
    """The section; None if nothing was tuned. `names` are all rungs or variants."""
    if not searches and not sweeps:
        return None
    tuned = {each.rung for each in searches}
    gaps = [each["again"] - each["summary"].best_score for each in sweeps]
    fields = {
        "searches": searches,
        "describe_values": describe_values,
        "sweeps": sweeps,
        "untuned": list_first([name for name in names if name not in tuned], _MOST_NAMED),
        "lost": fmean(gaps) if gaps else None,
    }
    plots = {"expected_best": _draw_expected(searches) if searches else None}
    return Section("tuning", "Tuning", fields, plots)


def _draw_expected(searches: Sequence[Tuned]) -> bytes:
    """The expected best by the number of trials, one panel for each measure."""
    panels = []
    for label in dict.fromkeys(each.summary.label for each in searches):
        lines = {
            each.rung: [
                plot_value(trials, formats.scale(each.summary.metric) * score)
                for trials, score in enumerate(each.summary.expected, start=1)
            ]
            for each in searches
            if each.summary.label == label
        }
        panels.append(Panel("the best of so many trials", "trials", label, lines))
    return style.draw_panels(panels, {each.rung: each.look for each in searches}, columns=2)
