"""A toy task kind in one file: how many of something a text has, by Poisson regression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from torch import Tensor
from torch.nn import functional

from rungwise.tasks.formats.texts import TableFormat
from rungwise.tasks.kinds.examples import TaskInfo, Text
from rungwise.tasks.kinds.items import Item
from rungwise.tasks.kinds.kind import Calibration, Outputs, Prediction, Rules
from rungwise.tasks.kinds.labels import SentenceKind, mean_logits
from rungwise.tasks.scoring.metrics import Numbers, Predictions, TaskMetric, mean, means


def _count_near(most: int, predictions: Predictions, examples: Sequence[Text]) -> Numbers:
    pairs = zip(predictions, examples, strict=True)
    return means([abs(p["count"] - e.number) <= most for p, e in pairs])


def _exact(predictions: Predictions, examples: Sequence[Text], info: TaskInfo) -> Numbers:
    return _count_near(0, predictions, examples)


def _near(predictions: Predictions, examples: Sequence[Text], info: TaskInfo) -> Numbers:
    return _count_near(1, predictions, examples)


class Count(SentenceKind):
    """Predicts {"count"}. The logit is the logarithm of the rate."""

    name = "count"
    answer = "count"
    numeric = True
    words = "how many there are in {input}"
    metrics: ClassVar[Mapping[str, TaskMetric]] = {
        "exact_match": TaskMetric(_exact, mean),
        "within_one": TaskMetric(_near, mean),
    }

    def target(self, example: Text) -> float:
        return example.number

    @staticmethod
    def loss_sums(
        logits: Tensor, targets: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, int]:
        return functional.poisson_nll_loss(logits[:, 0], targets, reduction="sum"), len(targets)

    def split_logits(self, logits: Tensor, items: Sequence[Item]) -> Tensor:
        return logits[:, 0]

    def decode(self, outputs: Outputs, calibration: Calibration) -> list[Prediction]:
        return [{"count": round(float(np.exp(logit)))} for logit in mean_logits(outputs)]

    def rules(self, train: Sequence[Text], test: Sequence[Text]) -> Rules:
        median = round(float(np.median([example.number for example in train])))
        return {"median": [{"count": median}] * len(test)}

    def example_score(self, row: Mapping[str, Any]) -> float:
        return abs(row["prediction"] - row["gold"])


class CountTable(TableFormat):
    """A table with a column of counts, its `score`."""

    @property
    def task_kind(self) -> str:
        return Count.name
