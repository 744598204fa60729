"""What the page's tables say of variants on tasks: verdicts, scores, settings, costs, selection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rungwise.report import findings
from rungwise.report.compared import Compared, Summary, TaskResult, scores_of
from rungwise.report.findings import Verdict


@dataclass(frozen=True)
class Board:
    """The result on one page: a line a task, and one sentence for all. Empty and "" where there is
    one variant and so nothing to decide."""

    verdicts: dict[str, Verdict]
    sentence: str
    name: str  # of the sentence: above, below, unresolved, or "" where tasks differ


def board(compared: Compared) -> Board:
    """The first variant against the second on every task."""
    if len(compared.variants) == 1:
        return Board({}, "", "")
    verdicts = {
        task.name: findings.verdict(task.against_first[0], task.metric) for task in compared.tasks
    }
    found = list(verdicts.values())
    if len(found) == 1:
        return Board(verdicts, found[0].sentence, found[0].name)
    names = {each.name for each in found}
    return Board(
        verdicts,
        findings.summed_up(found, *compared.variants[:2]),
        names.pop() if len(names) == 1 else "",
    )


def settings(task: TaskResult) -> list[dict[str, Any]]:
    """Every key of fine-tuning with the value of each variant, and whether they differ."""
    variants = task.evaluated["variants"]
    blocks = [variant["finetune"] for variant in variants.values()]
    rows = []
    for key in dict.fromkeys(key for block in blocks for key in block):
        values = [block.get(key) for block in blocks]
        rows.append({"key": key, "values": values, "differ": any(v != values[0] for v in values)})
    return rows


def selections(task: TaskResult) -> list[dict[str, Any]]:
    """Of every variant that a sweep chose the settings of: the score that selected, and on new
    seeds the same split and the test split."""
    rows = []
    for name, variant in task.evaluated["variants"].items():
        chosen = variant["selection"]
        if chosen is None:
            continue
        again = fmean(scores_of(task.evaluated, name, task.metric, "validation"))
        rows.append(
            {
                "task": task.name,
                "metric": task.metric,
                "variant": name,
                **chosen,
                "validation": again,
                "test": variant["estimates"][task.metric]["mean"],
                "lost": again - chosen["score"],
            }
        )
    return rows


def costs(compared: Compared) -> list[dict[str, Any]]:
    """What the weights cost that each variant began with, as a share of what the first one's did.

    One row for a variant whose weights are the same on every task, else one a task.
    """
    rows = []
    for name in compared.variants:
        by_task = {task.name: _cost(task, name) for task in compared.tasks}
        different = {json.dumps(cost, sort_keys=True): cost for cost in by_task.values()}
        if len(different) == 1:
            by_task = {"": next(iter(different.values()))}
        rows += [
            {"variant": name, "task": task, "cost": cost, "share": _share(cost, compared, task)}
            for task, cost in by_task.items()
        ]
    return rows


def _cost(task: TaskResult, variant: str) -> Summary | None:
    return task.evaluated["variants"][variant]["pretraining"]


def _share(cost: Summary | None, compared: Compared, task: str) -> float | None:
    of_first = next(each for each in compared.tasks if task in ("", each.name))
    first = _cost(of_first, compared.variants[0])
    return cost["flops"] / first["flops"] if cost and first else None


def steps(table: Summary) -> dict[str, dict[str, Mapping[str, Any]]]:
    """The differences of the table, {variant: {task: difference from the row above}}."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in table["differences"]:
        found.setdefault(row["variant"], {})[row["task"]] = row
    return found


def cells(table: Summary) -> dict[str, dict[str, Mapping[str, Any]]]:
    """The scores of the table, {variant: {task: score}}."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in table["scores"]:
        found.setdefault(row["variant"], {})[row["task"]] = row
    return found
