"""Error analysis from prediction rows: by class, confidence and length.

The rows of all seeds of a variant are pooled. A reliability curve has ten bins of equal width; the
expected calibration error is the mean gap between confidence and accuracy, weighted by bin size
(Guo et al. 2017, arXiv:1706.04599).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rungwise.tasks.kinds.examples import Answer, Question, TaskInfo
from rungwise.tasks.kinds.pieces import WORD
from rungwise.tasks.kinds.tagging import marks_spans, tagged_spans
from rungwise.tasks.scoring import chrf, squad_rules

Row = dict[str, Any]
_BINS, _PARTS, _SHOWN = 10, 4, 12


@dataclass(frozen=True)
class ClassScores:
    """Scores of a label or span type, with its counts in gold and in predictions (`said`)."""

    name: str
    precision: float
    recall: float
    f1: float
    gold: int
    said: int


@dataclass(frozen=True)
class Bin:
    """A bin of the reliability curve: size, mean confidence, accuracy."""

    count: int
    confidence: float
    right: float


@dataclass(frozen=True)
class Part:
    """Examples of similar length in words, of which a Han character is one: bounds, number of rows,
    mean score."""

    shortest: int
    longest: int
    count: int
    score: float


@dataclass(frozen=True)
class Shown:
    """A misclassified example; `other` is the answer of another variant."""

    where: str
    text: str
    gold: str
    said: str
    confidence: float | None
    other: str | None = None


@dataclass(frozen=True)
class Errors:
    """The error analysis of one variant; parts that its task kind lacks are empty. `confusion`
    counts (gold, predicted) labels, per word for tagging."""

    variant: str
    classes: tuple[ClassScores, ...]
    confusion: tuple[tuple[str, str, int], ...]
    reliability: tuple[Bin, ...]
    calibration_error: float | None
    by_length: tuple[Part, ...]
    score_of: str
    wrong: tuple[Shown, ...]


def errors(rows: Sequence[Row], variant: str, info: TaskInfo) -> Errors:
    """Analyse the errors of one variant; `rows` holds the predictions of all variants."""
    own = [row for row in rows if row["variant"] == variant]
    decisions = [each for row in own for each in _decisions(row, info)]
    pairs = Counter((gold, said) for gold, said, _ in decisions)
    bins = _reliability([(c, g == s) for g, s, c in decisions if c is not None])
    total = sum(each.count for each in bins)
    named = info.kind in ("classification", "tagging")
    first = min(row["seed"] for row in own)
    wrong = [_shown(row, info) for row in own if row["seed"] == first and score(row, info) < 1]
    wrong.sort(key=lambda each: -(each.confidence or 0))
    return Errors(
        variant,
        _classes(own, pairs, info) if info.labels else (),
        tuple((*pair, count) for pair, count in pairs.most_common()) if named else (),
        bins,
        sum(b.count * abs(b.confidence - b.right) for b in bins) / total if total else None,
        _by_length([(_words(row), score(row, info)) for row in own]),
        _SCORE_OF[info.kind],
        tuple(wrong[:_SHOWN]) if info.kind != "regression" else (),
    )


def disagreements(
    rows: Sequence[Row], first: str, second: str, info: TaskInfo
) -> tuple[dict[str, int], tuple[Shown, ...]]:
    """Count which of two variants is right; list examples of the first seed that only `first` gets
    wrong. Not for regression."""
    others = {(row["seed"], i): row for i, row in _numbered(rows, second)}
    counts = {"both": 0, "first": 0, "second": 0, "neither": 0}
    shown = []
    for place, row in _numbered(rows, first):
        other = others[row["seed"], place]
        right = score(row, info) == 1, score(other, info) == 1
        name = {(True, True): "both", (True, False): "first", (False, True): "second"}
        counts[name.get(right, "neither")] += 1
        if right == (False, True) and len(shown) < _SHOWN and row["seed"] == rows[0]["seed"]:
            shown.append(_shown(row, info, other))
    return counts, tuple(shown)


_SCORE_OF = {
    "classification": "accuracy",
    "multilabel": "share of texts with exactly the right labels",
    "choice": "accuracy",
    "generation": "share of texts equal to the reference",
    "tagging": "accuracy over words",
    "span": "mean F1",
    "regression": "mean absolute error",
}


def score(row: Row, info: TaskInfo) -> float:
    """The score of one example: 1 if right; for regression, the absolute error."""
    match info.kind:
        case "regression":
            return abs(row["prediction"] - row["gold"])
        case "tagging":
            pairs = zip(row["gold"], row["prediction"], strict=True)
            return float(np.mean([gold == said for gold, said in pairs]))
        case "span":
            answers = tuple(Answer(text, 0) for text in row["gold"])
            asked = Question("", "", row["question"], row["context"], answers)
            return squad_rules.score_answer(row["prediction"], asked)[1]
        case "generation":
            return float(chrf.same(row["prediction"], row["gold"]))
        case _:
            return float(row["gold"] == row["prediction"])


def _decisions(row: Row, info: TaskInfo) -> list[tuple[str, str, float | None]]:
    """(gold, predicted, confidence) per row, word (tagging) or label (multilabel: present?)."""
    match info.kind:
        case "tagging":
            shares = row["probabilities"]
            return [
                (gold, said, share[info.labels.index(said)])
                for gold, said, share in zip(row["gold"], row["prediction"], shares, strict=True)
            ]
        case "multilabel":
            shares = zip(info.labels, row["probabilities"], strict=True)
            return [
                (str(label in row["gold"]), str(said), share if said else 1 - share)
                for label, share in shares
                for said in [label in row["prediction"]]
            ]
        case "classification" | "choice":
            return [(str(row["gold"]), str(row["prediction"]), max(row["probabilities"]))]
        case _:
            return []


def _classes(
    rows: Sequence[Row], pairs: Counter[tuple[str, str]], info: TaskInfo
) -> tuple[ClassScores, ...]:
    right, gold, said = Counter[str](), Counter[str](), Counter[str]()
    spans = info.kind == "tagging" and marks_spans(info.labels)
    if spans or info.kind == "multilabel":
        for row in rows:
            wanted, found = (
                tagged_spans(row[name]) if spans else set(zip(row[name]))
                for name in ("gold", "prediction")
            )
            for counts, several in ((right, wanted & found), (gold, wanted), (said, found)):
                counts.update(name for name, *_ in several)
        names = sorted(gold | said)
    else:
        for (wanted, found), count in pairs.items():
            gold[wanted] += count
            said[found] += count
            right[wanted] += count * (wanted == found)
        names = [name for name in info.labels if gold[name] or said[name]]
    return tuple(_class(name, right[name], gold[name], said[name]) for name in names)


def _class(name: str, right: int, gold: int, said: int) -> ClassScores:
    precision, recall = (right / each if each else 0.0 for each in (said, gold))
    return ClassScores(name, precision, recall, 2 * right / (gold + said), gold, said)


def _reliability(decisions: Sequence[tuple[float, bool]]) -> tuple[Bin, ...]:
    if not decisions:
        return ()
    confidence_N, right_N = (np.array(each, float) for each in zip(*decisions, strict=True))
    place_N = np.minimum((confidence_N * _BINS).astype(int), _BINS - 1)
    chosen = [place_N == place for place in range(_BINS) if (place_N == place).any()]
    return tuple(
        Bin(int(of.sum()), float(confidence_N[of].mean()), float(right_N[of].mean()))
        for of in chosen
    )


def _by_length(scored: Sequence[tuple[int, float]]) -> tuple[Part, ...]:
    """Split into four parts of about equal size; equal lengths stay together."""
    lengths = np.array([length for length, _ in scored])
    scores = np.array([each for _, each in scored])
    bounds = np.unique(np.quantile(lengths, np.arange(1, _PARTS) / _PARTS, method="lower"))
    part_N = np.searchsorted(bounds, lengths, side="left")
    return tuple(
        Part(
            int(lengths[of].min()), int(lengths[of].max()), int(of.sum()), float(scores[of].mean())
        )
        for part in np.unique(part_N)
        if (of := part_N == part).any()
    )


def _numbered(rows: Sequence[Row], variant: str) -> list[tuple[int, Row]]:
    """The rows of a variant, each with the index of its example, the same for each seed."""
    places = Counter[int]()
    numbered = []
    for row in rows:
        if row["variant"] == variant:
            numbered.append((places[row["seed"]], row))
            places[row["seed"]] += 1
    return numbered


def text_of(row: Row) -> str:
    """The input of an example as readable text."""
    words = [" ".join(row["words"])] if "words" in row else []
    names = ("context", "question", "text", "second")
    return "\n".join([*words, *(row[name] for name in names if row.get(name))])


def _words(row: Row) -> int:
    return len(row["words"]) if "words" in row else len(WORD.findall(text_of(row)))


def _shown(row: Row, info: TaskInfo, other: Row | None = None) -> Shown:
    confidence = [c for _, _, c in _decisions(row, info) if c is not None]
    said = _written(row, row["prediction"], info)
    return Shown(
        row["where"],
        text_of(row),
        _written(row, row["gold"], info),
        said,
        min(confidence, default=None),
        None if other is None else _written(other, other["prediction"], info),
    )


def _written(row: Row, value: Any, info: TaskInfo) -> str:
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
            said = [value] if isinstance(value, str) else value
            return " | ".join(dict.fromkeys(said)) or "no answer"
        case _:
            return str(value)
