"""Seeds together as one answer, and another threshold, of kept predictions: nothing is trained.

    classification, choice, tagging    the mean of the seeds' probabilities; of tags for each word
    regression                         the mean of their numbers
    multilabel                         the labels that more than half of the seeds say
    span, generation                   what most seeds say, of equally many the first seed's

Seeds of one pretraining are less than the seven systems of other pretrainings and seeds that Devlin
et al. 2019 put together (SPEC T10). A threshold on the second of two labels would be too good on
the examples that it was chosen on: each fifth of them has the one that is best on the others.

Shapes: S seeds, N examples, k sums of an example (tasks/metrics.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rungwise.core.artifact import Artifact
from rungwise.evaluation import predictions
from rungwise.evaluation.statistics import Difference, paired_bootstrap
from rungwise.tasks import metrics
from rungwise.tasks.examples import TaskInfo, TaskSummary, read

Sums = NDArray[np.float64]


def combined(evaluated: Artifact, task: Artifact) -> Iterator[tuple[str, str, float, Difference]]:
    """For each variant, all seeds together and for two labels with a threshold: variant, how, the
    judged metric, and that minus what one of the seeds has on average."""
    info, examples = TaskSummary.of(task).info, read(task, "test")
    rows: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for row in predictions.read(evaluated.folder):
        rows.setdefault(row["variant"], {}).setdefault(row["seed"], []).append(row)

    def sums(said: Sequence[Any]) -> Sums:
        return metrics.sums([{predictions.PREDICTED[info.kind]: x} for x in said], examples, info)

    def value(totals: NDArray[np.floating]) -> Sums:
        return metrics.value(totals.astype(float), info)

    for variant, of_seeds in rows.items():
        alone = np.stack([sums([row["prediction"] for row in of]) for of in of_seeds.values()])
        of_examples = list(zip(*of_seeds.values(), strict=True))
        ways = {f"{len(alone)} seeds together": sums([together(of, info) for of in of_examples])}
        if info.kind == "classification" and len(info.labels) == 2:
            share_N = np.array([[row["probabilities"][1] for row in of] for of in of_examples])
            either = np.stack([sums([label] * len(examples)) for label in info.labels])
            ways["with a threshold"] = _cross_fitted(share_N.mean(axis=1), either, info)
        for how, own in ways.items():
            gain = paired_bootstrap(np.broadcast_to(own, alone.shape), alone, value, seed=0)
            yield variant, how, float(value(own.sum(axis=0))), gain


def together(rows: Sequence[dict[str, Any]], info: TaskInfo) -> Any:
    """The answer of all seeds for one example, whose rows these are."""
    match info.kind:
        case "regression":
            return float(np.mean([row["prediction"] for row in rows]))
        case "multilabel":
            said = Counter(label for row in rows for label in row["prediction"])
            return sorted(label for label, times in said.items() if 2 * times > len(rows))
        case "span" | "generation":
            return Counter(row["prediction"] for row in rows).most_common(1)[0][0]
        case "tagging":
            words = zip(*(row["probabilities"] for row in rows), strict=True)
            return [info.labels[np.mean(word, axis=0).argmax()] for word in words]
        case "classification" | "choice":
            best = int(np.mean([row["probabilities"] for row in rows], axis=0).argmax())
            return info.labels[best] if info.kind == "classification" else best


def _cross_fitted(share_N: Sums, either: Sums, info: TaskInfo) -> Sums:
    """The sums (N, k) of answers by thresholds; `either` (2, N, k) are those of each label."""
    fold_N = np.arange(len(share_N)) % 5
    bounds = [threshold(share_N[fold_N != f], either[:, fold_N != f], info) for f in range(5)]
    return np.where((share_N > np.array(bounds)[fold_N])[:, None], either[1], either[0])


def threshold(share_N: Sums, either: Sums, info: TaskInfo) -> float:
    """The share of the second label above which saying it scores best; half way to the next one."""
    order = np.argsort(-share_N, kind="stable")
    gains = (either[1] - either[0])[order].cumsum(axis=0)
    totals = either[0].sum(axis=0) + np.concatenate([np.zeros_like(gains[:1]), gains])
    ranked = np.concatenate([[1.0], share_N[order], [0.0]])
    # The first n say the second label; equal shares cannot be told apart.
    scores = np.where(ranked[:-1] > ranked[1:], metrics.value(totals, info), -np.inf)
    n = int(scores.argmax())
    return float(ranked[n] + ranked[n + 1]) / 2
