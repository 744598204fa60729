"""Table stage: all variants on all tasks in one table, what separates them, and the published ones.

    variant      tasks ...          mean [95 % interval] over seeds, shares
    difference  from the row above it, as in the BERT paper's table 5 (SPEC T7), seed by seed
    published   the same difference in the published table, and whether the signs agree

A sign agrees or disagrees only where the interval of ours leaves out 0; else it is unresolved.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Mapping
from typing import Any

from rungwise.core.artifact import Artifact
from rungwise.core.config import Config
from rungwise.core.context import Context
from rungwise.core.errors import ConfigError
from rungwise.core.storage import Folder
from rungwise.evaluation.published import TABLES, PublishedConfig
from rungwise.evaluation.statistics import Estimate, paired_difference, sign_agreement


class TableConfig(Config):
    """`columns` says of each task which column of the published table it stands beside."""

    published: PublishedConfig | None
    columns: dict[str, str | None]


def run(
    config: TableConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> dict[str, Any]:
    """Write `table.csv`, `differences.csv`, `budgets.csv` and `table.md`.

    Inputs: evaluate/TASK and evaluate/TASK/BUDGET, and pretrain/SYSTEM.
    """
    _check(config)
    evaluated = [found.summary for found in inputs.values() if found.stage == "evaluate"]
    whole = {found["task"]: found for found in evaluated if found["budget"] is None}
    scores = [_scores(found) for found in whole.values()]
    steps = [step for found in whole.values() for step in _steps(config, found)]
    budgets = [
        {"budget": found["budget"] or found["examples"]["train"], **row}
        for found in evaluated
        for row in _scores(found)
    ]
    budgets.sort(key=lambda row: (row["task"], row["variant"], row["budget"]))
    flat = [row for rows in scores for row in rows]
    for name, rows in (("table", flat), ("differences", steps), ("budgets", budgets)):
        output.write_bytes(f"{name}.csv", _csv(rows))
    output.write_bytes("table.md", markdown(flat, steps, config).encode("utf-8"))
    resolved = [step for step in steps if step["sign"] not in (None, "unresolved")]
    signs = [step for step in steps if step["sign"] is not None]
    agree = sum(step["sign"] == "agrees" for step in signs)
    compared = (
        f"; of {len(signs)} published differences {len(resolved)} resolved here, {agree} agree"
        if signs
        else ""
    )
    variants = list(dict.fromkeys(row["variant"] for row in flat))
    return {
        "scores": flat,
        "differences": steps,
        "budgets": budgets,
        "pretraining": {
            name.partition("/")[2]: _cost(found)
            for name, found in inputs.items()
            if found.stage == "pretrain"
        },
        "published": None
        if config.published is None
        else {
            "table": config.published.table,
            "source": TABLES[config.published.table].source,
        },
        "show": ["table.csv", "differences.csv", "budgets.csv", "table.md"],
        "headline": f"{len(variants)} variants, {len(whole)} tasks{compared}",
    }


def _check(config: TableConfig) -> None:
    if config.published is None:
        return
    known = TABLES[config.published.table].columns
    for task, column in config.columns.items():
        if column is not None and column not in known:
            raise ConfigError(
                f"tasks.{task}.published is {column!r}, which {config.published.table} lacks; it "
                f"has: {', '.join(known)}"
            )


def _scores(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    metric = found["metric"]
    trivial = {
        name: values[metric] for name, values in found["baselines"].items() if metric in values
    }
    best = max(trivial, key=lambda name: trivial[name], default=None)
    return [
        {
            "task": found["task"],
            "variant": name,
            "metric": metric,
            **variant["estimates"][metric],
            "baseline": best,
            "baseline_score": None if best is None else trivial[best],
        }
        for name, variant in found["variants"].items()
    ]


def _steps(config: TableConfig, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each variant minus the one above it."""
    metric = found["metric"]
    scores = {
        name: [row["test"][metric] for row in found["rows"] if row["variant"] == name]
        for name in found["variants"]
    }
    drawn = {(each["first"], each["second"]): each for each in found["differences"]}
    steps = []
    for above, name in itertools.pairwise(found["variants"]):
        ours = paired_difference(scores[name], scores[above])
        published = _published(config, found["task"], above, name)
        both = drawn[above, name]["bootstrap"]  # above minus name: turned around here
        steps.append(
            {
                "task": found["task"],
                "variant": name,
                "minus": above,
                "mean": ours.mean,
                "low": ours.low,
                "high": ours.high,
                "count": ours.count,
                "bootstrap_low": -both["high"],
                "bootstrap_high": -both["low"],
                "p": both["p"],
                "published_points": published,
                "sign": None if published is None else _sign(published, ours),
            }
        )
    return steps


