"""The sections about a pretraining by gradient: its losses by tokens, and its speed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from rungwise.core.wording import list_first
from rungwise.models.losses.objectives import Objective, Part
from rungwise.report import palette, style
from rungwise.report.formats import compact, number, percent
from rungwise.report.page import Section
from rungwise.report.sections.examples import Baseline
from rungwise.training.summary import GradientRun, PretrainSummary, Row

_TOKENS_READ = "tokens read (millions)"
_MOST_STEPS = 12


def write_loss(
    pretrain: PretrainSummary,
    baseline: Baseline | None,
    first: str,
    from_weights: bool,
    chosen: bool,
) -> Section | None:
    """The section about the loss; None without steps. `first` names the variant if there are
    several; with `from_weights` the model did not begin at random; with `chosen` its settings are
    the best of several on this text."""
    run, objective = pretrain.gradient, pretrain.model.objective(pretrain.objective)
    if run is None:
        return None
    fields = {
        "pretrain": pretrain,
        "final": pretrain.final,
        "objective": objective,
        "run": run,
        "baseline": baseline,
        "first": first,
        "from_weights": from_weights,
        "chosen": chosen,
        "ln_vocabulary": math.log(pretrain.vocab_size),
        "ln_2": math.log(2),
    }
    plots: dict[str, bytes | None] = {"loss": draw_loss(pretrain, run, objective)}
    if objective.pair:
        plots["pair"] = draw_pair_task(run, objective.pair)
    csv = {"training": run.history, "validation": run.validation}
    return Section("loss", "Pretraining loss", fields, plots, csv)


def write_speed(pretrain: PretrainSummary) -> Section | None:
    """The section about the speed; None without steps."""
    run = pretrain.gradient
    if run is None:
        return None
    fields = {
        "pretrain": pretrain,
        "run": run,
        "attempts": attempts(run),
        "setup": describe_setup(run),
        "mishaps": describe_mishaps(run),
    }
    return Section(
        "speed", "Speed", fields, {"speed": draw_tokens_per_second(run)}, {"speed": run.timings}
    )


@dataclass(frozen=True)
class AttemptRow:
    """One start of the training workers; `steps` counts those that are part of the result."""

    number: int
    from_step: int
    workers: int
    steps: int


def attempts(run: GradientRun) -> list[AttemptRow]:
    """Every start recorded in a checkpoint, in order."""
    begins = [row.step for row in run.attempts] + [run.steps]
    return [
        AttemptRow(place + 1, row.step, row.workers, begins[place + 1] - row.step)
        for place, row in enumerate(run.attempts)
    ]


def describe_setup(run: GradientRun) -> str:
    """One sentence: number of workers, parallelism and precision."""
    workers = run.attempts[-1].workers
    parallel = {
        "ddp": "each with the whole model (DDP)",
        "fsdp": "each with a shard of the model (FSDP2)",
    }
    precision = "bfloat16 matrix products" if run.bfloat16 else "float32"
    if workers == 1:
        return f"One worker ({run.device}), {precision}."
    return f"{workers} workers ({run.device} each), {parallel[run.parallel]}, {precision}."


def describe_mishaps(run: GradientRun) -> list[str]:
    """Sentences on skipped steps and loss spikes (even if there were none), the runs that this one
    continues, and early stopping."""
    sentences = [
        f"Steps skipped because their gradient was not finite: {_name_steps(run.skipped_steps)}.",
        f"Steps with a loss spike above the running median: {_name_steps(run.spikes)}.",
    ]
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


def draw_loss(pretrain: PretrainSummary, run: GradientRun, objective: Objective) -> bytes:
    """Training and validation loss against tokens, and the learning rate below; if the objective
    predicts text, with lines at ln V and the unigram loss."""
    tokens, key = objective.tokens, objective.tokens.loss_key
    figure = style.new_figure((style.WIDE[0], 5.2))
    axes, rates = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    uniform = math.log(pretrain.vocab_size)
    first, last = run.validation[0][key], pretrain.final[key]
    title = f"Validation {tokens.name} loss: from {first:.2f} to {last:.2f} nats"
    if objective.predicts_text:
        label = f"ln V = {uniform:.2f}: all tokens equally likely (untrained model)"
        axes.axhline(
            uniform, color=palette.PURPLE, linestyle=(0, (5, 3)), linewidth=1.5, label=label
        )
        _draw_unigram(axes, pretrain.unigram_loss, ": the best guess without context")
        title += f"; by frequency alone {pretrain.unigram_loss:.2f}"
    _draw_curves(axes, run, key, "training (mean since the previous point)")
    style.dress(axes, title, y=f"{tokens.name} loss (nats)")
    axes.margins(x=0.02)
    # Between the two lines, where the curves are only at the left.
    lowest, highest = axes.get_ylim()
    top = (uniform - lowest) / (highest - lowest) - 0.02 if objective.predicts_text else 1
    style.add_legend(axes, "upper right", bbox_to_anchor=(1, top))
    learning_rates = [row["learning_rate"] for row in run.history]
    rates.plot(_millions(run.history), learning_rates, color=palette.ORANGE, linewidth=1.6)
    rates.set_ylim(0, 1.15 * max(learning_rates))
    style.dress(rates, x=_TOKENS_READ, y="learning rate")
    for change in run.length_changes:
        place = _interpolate_millions(run, change.from_step)
        style.mark_change(axes, place, f"{change.sequence_length} tokens")
        style.mark_change(rates, place)
    return style.png(figure)


def draw_pair_task(run: GradientRun, task: Part) -> bytes:
    """Loss and accuracy of the pair task against tokens, with chance level."""
    figure = style.new_figure(style.HALF)
    upper, lower = figure.subplots(2, 1, sharex=True)
    for axes, key, scale, chance, bounds, label in (
        (upper, task.loss_key, 1.0, math.log(2), (0.55, 0.75), "chance"),
        (lower, task.accuracy_key, 100.0, 50.0, (40.0, 100.0), "chance (ln 2, 50%)"),
    ):
        values = _draw_curves(axes, run, key, "training", scale)
        axes.axhline(
            chance, color=palette.PURPLE, linestyle=(0, (5, 3)), linewidth=1.3, label=label
        )
        # A fixed minimum range, so that noise around chance does not look like learning.
        axes.set_ylim(min(*bounds, *values), max(*bounds, *values))
    accuracy = percent(run.validation[-1][task.accuracy_key])
    style.dress(upper, f"{task.name} accuracy ends at {accuracy}; chance is 50%", y="loss (nats)")
    style.dress(lower, x=_TOKENS_READ, y="accuracy (%)")
    style.add_legend(lower, "upper center", ncols=3)
    return style.png(figure)


def draw_tokens_per_second(run: GradientRun) -> bytes:
    """Non-padding tokens per second between logged steps; vertical lines at worker restarts and
    longer sequences."""
    rates = np.array([row["tokens_per_second"] for row in run.timings])
    mean = run.throughput["tokens_per_second"]
    figure, axes = style.new_axes(style.WIDE)
    axes.plot([row["step"] for row in run.timings], rates / 1e3, color=palette.BLUE, linewidth=1.5)
    axes.axhline(
        mean / 1e3, color=palette.GREEN, linestyle=(0, (5, 3)), linewidth=1.4, label="mean"
    )
    # From 0, so that noise looks as small as it is.
    axes.set_ylim(0, 1.12 * float(max(rates.max(), mean)) / 1e3)
    style.dress(axes, f"{compact(mean)} tokens per second", "step", "thousand tokens per second")
    for attempt in attempts(run)[1:]:
        workers = f"{attempt.workers} worker{'s' if attempt.workers > 1 else ''}"
        style.mark_change(axes, attempt.from_step, f"resumed, {workers}")
    for change in run.length_changes:
        style.mark_change(axes, change.from_step, f"{change.sequence_length} tokens")
    style.add_legend(axes)
    return style.png(figure)


def _interpolate_millions(run: GradientRun, step: int) -> float:
    """Millions of tokens read after a step, interpolated between logged rows."""
    rows = sorted([*run.history, *run.validation], key=lambda row: row["step"])
    return float(np.interp(step, [row["step"] for row in rows], _millions(rows)))


def _draw_unigram(axes: Axes, loss: float, meaning: str = "") -> None:
    label = f"by frequency alone = {loss:.2f}{meaning}"
    axes.axhline(loss, color=palette.GREEN, linestyle=(0, (1.5, 1.5)), linewidth=2, label=label)


def _draw_curves(
    axes: Axes, run: GradientRun, key: str, training: str, scale: float = 1.0
) -> list[float]:
    """Draw the training curve, labelled `training`, and validation; return all their values."""
    history = [scale * row[key] for row in run.history]
    axes.plot(_millions(run.history), history, color=palette.SKY, linewidth=1.4, label=training)
    validation = [scale * row[key] for row in run.validation]
    look: Any = {"color": palette.BLUE, "linewidth": 1.8, "marker": "o", "markersize": 5}
    axes.plot(_millions(run.validation), validation, label="validation", **look)
    return history + validation


def _millions(rows: Sequence[Row]) -> list[float]:
    """Millions of tokens read by each row."""
    return [row["tokens"] / 1e6 for row in rows]
