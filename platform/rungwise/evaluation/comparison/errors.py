"""Error analysis from prediction rows: by class, confidence and length.

The rows of all seeds of a variant are pooled. A reliability curve has ten bins of equal width; the
expected calibration error is the mean gap between confidence and accuracy, weighted by bin size
(Guo et al. 2017, arXiv:1706.04599).

Predictions on the test split in `predictions.parquet`: one row per variant, seed and example.

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
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import Example, TaskSummary, read_examples
from rungwise.tasks.kinds.items import WORD
from rungwise.tasks.kinds.kind import Decision, TaskKind

PredictionRow = dict[str, Any]

FILE = "predictions.parquet"
_DETAILS = ("probabilities", "start", "no_answer_score")


def prediction_rows(
    variant: str,
    seed: int | None,
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


_BINS, _LENGTHS, _EXAMPLES = 10, 4, 12


@dataclass(frozen=True)
class ClassScores:
    """Scores of a label or span type, with its counts in gold and in predictions."""

    name: str
    precision: float
    recall: float
    f1: float
    gold: int
    predicted: int


@dataclass(frozen=True)
class Bin:
    """A bin of the reliability curve: size, mean confidence, accuracy."""

    count: int
    confidence: float
    right: float


@dataclass(frozen=True)
class LengthRange:
    """Examples of similar length in words (a Han character is one): bounds, rows, mean score."""

    shortest: int
    longest: int
    count: int
    score: float


@dataclass(frozen=True)
class ErrorExample:
    """A misclassified example; `other` is the answer of another variant."""

    where: str
    text: str
    gold: str
    prediction: str
    confidence: float | None
    other: str | None = None


@dataclass(frozen=True)
class ErrorAnalysis:
    """The error analysis of one variant; parts that its task kind lacks are empty. `confusion`
    counts (gold, predicted) labels, per word for tagging."""

    variant: str
    classes: tuple[ClassScores, ...]
    confusion: tuple[tuple[str, str, int], ...]
    reliability: tuple[Bin, ...]
    calibration_error: float | None
    by_length: tuple[LengthRange, ...]
    score_of: str
    wrong: tuple[ErrorExample, ...]


def analyse_errors(rows: Sequence[PredictionRow], variant: str, kind: TaskKind) -> ErrorAnalysis:
    """Analyse the errors of one variant; `rows` holds the predictions of all variants."""
    rows = [row for row in rows if row["variant"] == variant]
    decisions = [each for row in rows for each in kind.decisions(row)]
    pairs = Counter((each.gold, each.prediction) for each in decisions)
    bins = _reliability(decisions)
    total = sum(each.count for each in bins)
    first = min(row["seed"] for row in rows)
    wrong = [
        _example(row, kind) for row in rows if row["seed"] == first and kind.example_score(row) < 1
    ]
    wrong.sort(key=lambda each: -(each.confidence or 0))
    return ErrorAnalysis(
        variant,
        _class_scores(rows, pairs, kind) if kind.labelled else (),
        tuple((*pair, count) for pair, count in pairs.most_common()) if kind.labelled else (),
        bins,
        sum(b.count * abs(b.confidence - b.right) for b in bins) / total if total else None,
        _by_length(rows, kind),
        kind.score_name,
        tuple(wrong[:_EXAMPLES]) if not kind.numeric else (),
    )


def compare_errors(
    rows: Sequence[PredictionRow], first: str, second: str, kind: TaskKind
) -> tuple[dict[str, int], tuple[ErrorExample, ...]]:
    """Count which of two variants is right; list examples of the first seed that only `first` gets
    wrong. Not for numbers."""
    others = {(row["seed"], number): row for number, row in _number_examples(rows, second)}
    names = {(True, True): "both", (True, False): "first", (False, True): "second"}
    counts = {"both": 0, "first": 0, "second": 0, "neither": 0}
    examples = []
    for number, row in _number_examples(rows, first):
        other = others[row["seed"], number]
        right = kind.example_score(row) == 1, kind.example_score(other) == 1
        counts[names.get(right, "neither")] += 1
        is_first_seed = row["seed"] == rows[0]["seed"]
        if right == (False, True) and is_first_seed and len(examples) < _EXAMPLES:
            examples.append(_example(row, kind, other))
    return counts, tuple(examples)


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


def _reliability(decisions: Sequence[Decision]) -> tuple[Bin, ...]:
    confidence_N = np.array([each.confidence for each in decisions])
    right_N = np.array([float(each.gold == each.prediction) for each in decisions])
    bin_N = np.minimum((confidence_N * _BINS).astype(int), _BINS - 1)
    return tuple(
        Bin(int(inside.sum()), float(confidence_N[inside].mean()), float(right_N[inside].mean()))
        for place in range(_BINS)
        if (inside := bin_N == place).any()
    )


def _by_length(rows: Sequence[PredictionRow], kind: TaskKind) -> tuple[LengthRange, ...]:
    """Four ranges of length with about as many rows each; equal lengths stay together."""
    words = (row["words"] if "words" in row else WORD.findall(input_text(row)) for row in rows)
    length_N = np.array([len(each) for each in words])
    score_N = np.array([kind.example_score(row) for row in rows])
    bounds = np.unique(np.quantile(length_N, np.arange(1, _LENGTHS) / _LENGTHS, method="lower"))
    range_N = np.searchsorted(bounds, length_N, side="left")
    ranges = []
    for number in np.unique(range_N):
        lengths, values = length_N[range_N == number], score_N[range_N == number]
        shortest, longest = int(lengths.min()), int(lengths.max())
        ranges.append(LengthRange(shortest, longest, len(values), float(values.mean())))
    return tuple(ranges)


def _number_examples(
    rows: Sequence[PredictionRow], variant: str
) -> list[tuple[int, PredictionRow]]:
    """The rows of a variant, each with the number of its example, the same for each seed."""
    next_number = Counter[int]()
    samples = []
    for row in rows:
        if row["variant"] == variant:
            samples.append((next_number[row["seed"]], row))
            next_number[row["seed"]] += 1
    return samples


def input_text(row: PredictionRow) -> str:
    """The input of an example as readable text."""
    words = [" ".join(row["words"])] if "words" in row else []
    names = ("context", "question", "text", "second")
    return "\n".join([*words, *(row[name] for name in names if row.get(name))])


def _example(
    row: PredictionRow, kind: TaskKind, other: PredictionRow | None = None
) -> ErrorExample:
    return ErrorExample(
        row["where"],
        input_text(row),
        kind.answer_text(row, row["gold"]),
        kind.answer_text(row, row["prediction"]),
        min((each.confidence for each in kind.decisions(row)), default=None),
        None if other is None else kind.answer_text(other, other["prediction"]),
    )
