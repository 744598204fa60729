"""The metric of a task as a function of sums over its examples, for the bootstrap.

A resample of the examples is a sum of rows, and thousands of resamples are one matrix product. N
examples, k sums each, C labels. All metrics are shares or correlations; 0/0 is 0. On the whole set
they agree with the libraries that scores.py calls. As in scikit-learn, macro F1 averages over the
classes that occur in the targets or the predictions, and for multilabel over all of the labels.

Spearman's correlation is Pearson's of ranks. The ranks are computed once, on the whole set, and not
within each resample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rungwise.core.errors import ConfigError, DataError
from rungwise.tasks.config import METRICS
from rungwise.tasks.kinds.examples import (
    ChoiceExample,
    Example,
    Kind,
    Question,
    Tagged,
    TaskInfo,
    Text,
)
from rungwise.tasks.kinds.tagging import marks_spans, spans_of
from rungwise.tasks.scoring import chrf, squad_rules
from rungwise.tasks.scoring.units import CORRELATIONS

Numbers = NDArray[np.float64]
Predictions = Sequence[Mapping[str, Any]]
_ERRORS = ("loss", "mean_squared_error")
_ROUNDING = 1e-12  # a variance below this share of the sum of squares counts as zero


def sums(predictions: Predictions, examples: Sequence[Any], info: TaskInfo) -> Numbers:
    """Return the sums (N, k) of the examples; `value` of their total is `info.metric`.

    Raises DataError for an example without a target, ConfigError for a metric of another kind.
    """
    check(predictions, examples, info)
    selecting = _selecting(info)
    if info.metric not in selecting:
        raise ConfigError(
            f"data.metric is {info.metric!r}, which does not select for a task of the kind "
            f"{info.kind}; choose one of {', '.join(selecting)}"
        )
    of_examples, _ = _OF_KIND[info.kind]
    return of_examples(predictions, examples, info)


def indicators(labels: Iterable[Any], info: TaskInfo) -> NDArray[np.bool_]:
    """Return which of the task's labels each example has, (N, C), from collections of names."""
    return np.array([[name in each for name in info.labels] for each in labels], bool)


def label_sums(
    said_NC: NDArray[np.bool_], gold_NC: NDArray[np.bool_], info: TaskInfo
) -> NDArray[np.bool_]:
    """Return the sums of multilabel examples: (N, 3C) as for classes; for exact match (N, 2),
    whether all labels are right, and 1."""
    if info.metric == "exact_match":
        right_N = (said_NC == gold_NC).all(axis=1)
        return np.stack([right_N, np.ones_like(right_N)], axis=1)
    return np.concatenate([said_NC & gold_NC, said_NC, gold_NC], axis=1)


def value(totals: Numbers, info: TaskInfo) -> Numbers:
    """Return the metric `info.metric` (...) of summed rows (..., k)."""
    _, of_totals = _OF_KIND[info.kind]
    return of_totals(np.asarray(totals, np.float64), info)


def check(predictions: Predictions, examples: Sequence[Any], info: TaskInfo) -> None:
    """Raise DataError for an example without a target or with a label the task does not have."""
    assert len(predictions) == len(examples), "a prediction an example"
    known = set(info.labels)
    for example in examples:
        targets = target_of(example)
        if targets is None:
            raise DataError(f"{example.where}: there is no target, so nothing can be measured")
        labels: tuple[Any, ...] = ()
        if info.labels:
            labels = (targets,) if info.kind == "classification" else targets
        if wrong := [label for label in labels if label not in known]:
            raise DataError(
                f"{example.where}: label {wrong[0]!r} is none of the task's "
                f"({', '.join(info.labels)})"
            )


def range_of(metric: str) -> tuple[float, float]:
    """Return the lowest and highest possible value of a metric of scores.py or a loss."""
    if metric in _ERRORS:
        return 0.0, math.inf
    return (-1.0 if metric in CORRELATIONS else 0.0), 1.0


