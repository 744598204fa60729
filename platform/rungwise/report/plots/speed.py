"""Plots of speed: tokens per second, MFU, and shares of the time."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from rungwise.pretraining.summary import GradientRun
from rungwise.report import style
from rungwise.report.formats import compact, percent
from rungwise.report.sections.speed import attempts


def draw_tokens_per_second(run: GradientRun) -> bytes:
    """Non-padding tokens per second between logged steps; vertical lines at worker restarts."""
    rates = np.array([row["tokens_per_second"] for row in run.timings])
    mean = run.throughput["tokens_per_second"]
    figure, axes = style.new_axes()
    axes.plot([row["step"] for row in run.timings], rates / 1e3, color=style.BLUE, linewidth=1.5)
    axes.axhline(mean / 1e3, color=style.GREEN, linestyle=(0, (5, 3)), linewidth=1.4, label="mean")
    # From 0, so that noise looks as small as it is.
    axes.set_ylim(0, 1.12 * float(max(rates.max(), mean)) / 1e3)
    style.dress(axes, f"{compact(mean)} tokens per second", "step", "thousand tokens per second")
    _mark_changes(axes, run)
    style.add_legend(axes)
    return style.png(figure)


def draw_shares(run: GradientRun) -> bytes:
    """MFU, and the shares of time spent waiting for data and stalled on checkpoints."""
    total, steps = run.throughput, [row["step"] for row in run.timings]
    figure, axes = style.new_axes()
    for key, label, colour, line in (
        ("mfu", "MFU", style.BLUE, "-"),
        ("data_wait_share", "waiting for data", style.VERMILLION, "--"),
        ("checkpoint_stall_share", "stalled on checkpoints", style.PURPLE, ":"),
    ):
        if key in total:
            values = [100 * row[key] for row in run.timings]
            label = f"{label}, overall {percent(total[key])}"
            axes.plot(steps, values, color=colour, linestyle=line, linewidth=1.6, label=label)
    title = f"Waiting for data: {percent(total['data_wait_share'])} of the time"
    if "mfu" in total:
        title = f"MFU {percent(total['mfu'])}; waiting for data {percent(total['data_wait_share'])}"
    # Room for the legend, and at least 1 % so that tiny shares do not fill the plot.
    axes.set_ylim(0, max(1.35 * axes.get_ylim()[1], 1.0))
    style.dress(axes, title, "step", "percent")
    _mark_changes(axes, run)
    style.add_legend(axes, "upper right")
    return style.png(figure)


def _mark_changes(axes: Axes, run: GradientRun) -> None:
    for attempt in attempts(run)[1:]:
        workers = f"{attempt.workers} worker{'s' if attempt.workers > 1 else ''}"
        style.mark_change(axes, attempt.from_step, f"resumed, {workers}")
    for change in run.length_changes:
        style.mark_change(axes, change.from_step, f"{change.sequence_length} tokens")
