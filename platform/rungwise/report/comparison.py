"""Rows of the page's tables of variants and tasks: verdicts, scores, settings, costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeVar

from rungwise.evaluation.comparison.summary import PretrainingCost
from rungwise.evaluation.comparison.table import Score, Step
from rungwise.report import findings
from rungwise.report.compared import Compared, TaskResult
from rungwise.report.findings import Verdict

_RowT = TypeVar("_RowT", Score, Step)


@dataclass(frozen=True)
class Board:
    """The result at a glance: a verdict per task with two variants or more, and one sentence for
    all. Empty if no task has two."""

    verdicts: dict[str, Verdict]
    sentence: str
    name: str  # above, below or unresolved; "" if tasks differ
    pair: tuple[str, str] | None  # the two variants; None if tasks have other ones


def board(compared: Compared) -> Board:
    """Judge the first variant of every task against its second."""
    verdicts: dict[str, Verdict] = {}
    of_pairs: dict[tuple[str, str], list[Verdict]] = {}
    for task in compared.judged:
        row = task.against_first[0]
        verdicts[task.name] = findings.verdict(row, task.metric)
        of_pairs.setdefault((row.first, row.second), []).append(verdicts[task.name])
    if len(compared.tasks) == 1:
        sentence = "".join(each.sentence for each in verdicts.values())
    else:
        sentence = " ".join(findings.summed_up(each, *pair) for pair, each in of_pairs.items())
    names = {each.name for each in verdicts.values()}
    return Board(
        verdicts,
        sentence,
        names.pop() if len(names) == 1 else "",
        next(iter(of_pairs)) if len(of_pairs) == 1 else None,
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

    One row for a variant that costs the same on every task, next to a first one that does too; else
    one per task.
    """
    rows = []
    of_first = _costs(compared, compared.variants[0])
    same = next(iter(of_first.values()))
    if any(cost != same for cost in of_first.values()):
        same = None  # of a task without the first variant nothing is known then
    for name in compared.variants:
        of_tasks = _costs(compared, name)
        by_task = {task: (cost, of_first.get(task, same)) for task, cost in of_tasks.items()}
        both = next(iter(by_task.values()))
        if all(each == both for each in by_task.values()):
            by_task = {"": both}
        rows += [
            {"variant": name, "task": task, "cost": cost, "share": _share(cost, first)}
            for task, (cost, first) in by_task.items()
        ]
    return rows


def _costs(compared: Compared, variant: str) -> dict[str, PretrainingCost | None]:
    return {
        task.name: task.evaluated.variants[variant].pretraining
        for task in compared.tasks
        if variant in task.evaluated.variants
    }


def _share(cost: PretrainingCost | None, first: PretrainingCost | None) -> float | None:
    return cost.flops / first.flops if cost and first and cost.flops and first.flops else None


def by_variant(rows: Iterable[_RowT]) -> dict[str, dict[str, _RowT]]:
    """Scores or differences of the table: {variant: {task: row}}."""
    cells: dict[str, dict[str, _RowT]] = {}
    for row in rows:
        cells.setdefault(row.variant, {})[row.task] = row
    return cells
