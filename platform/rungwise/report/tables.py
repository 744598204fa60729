"""The numbers behind the page as CSV files, in full precision, one row a thing."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from rungwise.core.artifact import Artifact
from rungwise.evaluation.fill_in import Filled
from rungwise.evaluation.generation import Continued
from rungwise.report.compared import Compared, TaskResult
from rungwise.sweep.record import table

Row = dict[str, Any]


def csv_bytes(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """A CSV file; its columns are all keys, in the order in which they first appear."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode("utf-8")


def stages(inputs: Mapping[str, Artifact]) -> list[Row]:
    """Every stage: what it made, how long it took, where it lies, who made it."""
    return [
        {
            "stage": name,
            "seconds": found.record["seconds"],
            "made": made(found),
            "fingerprint": found.fingerprint,
            "folder": found.folder.uri,
            "mlflow_run_id": found.record["mlflow_run_id"],
            "commit": found.record["made_by"]["commit"],
            "finished": found.record["finished"],
        }
        for name, found in inputs.items()
    ]


def seconds(inputs: Mapping[str, Artifact], most: int) -> dict[str, float]:
    """Seconds of every stage by title; where there are more than `most`, of every kind of stage
    with how many there are."""
    if len(inputs) <= most:
        return {title: found.record["seconds"] for title, found in inputs.items()}
    kinds: dict[str, list[float]] = {}
    for found in inputs.values():
        kinds.setdefault(found.stage, []).append(found.record["seconds"])
    return {
        kind if len(each) == 1 else f"{kind} ({len(each)})": sum(each)
        for kind, each in kinds.items()
    }


def made(artifact: Artifact) -> str:
    """What a stage says of itself in one line."""
    return artifact.summary["headline"]


def trials(sweeps: Mapping[str, Artifact]) -> list[Row]:
    """Every trial of every sweep, by its title, with its settings; failed ones have no score."""
    return [
        {
            "title": title,
            **row,
            "stopped_early": trial["stopped_early"],
            "winner": trial["name"] == sweep.summary["best"]["name"],
        }
        for title, sweep in sweeps.items()
        for trial, row in zip(sweep.summary["trials"], table(sweep.summary["trials"]), strict=True)
    ]


def seeds(compared: Compared) -> list[Row]:
    """Scores of every task, budget, variant and seed on validation and test."""
    return [
        {
            **_where(task, found),
            "variant": row["variant"],
            "seed": row["seed"],
            **{
                f"{split}_{metric}": value
                for split in ("validation", "test")
                for metric, value in row[split].items()
            },
        }
        for task in compared.tasks
        for found in task.by_budget
        for row in found["rows"]
    ]


def differences(compared: Compared) -> list[Row]:
    """Every pair of variants at every task and budget, with both intervals."""
    return [
        {
            **_where(task, found),
            "metric": found["metric"],
            "first": row["first"],
            "second": row["second"],
            **row["seeds"],
            **{f"bootstrap_{name}": value for name, value in row["bootstrap"].items()},
            "relative_error_reduction": row["error_reduction"],
        }
        for task in compared.tasks
        for found in task.by_budget
        for row in found["differences"]
    ]


def budgets(compared: Compared) -> list[Row]:
    """The judged score of every variant at every number of labelled examples."""
    return [
        {
            **_where(task, found),
            "variant": name,
            "metric": task.metric,
            **variant["estimates"][task.metric],
        }
        for task in compared.tasks
        for found in task.by_budget
        for name, variant in found["variants"].items()
    ]


def mixes(compared: Compared) -> list[Row]:
    """The weight of every layer, 0 the embeddings, of every variant and seed that learnt to mix."""
    return [
        {**_where(task, found), "variant": row["variant"], "seed": row["seed"], "layer": layer}
        | {"weight": weight}
        for task in compared.tasks
        for found in task.by_budget
        for row in found["rows"]
        for layer, weight in enumerate(row["mix"] or ())
    ]


def _where(task: TaskResult, found: Mapping[str, Any]) -> Row:
    return {
        "task": task.name,
        "train_examples": found["examples"]["train"],
        "all_examples": found["budget"] is None,
    }


def fill_in(filled: Sequence[Filled]) -> list[Row]:
    """Every guess for every blank."""
    return [
        {
            "instance": row.blank.instance,
            "position": row.blank.position,
            "before": row.blank.before,
            "after": row.blank.after,
            "answer": row.blank.answer,
            "answer_rank": row.rank,
            "answer_probability": row.probability,
            "guess_rank": place,
            "guess": guess.text,
            "guess_probability": guess.probability,
            "right": guess.right,
        }
        for row in filled
        for place, guess in enumerate(row.guesses, start=1)
    ]


def continuations(continued: Sequence[Continued]) -> list[Row]:
    """Every prompt with what follows it in the text and what the model adds."""
    return [
        {
            "instance": row.prompt.instance,
            "prompt": row.prompt.text,
            "text": row.prompt.truth,
            "greedy": row.greedy,
            "sampled": row.sampled,
        }
        for row in continued
    ]
