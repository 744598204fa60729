"""Decode the logits of windows into the answer in the text, or into no answer.

The score of a span is the sum of its start and end logits; the best over all windows wins. The
released SQuAD code lets a token begin an answer only in the window with the most context around it.
Here it may in any window, because that rule hides an answer that is whole in another window only.
The score of no answer is that of the row's first token, the lowest over the windows. It wins if it
exceeds the best span by more than a threshold chosen on the validation split (Devlin et al. 2019,
section 4.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rungwise.tasks.kinds.examples import Question, TaskInfo
from rungwise.tasks.kinds.items import Item
from rungwise.tasks.scoring import squad_rules

THRESHOLD = "null_threshold"
_NO_TOKEN = 1e9  # lead of no answer if the context has no token


@dataclass
class _Best:
    """The best span of an example over its windows, and the lowest score of no answer."""

    score: float = -np.inf
    start: int = 0
    end: int = 0
    no_answer: float = field(default=np.inf)


def decode(
    outputs: Sequence[NDArray[Any]],
    items: Sequence[Item],
    examples: Sequence[Question],
    calibration: Mapping[str, float],
    max_answer_tokens: int,
) -> list[dict[str, Any]]:
    """Predict {"text", "start", "end", "no_answer_score"} for each example.

    `text` is exactly `context[start:end]`, empty for no answer; without a threshold in
    `calibration` every context with a token has one. `no_answer_score` is the lead of no answer
    over the best span.
    """
    best = [_Best() for _ in examples]
    for output, item in zip(outputs, items, strict=True):
        _take(best[item.example], np.asarray(output, np.float64), item, max_answer_tokens)
    threshold = calibration.get(THRESHOLD, np.inf)
    predictions = []
    for example, span in zip(examples, best, strict=True):
        difference = span.no_answer - span.score if span.end else _NO_TOKEN
        start, end = (0, 0) if difference > threshold else (span.start, span.end)
        predictions.append(
            {
                "text": example.context[start:end],
                "start": start,
                "end": end,
                "no_answer_score": float(difference),
            }
        )
    return predictions


def calibrate(
    outputs: Sequence[NDArray[Any]],
    items: Sequence[Item],
    examples: Sequence[Question],
    info: TaskInfo,
    max_answer_tokens: int,
) -> dict[str, float]:
    """Return the threshold with the best `info.metric`, exact match or else F1, on these examples.

    The lowest of equally good thresholds; {} if all examples have answers.
    """
    if all(example.answers for example in examples):
        return {}
    answered = decode(outputs, items, examples, {}, max_answer_tokens)
    which = 0 if info.metric == "exact_match" else 1
    if_answered = [
        squad_rules.of_example(prediction["text"], example)[which]
        for prediction, example in zip(answered, examples, strict=True)
    ]
    if_not = [squad_rules.of_example("", example)[which] for example in examples]
    scores = np.array([prediction["no_answer_score"] for prediction in answered])
    order = np.argsort(scores, kind="stable")
    gains = np.array(if_answered)[order] - np.array(if_not)[order]
    # Gain over answering none if the first k in this order are answered, for k = 0 to all.
    totals = np.concatenate([[0.0], np.cumsum(gains)])
    ranked = scores[order]
    # A threshold cannot separate examples of equal score.
    parts = np.concatenate([[True], ranked[1:] > ranked[:-1], [True]])
    k = int(np.where(parts, totals, -np.inf).argmax())
    return {THRESHOLD: float(ranked[k - 1] if k else ranked[0] - 1.0)}


def _take(best: _Best, logits: NDArray[np.float64], item: Item, max_answer_tokens: int) -> None:
    best.no_answer = min(best.no_answer, float(logits[0].sum()))
    count = len(item.places)
    held = np.array([start < end for start, end in item.places], bool)
    if not held.any():
        return
    second = item.rows[0].second
    starts, ends = np.where(held[:, None], logits[second : second + count], -np.inf).T
    longest = min(max_answer_tokens, count)
    # scores[s, l]: the span of tokens s to s + l.
    padded = np.concatenate([ends, np.full(longest - 1, -np.inf)])
    scores = starts[:, None] + np.lib.stride_tricks.sliding_window_view(padded, longest)
    first, more = divmod(int(scores.argmax()), longest)
    if scores[first, more] > best.score:
        best.score = float(scores[first, more])
        best.start, best.end = item.places[first][0], item.places[first + more][1]
