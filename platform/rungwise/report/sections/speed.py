"""The speed section: how a run went, in words, and its attempts, from the pretrain summary."""

from collections.abc import Sequence
from dataclasses import dataclass

from rungwise.core.plural import list_first
from rungwise.pretraining.summary import GradientRun
from rungwise.report.formats import number

_MOST_STEPS = 12


@dataclass(frozen=True)
class Attempt:
    """One start of the training workers; `steps` counts those that are part of the result."""

    number: int
    from_step: int
    workers: int
    steps: int


def attempts(run: GradientRun) -> list[Attempt]:
    """Every start recorded in a checkpoint, in order."""
    begins = [row.step for row in run.attempts] + [run.steps]
    return [
        Attempt(place + 1, row.step, row.workers, begins[place + 1] - row.step)
        for place, row in enumerate(run.attempts)
    ]


def describe_setup(run: GradientRun) -> str:
    """One sentence: number of workers, parallelism and precision."""
    workers = run.attempts[-1].workers
    parallel = {
        "ddp": "each with the whole model (DDP)",
        "fsdp": "each with a shard of the model (FSDP2)",
        "hybrid": "in groups that share one copy of the model (hybrid sharding)",
    }
    precision = "bfloat16 matrix products" if run.bfloat16 else "float32"
    if workers == 1:
        return f"One worker ({run.device}), {precision}."
    return f"{workers} workers ({run.device} each), {parallel[run.parallel]}, {precision}."


def describe_mishaps(run: GradientRun) -> list[str]:
    """Sentences on skipped steps and loss spikes (even if there were none), outlier steps, the runs
    that this one continues, and early stopping."""
    sentences = [
        f"Steps skipped because their gradient was not finite: {_name_steps(run.skipped_steps)}.",
        f"Steps with a loss spike above the running median: {_name_steps(run.spikes)}.",
    ]
    if run.outlier_steps:
        sentences.append(f"Steps left out as outliers: {_name_steps(run.outlier_steps)}.")
    sentences += [
        f"The run continued {before.label}-{before.fingerprint} from step {number(before.step)}; "
        "both have the steps up to there in common."
        for before in run.prolonged
    ]
    if run.stopped_early:
        sentences.append(
            f"The run ended at step {number(run.steps)}, before the end of its schedule: a "
            "budget was used up, or the validation loss stopped falling."
        )
    return sentences


def _name_steps(steps: Sequence[int]) -> str:
    if not steps:
        return "none"
    return f"{len(steps)} (step {list_first(map(number, steps), _MOST_STEPS)})"
