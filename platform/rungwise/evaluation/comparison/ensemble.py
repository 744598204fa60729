"""Ensembles of seeds and tuned thresholds, computed from kept predictions without training.

    classification, choice, tagging    mean of the seeds' probabilities (tagging: per word)
    regression                         mean of the seeds' predictions
    multilabel                         labels predicted by more than half of the seeds
    span, generation                   most frequent prediction; ties go to the earliest seed

Members share one pretraining; those of the ensemble of seven in Devlin et al. 2019
(arXiv:1810.04805, table 2) do not. A threshold for binary classification would be too good on the
examples that selected it, so it is cross-fitted: each fifth uses the best one of the others.

Shapes: S seeds, N examples, k sums per example (tasks/scoring/metrics.py).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rungwise.core.stages.artifact import Artifact
from rungwise.evaluation.comparison.predictions import PredictionRow, read_predictions
from rungwise.evaluation.statistics import Difference, paired_bootstrap
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import TaskInfo, TaskSummary, read_examples
from rungwise.tasks.scoring.metrics import metric_range

Sums = NDArray[np.float64]


def score_ensembles(
    evaluation: Artifact, task: Artifact
) -> Iterator[tuple[str, str, float, Difference]]:
    """Yield (variant, method, score, gain over the mean of single seeds). The methods are the
    ensemble of all seeds and, for binary classification, the tuned threshold."""
    info, examples = TaskSummary.of(task).info, read_examples(task, "test")
    kind = task_kind(info)
    variants: dict[str, dict[int, list[PredictionRow]]] = {}
    for row in read_predictions(evaluation.folder):
        variants.setdefault(row["variant"], {}).setdefault(row["seed"], []).append(row)

    def sums(answers: Sequence[Any]) -> Sums:
        return kind.sums([{kind.answer: x} for x in answers], examples)

    for variant, seeds in variants.items():
        single = np.stack([sums([row["prediction"] for row in rows]) for rows in seeds.values()])
        by_example = list(zip(*seeds.values(), strict=True))
        answers = [combine_answers(rows, info) for rows in by_example]
        methods = {f"{len(single)} seeds together": sums(answers)}
        if info.kind == "classification" and len(info.labels) == 2:
            share_N = np.array([[row["probabilities"][1] for row in rows] for rows in by_example])
            either = np.stack([sums([label] * len(examples)) for label in info.labels])
            methods["with a threshold"] = _cross_fitted(share_N.mean(axis=1), either, info)
        for method, own in methods.items():
            both = np.broadcast_to(own, single.shape), single
            gain = paired_bootstrap(*both, kind.value, seed=0, within=metric_range(info.metric))
            yield variant, method, float(kind.value(own.sum(axis=0))), gain


def combine_answers(rows: Sequence[PredictionRow], info: TaskInfo) -> Any:
    """The ensemble's answer to one example, given its row of each seed."""
    match info.kind:
        case "regression":
            return float(np.mean([row["prediction"] for row in rows]))
        case "multilabel":
            votes = Counter(label for row in rows for label in row["prediction"])
            return sorted(label for label, count in votes.items() if 2 * count > len(rows))
        case "span" | "generation":
            return Counter(row["prediction"] for row in rows).most_common(1)[0][0]
        case "tagging":
            words = zip(*(row["probabilities"] for row in rows), strict=True)
            return [info.labels[np.mean(word, axis=0).argmax()] for word in words]
        case "classification" | "choice":
            best = int(np.mean([row["probabilities"] for row in rows], axis=0).argmax())
            return info.labels[best] if info.kind == "classification" else best


def _cross_fitted(share_N: Sums, either: Sums, info: TaskInfo) -> Sums:
    """The sums (N, k) with cross-fitted thresholds; `either` (2, N, k) holds those per label."""
    fold_N = np.arange(len(share_N)) % 5
    bounds = [best_threshold(share_N[fold_N != f], either[:, fold_N != f], info) for f in range(5)]
    return np.where((share_N > np.array(bounds)[fold_N])[:, None], either[1], either[0])


def best_threshold(share_N: Sums, either: Sums, info: TaskInfo) -> float:
    """The best-scoring threshold on the second label's probability, midway between two values."""
    order = np.argsort(-share_N, kind="stable")
    gains = (either[1] - either[0])[order].cumsum(axis=0)
    totals = either[0].sum(axis=0) + np.concatenate([np.zeros_like(gains[:1]), gains])
    # Above 1, so that the second label can be refused where a probability is exactly 1.
    ranked = np.concatenate([[np.nextafter(1.0, 2.0)], share_N[order], [0.0]])
    # The n highest get the second label; no threshold can split equal probabilities.
    scores = np.where(ranked[:-1] > ranked[1:], task_kind(info).value(totals), -np.inf)
    n = int(scores.argmax())
    return float(ranked[n] + ranked[n + 1]) / 2
