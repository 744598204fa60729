"""Predictions on the test split, a row per variant, seed and example, and the analysis of errors.

    variant, seed    which model; a rival has no seed
    where            the example's file and line
    text, second / words / id, question, context / context, question, options     the input
    gold             label, labels, number, tags, list of answers, index of the option, or text
    prediction       likewise; for an answer its text ("" for none)
    probabilities    over labels (in the task's order) or options; for tags a list per word

Answers have `start` and `no_answer_score` instead of probabilities; numbers and generated texts
have neither.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rungwise.core.stages.artifact import Artifact
from rungwise.core.storage.folder import Folder
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import Example, TaskSummary, read_examples
from rungwise.tasks.kinds.kind import TaskKind

PredictionRow = dict[str, Any]
Predicted = Sequence[Mapping[str, Any]]  # as the kind of the task gives them

FILE = "predictions.parquet"
_DETAILS = ("probabilities", "start", "no_answer_score")
_EXAMPLES = 12  # of errors, the most confident first


def prediction_rows(
    variant: str, seed: int | None, examples: Sequence[Example], predictions: Predicted, answer: str
) -> list[PredictionRow]:
    """The rows of one model; `answer` is the key of the task's kind in its `predictions`."""
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


@dataclass(frozen=True)
class ClassScores:
    """Scores of a label or span type, with its counts."""

    name: str
    precision: float
    recall: float
    f1: float
    gold: int
    predicted: int


@dataclass(frozen=True)
class ErrorExample:
    where: str
    text: str
    gold: str
    prediction: str
    confidence: float | None


@dataclass(frozen=True)
class ErrorAnalysis:
    """The errors of one variant on a task, over all its seeds; parts that its kind lacks are empty.
    `confusions` counts pairs of two labels (gold, predicted), the most frequent first, per word for
    tagging."""

    variant: str
    classes: tuple[ClassScores, ...]
    confusions: tuple[tuple[str, str, int], ...]
    wrong: tuple[ErrorExample, ...]


def analyse_errors(rows: Sequence[PredictionRow], variant: str, kind: TaskKind) -> ErrorAnalysis:
    """Analyse the errors of one variant; `rows` are those of all variants."""
    rows = [row for row in rows if row["variant"] == variant]
    pairs = Counter((each.gold, each.prediction) for row in rows for each in kind.decisions(row))
    first = min(row["seed"] for row in rows)
    wrong = [
        ErrorExample(
            row["where"],
            input_text(row),
            kind.answer_text(row, row["gold"]),
            kind.answer_text(row, row["prediction"]),
            min((each.confidence for each in kind.decisions(row)), default=None),
        )
        for row in rows
        if row["seed"] == first and kind.example_score(row) < 1
    ]
    wrong.sort(key=lambda each: -(each.confidence or 0))
    classes = _class_scores(rows, pairs, kind) if kind.labelled else ()
    takes_one = kind.labelled and (kind.one_label or kind.target_per_place)
    common = pairs.most_common() if takes_one else ()  # one label is taken for another
    confusions = tuple((*pair, count) for pair, count in common if pair[0] != pair[1])
    return ErrorAnalysis(variant, classes, confusions, tuple(wrong[:_EXAMPLES]))


def _class_scores(
    rows: Sequence[PredictionRow], pairs: Counter[tuple[str, str]], kind: TaskKind
) -> tuple[ClassScores, ...]:
    right, gold, predicted = Counter[str](), Counter[str](), Counter[str]()
    if kind.class_items(()) is not None:
        for row in rows:
            truth, answer = (kind.class_items(row[key]) or set() for key in ("gold", "prediction"))
            for counts, items in ((right, truth & answer), (gold, truth), (predicted, answer)):
                counts.update(name for name, *_ in items)
        names = sorted(gold | predicted)
    else:
        for (truth, answer), count in pairs.items():
            gold[truth] += count
            predicted[answer] += count
            right[truth] += count * (truth == answer)
        names = [name for name in kind.info.labels if gold[name] or predicted[name]]
    return tuple(
        ClassScores(
            name,
            precision=right[name] / predicted[name] if predicted[name] else 0.0,
            recall=right[name] / gold[name] if gold[name] else 0.0,
            f1=2 * right[name] / (gold[name] + predicted[name]),
            gold=gold[name],
            predicted=predicted[name],
        )
        for name in names
    )


def input_text(row: PredictionRow) -> str:
    words = [" ".join(row["words"])] if "words" in row else []
    names = ("context", "question", "text", "second")
    return "\n".join([*words, *(row[name] for name in names if row.get(name))])
