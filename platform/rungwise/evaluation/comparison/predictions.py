"""Predictions on the test split in `predictions.parquet`: one row per variant, seed and example.

    variant, seed    which model
    where            the example's file and line
    text, second / words / id, question, context / context, question, options     the input
    gold             label, labels, number, tags, list of answers, index of the option, or text
    prediction       likewise; for an answer its text ("" for none)
    probabilities    over labels (in the task's order) or options; for tags a list per word

Answers have `start` and `no_answer_score` instead of probabilities; numbers and generated texts
have neither.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rungwise.core.stages.artifact import Artifact
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import Example, TaskSummary, read_examples

PredictionRow = dict[str, Any]

FILE = "predictions.parquet"
_DETAILS = ("probabilities", "start", "no_answer_score")


def prediction_rows(
    variant: str,
    seed: int,
    examples: Sequence[Example],
    predictions: Sequence[Mapping[str, Any]],
    answer: str,
) -> list[PredictionRow]:
    """The rows of one model. `predictions` are those of the task's kind, with probabilities added,
    and `answer` its key in them."""
    rows = []
    for example, prediction in zip(examples, predictions, strict=True):
        fields = asdict(example)
        gold = fields.pop(example.target_field)
        if isinstance(gold, tuple):
            gold = [each["text"] if isinstance(each, dict) else each for each in gold]
        details = {name: prediction[name] for name in _DETAILS if name in prediction}
        said = {"gold": gold, "prediction": prediction[answer]}
        rows.append({"variant": variant, "seed": seed, **fields, **said, **details})
    return rows


def write_predictions(rows: Sequence[PredictionRow], output: Folder) -> None:
    with output.staged(FILE) as path:
        pq.write_table(pa.Table.from_pylist(list(rows)), path)


def read_predictions(folder: Folder, columns: Sequence[str] | None = None) -> list[PredictionRow]:
    """All rows, with these columns only if given."""
    return pq.read_table(folder.local(FILE), columns=columns and list(columns)).to_pylist()


def select_predictions(evaluation: Artifact) -> list[PredictionRow]:
    """The rows of the kept model, one per test example."""
    best = EvaluateSummary.of(evaluation).chosen
    rows = read_predictions(evaluation.folder)
    return [row for row in rows if (row["variant"], row["seed"]) == (best.variant, best.seed)]


def run_sums(evaluation: Artifact, task: Artifact) -> dict[tuple[str, int], NDArray[np.float64]]:
    """The sums (N, k) of the judged metric per test example, of each run by variant and seed."""
    answers: dict[tuple[str, int], list[Any]] = {}
    for row in read_predictions(evaluation.folder, ("variant", "seed", "prediction")):
        answers.setdefault((row["variant"], row["seed"]), []).append(row["prediction"])
    kind, examples = task_kind(TaskSummary.of(task).info), read_examples(task, "test")
    return {
        run: kind.sums([{kind.answer: each} for each in own], examples)
        for run, own in answers.items()
    }


def sum_metric(evaluation: Artifact, task: Artifact) -> NDArray[np.float64]:
    """The sums (1, N, k) of the kept model's metric per test example, for `paired_bootstrap`."""
    best = EvaluateSummary.of(evaluation).chosen
    return run_sums(evaluation, task)[best.variant, best.seed][None]
