"""Rows of the page's tables of variants and tasks: verdicts, scores, settings, costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeVar

from rungwise.evaluation.summary import PretrainingCost
from rungwise.evaluation.table import Score, Step
from rungwise.report import findings
from rungwise.report.compared import Compared, TaskResult
from rungwise.report.findings import Verdict

_RowT = TypeVar("_RowT", Score, Step)


@dataclass(frozen=True)
class Board:
    """The result at a glance: a verdict per task, and one sentence for all. Empty if there is only
    one variant."""

    verdicts: dict[str, Verdict]
    sentence: str
    name: str  # above, below or unresolved; "" if tasks differ


def board(compared: Compared) -> Board:
    """Judge the first variant against the second on every task."""
    if len(compared.variants) == 1:
        return Board({}, "", "")
    verdicts = {
        task.name: findings.verdict(task.against_first[0], task.metric) for task in compared.tasks
    }
    of_tasks = list(verdicts.values())
    if len(of_tasks) == 1:
        return Board(verdicts, of_tasks[0].sentence, of_tasks[0].name)
    names = {each.name for each in of_tasks}
    return Board(
        verdicts,
        findings.summed_up(of_tasks, *compared.variants[:2]),
        names.pop() if len(names) == 1 else "",
    )


def settings(task: TaskResult) -> list[dict[str, Any]]:
    """Every fine-tuning key with each variant's value, and whether the values differ."""
    variants = task.evaluated.variants.values()
    blocks = [variant.finetune.model_dump(mode="json") for variant in variants]
    rows = []
    for key in dict.fromkeys(key for block in blocks for key in block):
        values = [block.get(key) for block in blocks]
        rows.append({"key": key, "values": values, "differ": any(v != values[0] for v in values)})
    return rows


def selections(task: TaskResult) -> list[dict[str, Any]]:
    """For each swept variant, the validation score that selected its settings, and its validation
    and test scores with new seeds."""
    rows = []
    for name, variant in task.evaluated.variants.items():
        selection = variant.selection
        if selection is None:
            continue
        again = fmean(task.evaluated.scores_of(name, "validation"))
        rows.append(
            {
                "task": task.name,
                "metric": task.metric,
                "variant": name,
                **selection.model_dump(),
                "validation": again,
                "test": variant.estimates[task.metric].mean,
                "lost": again - selection.score,
            }
        )
    return rows


def kept(task: TaskResult) -> dict[str, list[int]]:
    """The epoch whose weights each seed kept, for variants that keep their best epoch."""
    return {
        name: [row.epoch for row in task.evaluated.rows if row.variant == name]
        for name, variant in task.evaluated.variants.items()
        if variant.finetune.best_epoch
    }


def cuts(task: TaskResult) -> list[dict[str, Any]]:
    """Text beyond `sequence_length` by variant and split, where examples are cut or windowed."""
    return [
        {"variant": name, "split": split, "share": share, "of": variant.finetune.sequence_length}
        for name, variant in task.evaluated.variants.items()
        for split, share in variant.cut.items()
        if share.cut_examples or share.windowed_examples
    ]


def chosen(compared: Compared) -> list[dict[str, Any]]:
    """`selections` of all tasks."""
    return [row for task in compared.tasks for row in selections(task)]


def costs(compared: Compared) -> list[dict[str, Any]]:
    """The pretraining cost of each variant, and its ratio to the first one's.

    One row for a variant with the same weights on every task, else one per task.
    """
    rows = []
    for name in compared.variants:
        tried = [task for task in compared.tasks if name in task.evaluated.variants]
        by_task = {task.name: _cost(task, name) for task in tried}
        first = next(iter(by_task.values()))
        if all(cost == first for cost in by_task.values()):
            by_task = {"": first}
        rows += [
            {"variant": name, "task": task, "cost": cost, "share": _share(cost, compared, task)}
            for task, cost in by_task.items()
        ]
    return rows


def _cost(task: TaskResult, variant: str) -> PretrainingCost | None:
    tried = task.evaluated.variants.get(variant)
    return tried and tried.pretraining


def _share(cost: PretrainingCost | None, compared: Compared, task: str) -> float | None:
    of_first = next(each for each in compared.tasks if task in ("", each.name))
    first = _cost(of_first, compared.variants[0])
    return cost.flops / first.flops if cost and first and cost.flops and first.flops else None


def by_variant(rows: Iterable[_RowT]) -> dict[str, dict[str, _RowT]]:
    """Scores or differences of the table: {variant: {task: row}}."""
    cells: dict[str, dict[str, _RowT]] = {}
    for row in rows:
        cells.setdefault(row.variant, {})[row.task] = row
    return cells