def _sign(published: float, ours: Estimate) -> str | None:
    return sign_agreement(published, ours) if published else None


def _published(config: TableConfig, task: str, above: str, name: str) -> float | None:
    """The published difference in points, None where a value is missing."""
    column = config.columns.get(task)
    if config.published is None or column is None:
        return None
    rows, known = config.published.rows, TABLES[config.published.table]
    if above not in rows or name not in rows:
        return None
    old, new = known.value(rows[above], column), known.value(rows[name], column)
    return None if old is None or new is None else round(new - old, 1)


def _cost(pretrain: Artifact) -> dict[str, float]:
    summary = pretrain.summary
    return {
        "parameters": summary["parameters"],
        "steps": summary["steps"],
        "tokens": summary["tokens"],
        "flops": summary["flops_per_token"] * summary["tokens"],
        "validation_loss": summary["final_validation_loss"],
    }


def markdown(scores: list[dict[str, Any]], steps: list[dict[str, Any]], config: TableConfig) -> str:
    """The table as people write it: variants down, tasks across, and under it the differences."""
    tasks = list(dict.fromkeys(row["task"] for row in scores))
    variants = list(dict.fromkeys(row["variant"] for row in scores))
    cells = {(row["variant"], row["task"]): row for row in scores}
    metric = {row["task"]: row["metric"] for row in scores}
    lines = [
        "Ours: mean [95 % interval] over seeds, in percent.",
        "",
        _line("variant", *(f"{task} ({metric[task].replace('_', ' ')})" for task in tasks)),
        _line(*("---" for _ in range(len(tasks) + 1))),
    ]
    for variant in variants:
        lines.append(_line(variant, *(_interval(cells[variant, task]) for task in tasks)))
    first = {task: cells[variants[0], task] for task in tasks}
    lines.append(
        _line(
            "best trivial baseline",
            *(
                ""
                if row["baseline"] is None
                else f"{100 * row['baseline_score']:.1f} ({row['baseline']})"
                for row in first.values()
            ),
        )
    )
    if not steps:
        return "\n".join(lines) + "\n"
    shown = {(step["variant"], step["task"]): step for step in steps}
    lines += [
        "",
        "Differences from the row above, in points, seed by seed"
        + ("; published: seed reference." if config.published else "."),
        "",
        _line("variant", *tasks),
        _line(*("---" for _ in range(len(tasks) + 1))),
    ]
    for variant in variants[1:]:
        lines.append(_line(variant, *(_difference(shown[variant, task]) for task in tasks)))
    if config.published:
        lines += ["", f"Published: {TABLES[config.published.table].source}."]
    return "\n".join(lines) + "\n"


def _interval(row: Mapping[str, Any]) -> str:
    return f"{100 * row['mean']:.1f} [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"


def _difference(step: Mapping[str, Any]) -> str:
    ours = f"{100 * step['mean']:+.1f} [{100 * step['low']:+.1f}, {100 * step['high']:+.1f}]"
    if step["published_points"] is None:
        return ours
    sign = f", {step['sign']}" if step["sign"] else ""
    return f"{ours} (published {step['published_points']:+.1f}{sign})"


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue().encode("utf-8")
