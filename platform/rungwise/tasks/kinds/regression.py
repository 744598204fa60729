"""One number for a text or a pair of texts. Spearman's correlation is Pearson's of ranks, which are
computed once, on the whole set, and not within each resample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from rungwise.core.errors import DataError
from rungwise.tasks.kinds.examples import TaskInfo, Text
from rungwise.tasks.kinds.items import Item
from rungwise.tasks.kinds.kind import Calibration, Outputs, Prediction, Rules
from rungwise.tasks.kinds.rivals import Rival, fit_numbers, text_rivals
from rungwise.tasks.kinds.sentences import SentenceKind, mean_logits
from rungwise.tasks.scoring.metrics import Numbers, Predictions, TaskMetric, mean, means, ratio

if TYPE_CHECKING:
    from torch import Tensor

_ROUNDING = 1e-12  # a variance below this share of the sum of squares counts as zero


def _both(predictions: Predictions, examples: Sequence[Text]) -> tuple[Numbers, Numbers]:
    predicted = np.array([float(prediction["score"]) for prediction in predictions])
    return predicted, np.array([example.number for example in examples])


def _moments(x: Numbers, y: Numbers) -> Numbers:
    """(N, 6): 1, x, y, x², y², xy, where x is the prediction and y the target."""
    # Shifting loses fewer digits when squares are subtracted; constants become exact zeros.
    x, y = (z - z[:1] for z in (x, y))
    return np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], axis=1)


def _count_numbers(predictions: Predictions, examples: Any, info: TaskInfo) -> Numbers:
    return _moments(*_both(predictions, examples))


def _count_ranks(predictions: Predictions, examples: Any, info: TaskInfo) -> Numbers:
    from scipy.stats import rankdata  # takes a second to import

    x, y = _both(predictions, examples)
    return _moments(rankdata(x), rankdata(y))


def _count_errors(predictions: Predictions, examples: Any, info: TaskInfo) -> Numbers:
    x, y = _both(predictions, examples)
    return means((x - y) ** 2)


def _correlation(totals: Numbers) -> Numbers:
    n, x, y, xx, yy, xy = np.moveaxis(totals, -1, 0)
    variance_x, variance_y = (
        np.where(n * squares - total**2 > _ROUNDING * n * squares, n * squares - total**2, 0.0)
        for squares, total in ((xx, x), (yy, y))
    )
    return ratio(n * xy - x * y, np.sqrt(variance_x) * np.sqrt(variance_y))


class Regression(SentenceKind):
    """Predicts {"score"}."""

    name = "regression"
    answer = "score"
    real_targets = numeric = True
    words = "a number for {input}"
    score_name = "mean absolute error"
    metrics: ClassVar[Mapping[str, TaskMetric]] = {
        "pearson": TaskMetric(_count_numbers, _correlation),
        "spearman": TaskMetric(_count_ranks, _correlation),
        "mean_squared_error": TaskMetric(_count_errors, mean, selects=False),
    }

    def target(self, example: Text) -> float:
        if isinstance(example.target, str):
            raise DataError(
                f"{example.where}: expected a number as target, found {example.target!r}"
            )
        return example.number

    @staticmethod
    def loss_sums(
        logits: Tensor, targets: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, int]:
        """Return the sum of the squared errors, and their number."""
        from torch.nn import functional

        return functional.mse_loss(logits[:, 0], targets, reduction="sum"), len(targets)

    def split_logits(self, logits: Tensor, items: Sequence[Item]) -> Tensor:
        return logits[:, 0]

    def example_score(self, row: Mapping[str, Any]) -> float:
        return abs(row["prediction"] - row["gold"])

    def rivals(self) -> Sequence[Rival]:
        return text_rivals(self.target, fit_numbers, "ridge regression")

    def decode(self, outputs: Outputs, calibration: Calibration) -> list[Prediction]:
        return [{"score": float(score)} for score in mean_logits(outputs)]

    def rules(self, train: Sequence[Text], test: Sequence[Text]) -> Rules:
        score = float(np.mean([example.number for example in train]))
        return {"mean": [{"score": score}] * len(test)}
