"""Predictions of the test split as `predictions.parquet`, a row a variant, seed and example.

    variant, seed    which model
    where            the example's file and line
    text, second / words / id, question, context / context, question, options     its input
    gold             the label, number, tags, list of answers, or index of the option
    prediction       the same, of an answer its text ("" for none)
    probabilities    of all labels in the order of the task's, of all options; of tags a list a word

Answers to questions have `start` and `no_answer_score` in place of probabilities, numbers neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rungwise.core.storage import Folder
from rungwise.tasks.examples import Example

FILE = "predictions.parquet"
_TARGETS = ("target", "tags", "answers")
# The key of what is predicted, in a prediction of each kind of task.
_PREDICTED = ("label", "score", "tags", "text", "option")


def rows(
    variant: str, seed: int, examples: Sequence[Example], predictions: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The rows of one model; `predictions` are those of kinds.py, with probabilities."""
    return [
        {"variant": variant, "seed": seed, **_row(asdict(example), prediction)}
        for example, prediction in zip(examples, predictions, strict=True)
    ]


def write(written: Sequence[dict[str, Any]], output: Folder) -> None:
    """Keep the rows of all models of a task."""
    with output.staged(FILE) as path:
        pq.write_table(pa.Table.from_pylist(list(written)), path)


def read(folder: Folder) -> list[dict[str, Any]]:
    """The rows that `write` kept, in their order."""
    return pq.read_table(folder.local(FILE)).to_pylist()


def _row(example: dict[str, Any], prediction: Mapping[str, Any]) -> dict[str, Any]:
    gold = next(example.pop(name) for name in _TARGETS if name in example)
    if isinstance(gold, tuple):
        gold = [each["text"] if isinstance(each, dict) else each for each in gold]
    said = next(prediction[name] for name in _PREDICTED if name in prediction)
    more = ("probabilities", "start", "no_answer_score")
    kept = {name: prediction[name] for name in more if name in prediction}
    return {**example, "gold": gold, "prediction": said, **kept}