def target_of(example: Example) -> Any:
    """Return the target of an example, None if it is unknown."""
    if isinstance(example, Tagged):
        return example.tags
    if isinstance(example, Question):
        return example.answers
    return example.target


def _selecting(info: TaskInfo) -> tuple[str, ...]:
    """Return the metrics of a task for which higher is better."""
    known = METRICS[info.kind]
    if info.kind == "classification" and len(info.labels) != 2:
        return tuple(name for name in known if name != "f1")
    if info.kind == "tagging" and not marks_spans(info.labels):
        return ("accuracy",)
    return (*known, "answerable_f1", "unanswerable_accuracy") if info.kind == "span" else known


def _classification_sums(
    predictions: Predictions, examples: Sequence[Text], info: TaskInfo
) -> Numbers:
    """For each class: predicted correctly, predicted, is the target. (N, 3C)."""
    numbers = {label: number for number, label in enumerate(info.labels)}
    one_hot = np.eye(len(numbers))
    predicted = one_hot[[numbers[prediction["label"]] for prediction in predictions]]
    wanted = one_hot[[numbers[str(example.target)] for example in examples]]
    return np.concatenate([predicted * wanted, predicted, wanted], axis=1)


def _classification_value(totals: Numbers, info: TaskInfo) -> Numbers:
    right, predicted, wanted = np.split(totals, 3, axis=-1)
    if info.metric == "accuracy":
        return _ratio(right.sum(-1), wanted.sum(-1))
    if info.metric == "matthews":
        # Gorodkin 2004: the correlation of two assignments, for any number of classes.
        number = wanted.sum(-1)
        covariance = right.sum(-1) * number - (predicted * wanted).sum(-1)
        variances = (number**2 - (predicted**2).sum(-1)) * (number**2 - (wanted**2).sum(-1))
        return _ratio(covariance, np.sqrt(variances))
    f1 = _ratio(2 * right, predicted + wanted)
    if info.metric == "f1":
        return f1[..., 1]
    return _ratio(f1.sum(-1), (predicted + wanted > 0).sum(-1))


def _multilabel_sums(predictions: Predictions, examples: Sequence[Text], info: TaskInfo) -> Numbers:
    said = indicators([prediction["labels"] for prediction in predictions], info)
    gold = indicators([example.target for example in examples], info)
    return label_sums(said, gold, info).astype(np.float64)


def _multilabel_value(totals: Numbers, info: TaskInfo) -> Numbers:
    if info.metric == "exact_match":
        return _mean_value(totals, info)
    right, predicted, wanted = np.split(totals, 3, axis=-1)
    if info.metric == "micro_f1":
        return _ratio(2 * right.sum(-1), (predicted + wanted).sum(-1))
    return _ratio(2 * right, predicted + wanted).mean(-1)


def _regression_sums(predictions: Predictions, examples: Sequence[Text], info: TaskInfo) -> Numbers:
    """(N, 6): 1, x, y, x², y², xy, where x is the prediction and y the target."""
    x = np.array([float(prediction["score"]) for prediction in predictions])
    y = np.array([example.number for example in examples])
    if info.metric == "spearman":
        from scipy.stats import rankdata

        x, y = rankdata(x), rankdata(y)
    # Shifting loses fewer digits when squares are subtracted; constants become exact zeros.
    x, y = (z - z[:1] for z in (x, y))
    return np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], axis=1)


def _regression_value(totals: Numbers, info: TaskInfo) -> Numbers:
    n, x, y, xx, yy, xy = np.moveaxis(totals, -1, 0)
    variance_x, variance_y = (
        np.where(n * squares - total**2 > _ROUNDING * n * squares, n * squares - total**2, 0.0)
        for squares, total in ((xx, x), (yy, y))
    )
    return _ratio(n * xy - x * y, np.sqrt(variance_x) * np.sqrt(variance_y))


