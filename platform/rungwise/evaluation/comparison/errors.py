"""Error analysis from prediction rows: by class, confidence and length.

The rows of all seeds of a variant are pooled. A reliability curve has ten bins of equal width; the
expected calibration error is the mean gap between confidence and accuracy, weighted by bin size
(Guo et al. 2017, arXiv:1706.04599).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rungwise.evaluation.comparison.predictions import PredictionRow
from rungwise.tasks.kinds.examples import Answer, Question, TaskInfo
from rungwise.tasks.kinds.items import WORD
from rungwise.tasks.kinds.tagging import marks_spans, tagged_spans
from rungwise.tasks.scoring import chrf, squad_rules

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


class _Decision(NamedTuple):
    """A label of a row, of a word (tagging), or whether a label is present (multilabel)."""

    gold: str
    prediction: str
    confidence: float


def analyse_errors(rows: Sequence[PredictionRow], variant: str, info: TaskInfo) -> ErrorAnalysis:
    """Analyse the errors of one variant; `rows` holds the predictions of all variants."""
    rows = [row for row in rows if row["variant"] == variant]
    decisions = [each for row in rows for each in _decisions(row, info)]
    pairs = Counter((each.gold, each.prediction) for each in decisions)
    bins = _reliability(decisions)
    total = sum(each.count for each in bins)
    has_labels = info.kind in ("classification", "tagging")
    first = min(row["seed"] for row in rows)
    wrong = [
        _example(row, info) for row in rows if row["seed"] == first and example_score(row, info) < 1
    ]
    wrong.sort(key=lambda each: -(each.confidence or 0))
    return ErrorAnalysis(
        variant,
        _class_scores(rows, pairs, info) if info.labels else (),
        tuple((*pair, count) for pair, count in pairs.most_common()) if has_labels else (),
        bins,
        sum(b.count * abs(b.confidence - b.right) for b in bins) / total if total else None,
        _by_length(rows, info),
        _SCORE_NAMES[info.kind],
        tuple(wrong[:_EXAMPLES]) if info.kind != "regression" else (),
    )


def compare_errors(
    rows: Sequence[PredictionRow], first: str, second: str, info: TaskInfo
) -> tuple[dict[str, int], tuple[ErrorExample, ...]]:
    """Count which of two variants is right; list examples of the first seed that only `first` gets
    wrong. Not for regression."""
    others = {(row["seed"], number): row for number, row in _number_examples(rows, second)}
    names = {(True, True): "both", (True, False): "first", (False, True): "second"}
    counts = {"both": 0, "first": 0, "second": 0, "neither": 0}
    examples = []
    for number, row in _number_examples(rows, first):
        other = others[row["seed"], number]
        right = example_score(row, info) == 1, example_score(other, info) == 1
        counts[names.get(right, "neither")] += 1
        is_first_seed = row["seed"] == rows[0]["seed"]
        if right == (False, True) and is_first_seed and len(examples) < _EXAMPLES:
            examples.append(_example(row, info, other))
    return counts, tuple(examples)


_SCORE_NAMES = {
    "classification": "accuracy",
    "multilabel": "share of texts with exactly the right labels",
    "choice": "accuracy",
    "generation": "share of texts equal to the reference",
    "tagging": "accuracy over words",
    "span": "mean F1",
    "regression": "mean absolute error",
}


def example_score(row: PredictionRow, info: TaskInfo) -> float:
    """The score of one example: 1 if right; for regression, the absolute error."""
    gold, prediction = row["gold"], row["prediction"]
    match info.kind:
        case "regression":
            return abs(prediction - gold)
        case "tagging":
            return float(np.mean([a == b for a, b in zip(gold, prediction, strict=True)]))
        case "span":
            answers = tuple(Answer(text, 0) for text in gold)
            question = Question("", "", row["question"], row["context"], answers)
            return squad_rules.score_answer(prediction, question)[1]
        case "generation":
            return float(chrf.same(prediction, gold))
        case _:
            return float(gold == prediction)


def _decisions(row: PredictionRow, info: TaskInfo) -> list[_Decision]:
    match info.kind:
        case "tagging":
            words = zip(row["gold"], row["prediction"], row["probabilities"], strict=True)
            return [_Decision(gold, tag, p[info.labels.index(tag)]) for gold, tag, p in words]
        case "multilabel":
            return [
                _Decision(str(label in row["gold"]), str(present), p if present else 1 - p)
                for label, p in zip(info.labels, row["probabilities"], strict=True)
                for present in [label in row["prediction"]]
            ]
        case "classification" | "choice":
            confidence = max(row["probabilities"])
            return [_Decision(str(row["gold"]), str(row["prediction"]), confidence)]
        case _:
            return []


def _class_scores(
    rows: Sequence[PredictionRow], pairs: Counter[tuple[str, str]], info: TaskInfo
) -> tuple[ClassScores, ...]:
    right, gold, predicted = Counter[str](), Counter[str](), Counter[str]()
    spans = info.kind == "tagging" and marks_spans(info.labels)
    if spans or info.kind == "multilabel":
        for row in rows:
            truth, answer = (
                tagged_spans(row[name]) if spans else set(zip(row[name]))
                for name in ("gold", "prediction")
            )
            for counts, items in ((right, truth & answer), (gold, truth), (predicted, answer)):
                counts.update(name for name, *_ in items)
        names = sorted(gold | predicted)
    else:
        for (truth, answer), count in pairs.items():
            gold[truth] += count
            predicted[answer] += count
            right[truth] += count * (truth == answer)
        names = [name for name in info.labels if gold[name] or predicted[name]]
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


def _reliability(decisions: Sequence[_Decision]) -> tuple[Bin, ...]:
    confidence_N = np.array([each.confidence for each in decisions])
    right_N = np.array([float(each.gold == each.prediction) for each in decisions])
    bin_N = np.minimum((confidence_N * _BINS).astype(int), _BINS - 1)
    return tuple(
        Bin(int(inside.sum()), float(confidence_N[inside].mean()), float(right_N[inside].mean()))
        for place in range(_BINS)
        if (inside := bin_N == place).any()
    )


def _by_length(rows: Sequence[PredictionRow], info: TaskInfo) -> tuple[LengthRange, ...]:
    """Four ranges of length with about as many rows each; equal lengths stay together."""
    words = (row["words"] if "words" in row else WORD.findall(input_text(row)) for row in rows)
    length_N = np.array([len(each) for each in words])
    score_N = np.array([example_score(row, info) for row in rows])
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
    row: PredictionRow, info: TaskInfo, other: PredictionRow | None = None
) -> ErrorExample:
    return ErrorExample(
        row["where"],
        input_text(row),
        _answer_text(row, row["gold"], info),
        _answer_text(row, row["prediction"], info),
        min((each.confidence for each in _decisions(row, info)), default=None),
        None if other is None else _answer_text(other, other["prediction"], info),
    )


def _answer_text(row: PredictionRow, value: Any, info: TaskInfo) -> str:
    """A gold answer or prediction as readable text; tags O are left out."""
    match info.kind:
        case "choice":
            return row["options"][value]
        case "tagging":
            pairs = zip(row["words"], value, strict=True)
            return " ".join(f"{word}/{tag}" for word, tag in pairs if tag != "O") or "nothing"
        case "multilabel":
            return ", ".join(value) or "no label"
        case "span":
            answers = [value] if isinstance(value, str) else value
            return " | ".join(dict.fromkeys(answers)) or "no answer"
        case _:
            return str(value)
