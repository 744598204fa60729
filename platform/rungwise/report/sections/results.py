"""Rows of the page's tables of variants and tasks: verdicts, scores, settings, costs."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeVar

from rungwise.evaluation.comparison.summary import PretrainingCost
from rungwise.evaluation.comparison.table import RowDifference, TaskScore
from rungwise.report.sections.findings import Verdict, describe_difference, sum_up, verdict
from rungwise.report.sections.variants import Comparison, TaskResult

_CellT = TypeVar("_CellT", TaskScore, RowDifference)


@dataclass(frozen=True)
class Board:
    """The result at a glance: a verdict per task with two variants or more, and one sentence for
    all. Empty if no task has two."""

    verdicts: dict[str, Verdict]
    sentence: str
    name: str  # above, below or unresolved; "" if tasks differ
    pair: tuple[str, str] | None  # the two variants; None if tasks have other ones


def board(comparison: Comparison) -> Board:
    """Judge the first variant of every task against its second."""
    verdicts: dict[str, Verdict] = {}
    by_pair: dict[tuple[str, str], list[Verdict]] = {}
    for task in comparison.paired_tasks:
        pair = task.against_first[0]
        verdicts[task.name] = verdict(pair)
        by_pair.setdefault((pair.first, pair.second), []).append(verdicts[task.name])
    if len(comparison.tasks) == 1:
        sentence = "".join(map(describe_difference, comparison.paired_tasks))
    else:
        sentence = " ".join(sum_up(each, *pair) for pair, each in by_pair.items())
    names = {each.name for each in verdicts.values()}
    return Board(
        verdicts,
        sentence,
        names.pop() if len(names) == 1 else "",
        next(iter(by_pair)) if len(by_pair) == 1 else None,
    )


def settings(task: TaskResult) -> list[dict[str, Any]]:
    """Every fine-tuning key with each variant's value, and whether the values differ."""
    variants = task.evaluation.variants.values()
    blocks = [variant.finetune.model_dump(mode="json") for variant in variants]
    rows = []
    for key in dict.fromkeys(key for block in blocks for key in block):
        values = [block.get(key) for block in blocks]
        rows.append({"key": key, "values": values, "differ": any(v != values[0] for v in values)})
    return rows


def selections(*tasks: TaskResult) -> list[dict[str, Any]]:
    """For each swept variant, the validation score that selected its settings, and its validation
    and test scores with new seeds."""
    rows = []
    for task in tasks:
        for name, variant in task.evaluation.variants.items():
            selection = variant.selection
            if selection is None:
                continue
            validation = fmean(task.evaluation.scores(name, "validation"))
            rows.append(
                {
                    "variant": name,
                    **selection.model_dump(),
                    "validation": validation,
                    "test": variant.estimates[task.metric].mean,
                    "lost": validation - selection.score,
                }
            )
    return rows


def best_epochs(task: TaskResult) -> dict[str, list[int]]:
    """The epoch whose weights were scored, by seed, for variants that keep their best epoch."""
    return {
        name: [seed.epoch for seed in task.evaluation.rows if seed.variant == name]
        for name, variant in task.evaluation.variants.items()
        if variant.finetune.best_epoch
    }


def cuts(task: TaskResult) -> list[dict[str, Any]]:
    """Text beyond `sequence_length` by variant and split, where examples are cut or windowed."""
    return [
        {"variant": name, "split": split, "share": share, "of": variant.finetune.sequence_length}
        for name, variant in task.evaluation.variants.items()
        for split, share in variant.cut.items()
        if share.cut_examples or share.windowed_examples
    ]


def costs(comparison: Comparison) -> list[dict[str, Any]]:
    """The pretraining cost of each variant, and its ratio to the first one's.

    One row for a variant that costs the same on every task, next to a first one that does too; else
    one per task.
    """
    rows = []
    first_costs = _task_costs(comparison, comparison.variants[0])
    usual = next(iter(first_costs.values()))
    if any(cost != usual for cost in first_costs.values()):
        usual = None  # of a task without the first variant nothing is known then
    for name in comparison.variants:
        by_task = {
            task: (cost, first_costs.get(task, usual))
            for task, cost in _task_costs(comparison, name).items()
        }
        both = next(iter(by_task.values()))
        if all(each == both for each in by_task.values()):
            by_task = {"": both}
        for task, (cost, first) in by_task.items():
            share = None
            if cost and first and cost.flops and first.flops:
                share = cost.flops / first.flops
            rows.append({"variant": name, "task": task, "cost": cost, "share": share})
    return rows


def _task_costs(comparison: Comparison, variant: str) -> dict[str, PretrainingCost | None]:
    return {
        task.name: task.evaluation.variants[variant].pretraining
        for task in comparison.tasks
        if variant in task.evaluation.variants
    }


def group_by_variant(cells: Iterable[_CellT]) -> dict[str, dict[str, _CellT]]:
    """Scores or differences of the table: {variant: {task: cell}}."""
    groups: dict[str, dict[str, _CellT]] = {}
    for cell in cells:
        groups.setdefault(cell.variant, {})[cell.task] = cell
    return groups
