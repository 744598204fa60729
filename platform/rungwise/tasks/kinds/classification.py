"""One label for a text or a pair of texts. Macro F1 averages over the classes that occur in the
targets or the predictions, as scikit-learn does."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import scipy  # its parts are imported when they are used

from rungwise.tasks.kinds.examples import TaskInfo, Text
from rungwise.tasks.kinds.kind import (
    Calibration,
    Decision,
    Outputs,
    Prediction,
    Rules,
    commonest,
    decide_best,
)
from rungwise.tasks.kinds.rivals import LOGISTIC, Rival, fit_classes, text_rivals
from rungwise.tasks.kinds.sentences import SentenceKind, mean_logits
from rungwise.tasks.scoring.metrics import (
    Numbers,
    Predictions,
    TaskMetric,
    f1_scores,
    ratio,
    thirds,
)


def _counts(predictions: Predictions, examples: Sequence[Text], info: TaskInfo) -> Numbers:
    """For each class: predicted correctly, predicted, is the target. (N, 3C)."""
    numbers = {label: number for number, label in enumerate(info.labels)}
    one_hot = np.eye(len(numbers))
    predicted = one_hot[[numbers[prediction["label"]] for prediction in predictions]]
    gold = one_hot[[numbers[str(example.target)] for example in examples]]
    return np.concatenate([predicted * gold, predicted, gold], axis=1)


def _accuracy(totals: Numbers) -> Numbers:
    right, _, gold = thirds(totals)
    return ratio(right.sum(-1), gold.sum(-1))


def _macro_f1(totals: Numbers) -> Numbers:
    _, predicted, gold = thirds(totals)
    return ratio(f1_scores(totals).sum(-1), (predicted + gold > 0).sum(-1))


def _matthews(totals: Numbers) -> Numbers:
    """Gorodkin 2004: the correlation of two assignments, for any number of classes."""
    right, predicted, gold = thirds(totals)
    number = gold.sum(-1)
    covariance = right.sum(-1) * number - (predicted * gold).sum(-1)
    variances = (number**2 - (predicted**2).sum(-1)) * (number**2 - (gold**2).sum(-1))
    return ratio(covariance, np.sqrt(variances))


class Classification(SentenceKind):
    """Predicts {"label", "probability"}. `f1` is that of the second of two labels."""

    name = "classification"
    answer = "label"
    labelled = one_label = confuses_labels = True
    finetune_keys = (*SentenceKind.finetune_keys, "class_weights")
    words = "one of {labels} labels for {input}"
    score_name = "accuracy"
    metrics: ClassVar[Mapping[str, TaskMetric]] = {
        "accuracy": TaskMetric(_counts, _accuracy),
        "macro_f1": TaskMetric(_counts, _macro_f1),
        "f1": TaskMetric(_counts, lambda totals: f1_scores(totals)[..., 1]),
        "matthews": TaskMetric(_counts, _matthews),
    }

    @property
    def positive(self) -> str | None:
        return self.info.labels[1] if len(self.info.labels) == 2 else None

    def metric_names(self, examples: Sequence[Text]) -> list[str]:
        return [name for name in self.metrics if name != "f1" or len(self.info.labels) == 2]

    def target(self, example: Text) -> int:
        return self.label_number(example.target, example.where)

    def rivals(self) -> Sequence[Rival]:
        fit = partial(fit_classes, classes=len(self.info.labels))
        return text_rivals(self.target, fit, LOGISTIC)

    def decode(self, outputs: Outputs, calibration: Calibration) -> list[Prediction]:
        return [
            {"label": self.info.labels[np.argmax(shares)], "probability": max(shares)}
            for shares in self.probabilities(outputs)
        ]

    def probabilities(self, outputs: Outputs) -> list[list[float]]:
        return [scipy.special.softmax(logits).tolist() for logits in mean_logits(outputs)]

    def decisions(self, row: Mapping[str, Any]) -> list[Decision]:
        return decide_best(row)

    def rules(self, train: Sequence[Text], test: Sequence[Text]) -> Rules:
        label = commonest(example.target for example in train)
        return {"majority": [{"label": label}] * len(test)}

    def baselines(self, train: Sequence[Text], test: Sequence[Text]) -> dict[str, dict[str, float]]:
        chance = {"accuracy": 1 / len(self.info.labels)}
        return super().baselines(train, test) | {"chance": chance}
