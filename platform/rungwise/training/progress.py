"""Where a run is, as plain data, and the rows of it that are reported.

A row has a step and numbers by name. It is kept in the progress, which a checkpoint saves, and goes
to the reporter as points of curves: `train/loss`, `system/mfu`, `validation/loss`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rungwise.core.errors import UserError
from rungwise.core.stages.context import Reporter
from rungwise.models.losses.objectives import Objective

Values = Mapping[str, float]  # by name


@dataclass
class Progress:
    """Where a run is, as plain data."""

    step: int = 0  # updates done; the next one reads positions from step x global batch size
    tokens: int = 0  # without padding
    flops: float = 0.0  # operations for them by the counting rule; 0 if unknown
    skipped: list[int] = field(default_factory=list)  # steps whose gradient was not finite
    spikes: list[int] = field(default_factory=list)  # steps whose loss stood out
    recent: list[float] = field(default_factory=list)  # losses that the next is compared with
    outliers: list[int] = field(default_factory=list)  # steps skipped because they stood out
    compared: list[list[float]] = field(default_factory=list)  # [loss, norm], for outliers
    data_hash: str = ""  # of the instances of all steps so far (feed.py)
    data: list[list[Any]] = field(default_factory=list)  # [step, data_hash] at logged steps
    history: list[dict[str, float]] = field(default_factory=list)  # one row per logged step
    validation: list[dict[str, float]] = field(default_factory=list)
    pending: list[list[float]] = field(default_factory=list)  # a row per step since the last logged
    # Times and workers are excluded from comparison: two runs in the same state may differ in them.
    seconds: float = field(default=0.0, compare=False)  # in the loop, over all attempts
    timings: list[dict[str, float]] = field(default_factory=list, compare=False)
    saves: list[dict[str, float]] = field(default_factory=list, compare=False)
    attempts: list[dict[str, int]] = field(default_factory=list, compare=False)
    prolonged: list[dict[str, Any]] = field(default_factory=list, compare=False)  # earlier runs


@dataclass(frozen=True)
class Saved:
    """The outcome of one save. `error` is empty if the checkpoint is valid."""

    step: int
    save_seconds: float  # of the writing thread
    stall_seconds: float  # of training
    megabytes: float  # of this worker's part
    error: str = ""


def report_again(progress: Progress, report: Reporter) -> None:
    """Report all that a checkpoint remembers: workers outlive a killed driver by some steps, whose
    reports are lost. Points that arrived before are dropped (tracking)."""
    for earlier in progress.prolonged[-1:]:
        if earlier["step"] == progress.step:
            name = f"{earlier['label']}-{earlier['fingerprint']}"
            report.note(f"goes on from step {progress.step} of {name}")
    for prefix, rows in (
        ("train/", progress.history),
        ("system/", progress.timings),
        ("validation/", progress.validation),
        ("system/checkpoint_", progress.saves),
    ):
        for row in rows:
            _report_row(report, prefix, row)


def log_step(progress: Progress, values: Values, timing: Values, report: Reporter) -> None:
    """Log the metrics of the steps since the last logged one, and their times."""
    row = {"step": progress.step, "tokens": progress.tokens, **values}
    timing = {**timing, "attempts": len(progress.attempts)}
    progress.history.append(row)
    progress.timings.append(timing)
    _report_row(report, "train/", row)
    _report_row(report, "system/", timing)


def log_validation(progress: Progress, row: dict[str, float], report: Reporter) -> None:
    """Log a validation. Raises UserError if its loss is not finite."""
    if not math.isfinite(row["loss"]):
        raise UserError(
            f"the validation loss is not finite at step {row['step']}; lower "
            "pretrain.optimizer.learning_rate or raise its schedule.warmup_fraction"
        )
    progress.validation.append(row)
    _report_row(report, "validation/", row)


def log_saves(progress: Progress, saves: list[Saved], report: Reporter) -> None:
    """Log the outcomes of saves and empty their list."""
    for saved in saves:
        row = {
            "step": saved.step,
            "valid": float(not saved.error),
            "save_seconds": saved.save_seconds,
            "stall_seconds": saved.stall_seconds,
            "megabytes": saved.megabytes,
        }
        progress.saves.append(row)
        _report_row(report, "system/checkpoint_", row)
        if saved.error:
            report.note(
                f"the checkpoint of step {saved.step} is not written, the one before it stays: "
                f"{saved.error}"
            )
    saves.clear()


def check_start(values: Values, objective: Objective, words: float, report: Reporter) -> None:
    """Compare the first losses of random weights with their expected values; `words` is that of
    predicting a word."""
    for part in (objective.tokens, objective.pair):
        if part is None or not objective.predicts_text:
            continue
        loss, expected = values[part.loss_key], part.expected_start(words)
        if abs(loss - expected) > part.start_tolerance:
            report.note(
                f"{part.key} loss before the first step is {loss:.3f}, expected about "
                f"{expected:.3f}: look at model.initializer_range, the labels, and the vocabulary "
                "size"
            )


def _report_row(report: Reporter, prefix: str, row: Values) -> None:
    values = {f"{prefix}{name}": value for name, value in row.items() if name != "step"}
    report.metrics(values, int(row["step"]))
