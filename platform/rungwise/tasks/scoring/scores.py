"""All metrics of a task's predictions, computed by the usual libraries.

scikit-learn scores labels, SciPy numbers, sacrebleu written texts (chrF), and seqeval tagged spans
in its default mode, which like conlleval begins a span at an I- that continues none of its type.
Answers use squad_rules.py. Every number is a share or a correlation, never a percentage.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rungwise.tasks.kinds.examples import ChoiceExample, Kind, Question, Tagged, TaskInfo, Text
from rungwise.tasks.kinds.tagging import marks_spans
from rungwise.tasks.scoring import chrf, squad_rules
from rungwise.tasks.scoring.metrics import Predictions, check, indicators

Metrics = dict[str, float]
_NOTHING: Any = 0  # value of 0/0; the libraries' annotations allow only strings such as "warn"


def score(predictions: Predictions, examples: Sequence[Any], info: TaskInfo) -> Metrics:
    """Compute every metric of the kind of task, `info.metric` among them.

    Raises DataError for an example without a target or with a label that the task does not have.
    """
    check(predictions, examples, info)
    return _SCORES[info.kind](predictions, examples, info)


def _classification(predictions: Predictions, examples: Sequence[Text], info: TaskInfo) -> Metrics:
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    predicted = [prediction["label"] for prediction in predictions]
    wanted = [str(example.target) for example in examples]
    metrics = {
        "accuracy": float(accuracy_score(wanted, predicted)),
        "macro_f1": float(f1_score(wanted, predicted, average="macro", zero_division=_NOTHING)),
        # For a single label the library also returns 0, but warns.
        "matthews": float(matthews_corrcoef(wanted, predicted))
        if len({*wanted, *predicted}) > 1
        else 0.0,
    }
    if len(info.labels) == 2:
        # As 0 and 1: given names, the library looks for the second label among those that occur.
        ones = [[label == info.labels[1] for label in labels] for labels in (wanted, predicted)]
        metrics["f1"] = float(f1_score(*ones, zero_division=_NOTHING))
    return metrics


def _multilabel(predictions: Predictions, examples: Sequence[Text], info: TaskInfo) -> Metrics:
    from sklearn.metrics import accuracy_score, f1_score

    wanted = indicators([example.target for example in examples], info)
    predicted = indicators([prediction["labels"] for prediction in predictions], info)
    f1 = {
        f"{average}_f1": float(f1_score(wanted, predicted, average=average, zero_division=_NOTHING))
        for average in ("micro", "macro")
    }
    # For multilabel the library's accuracy is exact match.
    return f1 | {"exact_match": float(accuracy_score(wanted, predicted))}


def _regression(predictions: Predictions, examples: Sequence[Text], info: TaskInfo) -> Metrics:
    from scipy.stats import pearsonr, spearmanr

    predicted = np.array([float(prediction["score"]) for prediction in predictions])
    wanted = np.array([example.number for example in examples])
    metrics = {"mean_squared_error": float(np.mean((predicted - wanted) ** 2))}
    # Constant values have no correlation. 0.0 instead of the library's NaN lets a model that has
    # learned nothing be compared.
    if len(predicted) < 2 or np.ptp(predicted) == 0 or np.ptp(wanted) == 0:
        return metrics | {"pearson": 0.0, "spearman": 0.0}
    with warnings.catch_warnings():
        # An untrained head predicts nearly constants; the library warns of lost digits.
        warnings.simplefilter("ignore")
        results: list[Any] = [pearsonr(predicted, wanted), spearmanr(predicted, wanted)]
    pearson, spearman = (float(result.statistic) for result in results)
    return metrics | {"pearson": pearson, "spearman": spearman}


def _tagging(predictions: Predictions, examples: Sequence[Tagged], info: TaskInfo) -> Metrics:
    predicted = [list(prediction["tags"]) for prediction in predictions]
    wanted = [list(example.tags or ()) for example in examples]
    pairs = zip(predicted, wanted, strict=True)
    right = sum(f == w for pair in pairs for f, w in zip(*pair, strict=True))
    metrics = {"accuracy": right / max(1, sum(map(len, wanted)))}
    if marks_spans(info.labels):
        from seqeval.metrics import sequence_labeling

        micro = sequence_labeling.precision_recall_fscore_support(
            wanted, predicted, average="micro", zero_division=_NOTHING
        )
        of_spans = zip(("precision", "recall", "f1"), np.array(micro[:3]).tolist(), strict=True)
        metrics |= dict(of_spans)
    return metrics


def _span(predictions: Predictions, examples: Sequence[Question], info: TaskInfo) -> Metrics:
    scored = np.array(
        [squad_rules.of_example(p["text"], e) for p, e in zip(predictions, examples, strict=True)]
    )
    exact, f1 = scored.mean(axis=0).tolist()
    metrics = {"exact_match": exact, "f1": f1}
    answerable = np.array([bool(example.answers) for example in examples])
    if answerable.any() and not answerable.all():
        metrics["answerable_f1"] = float(scored[answerable, 1].mean())
        metrics["unanswerable_accuracy"] = float(scored[~answerable, 0].mean())
    return metrics


def _choice(predictions: Predictions, examples: Sequence[ChoiceExample], info: TaskInfo) -> Metrics:
    right = [p["option"] == e.target for p, e in zip(predictions, examples, strict=True)]
    return {"accuracy": float(np.mean(right))}


def _generation(predictions: Predictions, examples: Sequence[Text], info: TaskInfo) -> Metrics:
    from sacrebleu.metrics.chrf import CHRF

    said, gold = [p["text"] for p in predictions], [str(e.target) for e in examples]
    return {
        "chrf": CHRF().corpus_score(said, [gold]).score / 100,
        "exact_match": float(np.mean([*map(chrf.same, said, gold)])),
    }


_SCORES: Mapping[Kind, Callable[[Predictions, Any, TaskInfo], Metrics]] = {
    "classification": _classification,
    "multilabel": _multilabel,
    "regression": _regression,
    "tagging": _tagging,
    "span": _span,
    "choice": _choice,
    "generation": _generation,
}