def _tagging_sums(predictions: Predictions, examples: Sequence[Tagged], info: TaskInfo) -> Numbers:
    """Correct words and words (N, 2), or correct, predicted and target spans (N, 3)."""
    pairs = [(p["tags"], list(e.tags or ())) for p, e in zip(predictions, examples, strict=True)]
    if info.metric == "accuracy":
        rows = [
            (sum(map(str.__eq__, predicted, wanted)), len(wanted)) for predicted, wanted in pairs
        ]
        return np.array(rows, np.float64).reshape(-1, 2)
    spans = [(spans_of(predicted), spans_of(wanted)) for predicted, wanted in pairs]
    rows = [(len(predicted & wanted), len(predicted), len(wanted)) for predicted, wanted in spans]
    return np.array(rows, np.float64).reshape(-1, 3)


def _tagging_value(totals: Numbers, info: TaskInfo) -> Numbers:
    if info.metric == "accuracy":
        return _ratio(totals[..., 0], totals[..., 1])
    right, predicted, wanted = np.moveaxis(totals, -1, 0)
    if info.metric == "f1":
        return _ratio(2 * right, predicted + wanted)
    return _ratio(right, predicted if info.metric == "precision" else wanted)


def _span_sums(predictions: Predictions, examples: Sequence[Question], info: TaskInfo) -> Numbers:
    """The score of each example, and 1 if the metric counts it: (N, 2)."""
    scored = np.array(
        [squad_rules.of_example(p["text"], e) for p, e in zip(predictions, examples, strict=True)]
    ).reshape(-1, 2)
    answerable = np.array([bool(example.answers) for example in examples], bool)
    counts = {"answerable_f1": answerable, "unanswerable_accuracy": ~answerable}
    counted = counts.get(info.metric, np.ones(len(scored), bool))
    score = scored[:, 0 if info.metric == "exact_match" else 1]
    return np.stack([score * counted, counted.astype(np.float64)], axis=1)


def _choice_sums(
    predictions: Predictions, examples: Sequence[ChoiceExample], info: TaskInfo
) -> Numbers:
    """Whether each prediction is correct, and 1: (N, 2)."""
    right = [p["option"] == e.target for p, e in zip(predictions, examples, strict=True)]
    return np.stack([np.array(right, np.float64), np.ones(len(right))], axis=1)


def _generation_sums(predictions: Predictions, examples: Sequence[Text], info: TaskInfo) -> Numbers:
    """The counts of chrF (N, 18); for exact match whether the texts are equal, and 1: (N, 2)."""
    pairs = [(p["text"], str(e.target)) for p, e in zip(predictions, examples, strict=True)]
    if info.metric == "chrf":
        return np.array([chrf.counts(*pair) for pair in pairs], np.float64)
    return np.array([(chrf.same(*pair), 1) for pair in pairs], np.float64)


def _generation_value(totals: Numbers, info: TaskInfo) -> Numbers:
    return chrf.value(totals) if info.metric == "chrf" else _mean_value(totals, info)


def _mean_value(totals: Numbers, info: TaskInfo) -> Numbers:
    return _ratio(totals[..., 0], totals[..., 1])


def _ratio(above: Numbers, below: Numbers) -> Numbers:
    """Divide, with 0 where `below` is 0."""
    return np.divide(above, below, out=np.zeros(np.shape(above)), where=np.asarray(below) != 0)


# Per kind: the sums of the examples, and the metric of their totals.
_OF_KIND: Mapping[
    Kind,
    tuple[Callable[[Predictions, Any, TaskInfo], Numbers], Callable[[Numbers, TaskInfo], Numbers]],
] = {
    "classification": (_classification_sums, _classification_value),
    "multilabel": (_multilabel_sums, _multilabel_value),
    "regression": (_regression_sums, _regression_value),
    "tagging": (_tagging_sums, _tagging_value),
    "span": (_span_sums, _mean_value),
    "choice": (_choice_sums, _mean_value),
    "generation": (_generation_sums, _generation_value),
}
