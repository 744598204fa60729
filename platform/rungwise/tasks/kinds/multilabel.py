"""Any number of labels for a text: those with a probability above a threshold.

One threshold serves all labels and is chosen on the validation split: the best one for F1 is half
of the highest possible F1, so never above 0.5 (Lipton et al. 2014, arXiv:1402.1892).

Shapes: N examples, C labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from rungwise.tasks.kinds.examples import TaskInfo, Text
from rungwise.tasks.kinds.items import Item
from rungwise.tasks.kinds.sentences import pooled
from rungwise.tasks.scoring import metrics

THRESHOLD = "label_threshold"
_TRIED = np.arange(1, 100) / 100


def decode(
    outputs: Sequence[NDArray[Any]],
    items: Sequence[Item],
    info: TaskInfo,
    calibration: Mapping[str, float],
) -> list[dict[str, Any]]:
    """Predict {"labels", "probabilities"} for each example: labels in alphabetical order,
    probabilities of all labels in the order of the task."""
    threshold = calibration.get(THRESHOLD, 0.5)
    return [
        {
            "labels": sorted(info.labels[place] for place in np.flatnonzero(share_C > threshold)),
            "probabilities": share_C.tolist(),
        }
        for share_C in map(expit, pooled(outputs, items))
    ]


def calibrate(
    outputs: Sequence[NDArray[Any]],
    items: Sequence[Item],
    examples: Sequence[Text],
    info: TaskInfo,
) -> dict[str, float]:
    """Return the threshold, in hundredths, with the best `info.metric` on these examples.

    Of equally good ones, the nearest to 0.5.
    """
    share_NC = expit(np.stack(pooled(outputs, items)))
    gold_NC = metrics.indicators([example.target for example in examples], info)
    totals = [metrics.label_sums(share_NC > t, gold_NC, info).sum(axis=0) for t in _TRIED]
    scores = metrics.value(np.stack(totals), info)
    best = max(range(len(_TRIED)), key=lambda n: (scores[n], -abs(_TRIED[n] - 0.5)))
    return {THRESHOLD: float(_TRIED[best])}
