"""What the leading worker tells of a run, and what of it the progress remembers."""

from __future__ import annotations

import math
from typing import Any

from rungwise.core.context import Reporter
from rungwise.core.errors import UserError
from rungwise.models.objectives import Objective
from rungwise.training.checkpoint import Checkpoints
from rungwise.training.parallel import Group
from rungwise.training.progress import Progress
from rungwise.training.throughput import Clock

# How far a loss may be from its expected start, in nats, before it is named.
_START_TOLERANCE = {"mlm": 0.5, "lm": 0.5, "bidirectional": 0.5, "nsp": 0.15, "sop": 0.15}


def log_step(
    progress: Progress,
    values: dict[str, float],
    rate: float,
    clock: Clock,
    total_steps: int,
    report: Reporter,
) -> None:
    row = {"step": progress.step, "tokens": progress.tokens, "learning_rate": rate, **values}
    timing = clock.timing(progress)
    progress.history.append(row)
    progress.timings.append(timing)
    _report_row(report, "train", row)
    _report_row(report, "throughput", timing)
    report.progress(
        progress.step,
        total_steps,
        loss=values["loss"],
        **{"tokens/s": timing["tokens_per_second"]},
        **({"mfu": timing["mfu"]} if "mfu" in timing else {}),
    )


def report_saves(
    checkpoints: Checkpoints, progress: Progress, report: Reporter, group: Group
) -> None:
    for saved in checkpoints.settled:
        progress.saves.append(
            {
                "step": saved.step,
                "valid": float(not saved.error),
                "save_seconds": saved.save_seconds,
                "stall_seconds": saved.stall_seconds,
                "megabytes": saved.megabytes,
            }
        )
        if not group.leads:
            continue
        _report_row(report, "checkpoint", progress.saves[-1])
        if saved.error:
            report.note(
                f"the checkpoint of step {saved.step} is not written, the one before it stays: "
                f"{saved.error}"
            )
    checkpoints.settled.clear()


def record_validation(
    progress: Progress, values: dict[str, float], report: Reporter, group: Group
) -> None:
    if not math.isfinite(values["loss"]):
        raise UserError(
            f"the validation loss is not finite at step {progress.step}; lower "
            "pretrain.optimizer.learning_rate or raise its schedule.warmup_fraction"
        )
    row = {"step": progress.step, "tokens": progress.tokens, **values}
    progress.validation.append(row)
    if group.leads:
        _report_row(report, "validation", row)


def _report_row(report: Reporter, prefix: str, row: dict[str, float]) -> None:
    values = {f"{prefix}/{name}": value for name, value in row.items() if name != "step"}
    report.metrics(values, int(row["step"]))


def report_again(progress: Progress, report: Reporter) -> None:
    """Tell all that a checkpoint remembers: workers outlive a killed driver by some steps, and what
    they reported then reached nobody. Points that arrived before are dropped (tracking.py)."""
    for prefix, rows in (
        ("train", progress.history),
        ("throughput", progress.timings),
        ("validation", progress.validation),
        ("checkpoint", progress.saves),
    ):
        for row in rows:
            _report_row(report, prefix, row)


def check_start(
    values: dict[str, float],
    objective: Objective[Any],
    vocab_size: int,
    report: Reporter,
    group: Group,
) -> None:
    if not group.leads:
        return
    for part, expected in objective.expected_initial_losses(vocab_size).items():
        found = values[f"{part}_loss"]
        if abs(found - expected) > _START_TOLERANCE[part]:
            report.note(
                f"{part} loss before the first step is {found:.3f}, expected about {expected:.3f} "
                f"({'ln 2' if part in ('nsp', 'sop') else 'ln V'}): look at "
                "model.initializer_range, the labels, and the vocabulary size"
            )
