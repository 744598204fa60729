"""What the page's tables say of systems on tasks: verdicts, scores, settings, costs, selection."""

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
    one system and so nothing to decide."""

    verdicts: dict[str, Verdict]
    sentence: str
    name: str  # of the sentence: above, below, unresolved, or "" where tasks differ


def board(compared: Compared) -> Board:
    """The first system against the second on every task."""
    if len(compared.systems) == 1:
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
        findings.summed_up(found, *compared.systems[:2]),
        names.pop() if len(names) == 1 else "",
    )


def settings(task: TaskResult) -> list[dict[str, Any]]:
    """Every key of fine-tuning with the value of each system, and whether they differ."""
    systems = task.evaluated["systems"]
    blocks = [system["finetune"] for system in systems.values()]
    rows = []
    for key in dict.fromkeys(key for block in blocks for key in block):
        values = [block.get(key) for block in blocks]
        rows.append({"key": key, "values": values, "differ": any(v != values[0] for v in values)})
    return rows


def selections(task: TaskResult) -> list[dict[str, Any]]:
    """Of every system that a sweep chose the settings of: the score that selected, and on new seeds
    the same split and the test split."""
    rows = []
    for name, system in task.evaluated["systems"].items():
        chosen = system["selection"]
        if chosen is None:
            continue
        again = fmean(scores_of(task.evaluated, name, task.metric, "validation"))
        rows.append(
            {
                "task": task.name,
                "metric": task.metric,
                "system": name,
                **chosen,
                "validation": again,
                "test": system["estimates"][task.metric]["mean"],
                "lost": again - chosen["score"],
            }
        )
    return rows


def costs(compared: Compared) -> list[dict[str, Any]]:
    """What the weights cost that each system began with, and its share of what the first one's did.

    One row for a system whose weights are the same on every task, else one a task.
    """
    rows = []
    for name in compared.systems:
        by_task = {task.name: _cost(task, name) for task in compared.tasks}
        different = {json.dumps(cost, sort_keys=True): cost for cost in by_task.values()}
        if len(different) == 1:
            by_task = {"": next(iter(different.values()))}
        rows += [
            {"system": name, "task": task, "cost": cost, "share": _share(cost, compared, task)}
            for task, cost in by_task.items()
        ]
    return rows


def _cost(task: TaskResult, system: str) -> Summary | None:
    return task.evaluated["systems"][system]["pretraining"]


def _share(cost: Summary | None, compared: Compared, task: str) -> float | None:
    of_first = next(each for each in compared.tasks if task in ("", each.name))
    first = _cost(of_first, compared.systems[0])
    return cost["flops"] / first["flops"] if cost and first else None


def steps(table: Summary) -> dict[str, dict[str, Mapping[str, Any]]]:
    """The differences of the table, {system: {task: difference from the row above}}."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in table["differences"]:
        found.setdefault(row["system"], {})[row["task"]] = row
    return found


def cells(table: Summary) -> dict[str, dict[str, Mapping[str, Any]]]:
    """The scores of the table, {system: {task: score}}."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in table["scores"]:
        found.setdefault(row["system"], {})[row["task"]] = row
    return found
