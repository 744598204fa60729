"""The speed section: a run's rates, cost and attempts, in words and as rows.

All of it is in the summary of the pretrain stage; nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rungwise.pretraining.summary import GradientRun
from rungwise.report.formats import compact, duration, number, percent

_STEPS_NAMED = 12


@dataclass(frozen=True)
class Attempt:
    """One start of the training workers; `kept` counts the steps that are part of the result."""

    number: int
    from_step: int
    workers: int
    kept: int


def attempts(run: GradientRun) -> list[Attempt]:
    """Every start that a checkpoint remembers, in their order."""
    begins = [row.step for row in run.attempts] + [run.steps]
    return [
        Attempt(place + 1, row.step, row.workers, begins[place + 1] - row.step)
        for place, row in enumerate(run.attempts)
    ]


def facts(run: GradientRun, tokens: int) -> list[tuple[str, str, str]]:
    """Rows of the table: what, how much, and how it is meant. `tokens` are those of the run."""
    total = run.throughput
    rows = [
        (
            "tokens a second",
            number(total["tokens_per_second"]),
            "real tokens, padding left out; without start-up and validation",
        ),
        ("time of a step", duration(total["step_seconds"], 3), "the mean, likewise"),
        ("waiting for data", percent(total["data_wait_share"], 2), "of training time"),
        (
            "standing still for checkpoints",
            percent(total["checkpoint_stall_share"], 2),
            "of training time",
        ),
    ]
    if "mfu" in total:
        rows.insert(
            2,
            (
                "model FLOPs utilisation (MFU)",
                percent(total["mfu"]),
                f"of {compact(total['matmul_flops_per_second'])}FLOP a second, which the workers "
                "reached together in large matrix products, measured at each start",
            ),
        )
    if "checkpoint_save_seconds" in total:
        rows.append(
            (
                "saving a checkpoint",
                duration(total["checkpoint_save_seconds"], 3),
                "the mean, in the background; training stood still for "
                f"{duration(total['checkpoint_stall_seconds'], 3)} of it",
            )
        )
    if total["checkpoints_failed"]:
        rows.append(
            (
                "checkpoints not written",
                number(total["checkpoints_failed"]),
                "the one before stayed in use",
            )
        )
    if "cost" in total:
        a_million = total["cost"] / tokens * 1e6
        rows += [
            (
                "cost",
                money(total["cost"]),
                f"{duration(total['seconds'])} in the loop, validation included, at "
                f"{money(total['price_per_hour'])} an hour for all machines",
            ),
            ("cost of a million tokens", money(a_million), "that cost over all tokens"),
        ]
    return rows


def how(run: GradientRun) -> str:
    """One sentence: on how many workers, shared how, in which precision."""
    workers = run.attempts[-1].workers
    shared = {
        "ddp": "each with the whole model (DDP)",
        "fsdp": "each with a part of the model (FSDP2)",
        "hybrid": "in groups that hold one model together (hybrid sharding)",
    }
    precision = "bfloat16 matrix products" if run.bfloat16 else "float32"
    if workers == 1:
        return f"One worker ({run.device}), {precision}."
    return f"{workers} workers ({run.device} each), {shared[run.parallel]}, {precision}."


def mishaps(run: GradientRun) -> list[str]:
    """Skipped steps and spikes, counted and named; said as well if there were none."""
    sentences = [
        f"Steps skipped because their gradient was not finite: {_named(run.skipped_steps)}.",
        f"Steps whose loss stood out above the running median: {_named(run.spikes)}.",
    ]
    if run.stopped_early:
        sentences.append(
            f"The run ended at step {number(run.steps)}, before the last one of its "
            "schedule: a budget was spent, or the validation loss no longer fell."
        )
    return sentences


def money(value: float) -> str:
    """Below one with two significant digits. There is no currency, for the price had none."""
    return f"{value:.2g}" if 0 < value < 0.995 else f"{value:,.2f}"


def _named(steps: Sequence[int]) -> str:
    if not steps:
        return "none"
    shown = ", ".join(number(step) for step in steps[:_STEPS_NAMED])
    more = f" and {len(steps) - _STEPS_NAMED} more" if len(steps) > _STEPS_NAMED else ""
    return f"{len(steps)} (step {shown}{more})"
