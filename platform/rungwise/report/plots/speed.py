"""Plot of speed: tokens per second by step."""

from __future__ import annotations

import numpy as np

from rungwise.pretraining.summary import GradientRun
from rungwise.report import style
from rungwise.report.formats import compact
from rungwise.report.sections.speed import attempts


def draw_tokens_per_second(run: GradientRun) -> bytes:
    """Non-padding tokens per second between logged steps; vertical lines at worker restarts and
    longer sequences."""
    rates = np.array([row["tokens_per_second"] for row in run.timings])
    mean = run.throughput["tokens_per_second"]
    figure, axes = style.new_axes(style.WIDE)
    axes.plot([row["step"] for row in run.timings], rates / 1e3, color=style.BLUE, linewidth=1.5)
    axes.axhline(mean / 1e3, color=style.GREEN, linestyle=(0, (5, 3)), linewidth=1.4, label="mean")
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
