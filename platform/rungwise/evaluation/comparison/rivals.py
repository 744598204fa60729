"""The rivals of an evaluation: what people use without pretraining, on the very same examples.

    rival of the task's kind ──> fit on train ──> strength by validation ──> scores and predictions

Each is one Ray task of a core. Nothing in it is random, so there are no seeds, and another attempt
of the stage says the same.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rungwise.core.stages.artifact import Artifact
from rungwise.tasks.data.files import read_splits
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import TaskSummary
from rungwise.tasks.kinds.kind import Outputs
from rungwise.tasks.kinds.rivals import row_items


@dataclass(frozen=True)
class RivalRun:
    """A rival with the strength that is best on validation, its metrics by split, and its
    predictions of the test split."""

    name: str
    short: str
    strength: float
    scores: dict[str, dict[str, float]]
    predictions: list[dict[str, Any]]
    seconds: float


def start_rivals(task: Artifact, noise: Sequence[float]) -> list[Any]:
    """Start every rival of a task; returns Ray's references to their runs."""
    import ray

    rivals = task_kind(TaskSummary.of(task).info).rivals()
    run = ray.remote(num_cpus=1)(run_rival)
    return [run.remote(task, number, noise) for number in range(len(rivals))]


def run_rival(task: Artifact, number: int, noise: Sequence[float]) -> RivalRun:
    """Fit, tune and score one of the rivals of a task. Of strengths that are equally good on
    validation the smallest is taken, which trusts the training examples least."""
    start = time.monotonic()
    kind = task_kind(TaskSummary.of(task).info)
    rival, splits = kind.rivals()[number], read_splits(task, noise)
    train, metric = splits.pop("train"), kind.info.metric
    runs: list[RivalRun] = []
    for strength, values in rival.fit_strengths(train, splits):
        outputs = {
            split: Outputs(arrays, row_items(arrays), splits[split])
            for split, arrays in values.items()
        }
        calibration = kind.calibrate(outputs["validation"])
        answers = {split: kind.decode(each, calibration) for split, each in outputs.items()}
        scores = {split: kind.score(each, splits[split]) for split, each in answers.items()}
        shares = kind.probabilities(outputs["test"])
        predictions = [
            answer if share is None else {**answer, "probabilities": share}
            for answer, share in zip(answers["test"], shares, strict=True)
        ]
        seconds = round(time.monotonic() - start, 1)
        runs.append(RivalRun(rival.name, rival.short, strength, scores, predictions, seconds))
    best = max(runs, key=lambda each: (each.scores["validation"][metric], -each.strength))
    return RivalRun(**{**vars(best), "seconds": runs[-1].seconds})
