"""Any number of labels for a text: those with a probability above a threshold.

One threshold serves all labels and is chosen on the validation split: the best one for F1 is half
of the highest possible F1, so never above 0.5 (Lipton et al. 2014, arXiv:1402.1892).

Micro F1 counts each decision on a label once, so that rare labels do not dominate; macro F1
averages over all labels. Baselines:

    no_label       no text has a label
    majority       the commonest set of labels of the training split
    most_frequent  the commonest labels of the training split, as many as maximise micro F1 there
    every_label    every text has all labels

Shapes: N examples, C labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import scipy  # its parts are imported when they are used
from numpy.typing import NDArray

from rungwise.tasks.kinds.examples import TaskInfo, Text
from rungwise.tasks.kinds.kind import Calibration, Decision, Outputs, Prediction, Rules, commonest
from rungwise.tasks.kinds.rivals import LOGISTIC, Rival, fit_labels, text_rivals
from rungwise.tasks.kinds.sentences import SentenceKind, mean_logits
from rungwise.tasks.scoring.metrics import (
    Numbers,
    Predictions,
    TaskMetric,
    f1_scores,
    mean,
    means,
    ratio,
    thirds,
)

if TYPE_CHECKING:
    from torch import Tensor

THRESHOLD = "label_threshold"
_THRESHOLDS = np.arange(1, 100) / 100


def _indicators(labels: Iterable[Any], info: TaskInfo) -> NDArray[np.bool_]:
    """Return which of the task's labels each example has, (N, C), from collections of names."""
    return np.array([[name in each for name in info.labels] for each in labels], bool)


def _sums(predicted_NC: NDArray[np.bool_], gold_NC: NDArray[np.bool_]) -> Numbers:
    """Whether all labels are right, and 1; for each label: predicted correctly, predicted, is a
    target. (N, 2 + 3C)."""
    exact_N2 = means((predicted_NC == gold_NC).all(axis=1))
    of_labels = np.concatenate([predicted_NC & gold_NC, predicted_NC, gold_NC], axis=1)
    return np.concatenate([exact_N2, of_labels.astype(np.float64)], axis=1)


def _count(predictions: Predictions, examples: Sequence[Text], info: TaskInfo) -> Numbers:
    predicted_NC = _indicators([prediction["labels"] for prediction in predictions], info)
    return _sums(predicted_NC, _indicators([example.target for example in examples], info))


def _micro_f1(totals: Numbers) -> Numbers:
    right, predicted, gold = thirds(totals[..., 2:])
    return ratio(2 * right.sum(-1), (predicted + gold).sum(-1))


class Multilabel(SentenceKind):
    """Predicts {"labels", "probabilities"}: labels in alphabetical order, probabilities of all
    labels in the order of the task."""

    name = "multilabel"
    answer = "labels"
    labelled = real_targets = True
    confuses_labels = False
    finetune_keys = (*SentenceKind.finetune_keys, "class_weights")
    words = "which of {labels} labels {input} has"
    metrics: ClassVar[Mapping[str, TaskMetric]] = {
        "micro_f1": TaskMetric(_count, _micro_f1),
        "macro_f1": TaskMetric(_count, lambda totals: f1_scores(totals[..., 2:]).mean(-1)),
        "exact_match": TaskMetric(_count, mean),
    }

    def target(self, example: Text) -> tuple[int, ...]:
        names = example.target if isinstance(example.target, tuple) else (example.target,)
        for name in names:
            self.label_number(name, example.where)
        return tuple(int(label in names) for label in self.info.labels)

    @staticmethod
    def loss_sums(
        logits: Tensor, targets: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, int]:
        """Return the sum of the binary cross entropies, each averaged over the labels."""
        from torch.nn import functional

        each_BC = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        if weights is not None:
            each_BC = each_BC * weights.gather(0, targets.long())
        return each_BC.mean(dim=1).sum(), len(targets)

    @staticmethod
    def count_classes(targets_N: Tensor, num_classes: int) -> Tensor:
        """Count the absence and the presence of each label, (2, C)."""
        import torch

        present_C = targets_N.sum(dim=0)
        return torch.stack((len(targets_N) - present_C, present_C))

    def decisions(self, row: Mapping[str, Any]) -> list[Decision]:
        return [
            Decision(str(label in row["gold"]), str(present), p if present else 1 - p)
            for label, p in zip(self.info.labels, row["probabilities"], strict=True)
            for present in [label in row["prediction"]]
        ]

    def class_items(self, answer: Any) -> set[tuple[Any, ...]]:
        return set(zip(answer))

    def answer_text(self, row: Mapping[str, Any], answer: Any) -> str:
        return ", ".join(answer) or "no label"

    def rivals(self) -> Sequence[Rival]:
        return text_rivals(self.target, fit_labels, LOGISTIC)

    def decode(self, outputs: Outputs, calibration: Calibration) -> list[Prediction]:
        threshold = calibration.get(THRESHOLD, 0.5)
        labels = self.info.labels
        return [
            {
                "labels": sorted(
                    label for label, p in zip(labels, shares, strict=True) if p > threshold
                ),
                "probabilities": shares,
            }
            for shares in self.probabilities(outputs)
        ]

    def probabilities(self, outputs: Outputs) -> list[list[float]]:
        return [scipy.special.expit(logits).tolist() for logits in mean_logits(outputs)]

    def calibrate(self, outputs: Outputs) -> dict[str, float]:
        """Choose the threshold, in hundredths, with the best metric of the task on these examples;
        of equally good ones, the nearest to 0.5."""
        share_NC = np.array(self.probabilities(outputs))
        gold_NC = _indicators([example.target for example in outputs.examples], self.info)
        totals = [_sums(share_NC > t, gold_NC).sum(axis=0) for t in _THRESHOLDS]
        scores = self.value(np.stack(totals))
        ranks = range(len(_THRESHOLDS))
        best = max(ranks, key=lambda n: (scores[n], -abs(_THRESHOLDS[n] - 0.5)))
        return {THRESHOLD: float(_THRESHOLDS[best])}

    def rules(self, train: Sequence[Text], test: Sequence[Text]) -> Rules:
        info = self.info
        gold_NC = _indicators([example.target for example in train], info)
        order_C = np.argsort(-gold_NC.sum(axis=0), kind="stable")
        right_C = gold_NC.sum(axis=0)[order_C].cumsum()  # if each text gets the first 1, 2, ...
        f1_C = 2 * right_C / (len(train) * np.arange(1, len(right_C) + 1) + gold_NC.sum())
        rules = {
            "no_label": (),
            "majority": commonest(example.target for example in train),
            "most_frequent": [info.labels[place] for place in order_C[: f1_C.argmax() + 1]],
            "every_label": info.labels,
        }
        return {name: [{"labels": labels}] * len(test) for name, labels in rules.items()}
