"""Plots of sweeps: how trials went epoch by epoch.

Each task has its own panel, since scores of different tasks do not compare; each variant has its
own colour, marker and line.
"""

from collections.abc import Sequence

from matplotlib.ticker import MaxNLocator

from rungwise.report import palette, style
from rungwise.report.formats import metric_axis
from rungwise.report.sections.variants import VariantSweep

_PANEL_INCHES = 3.7


def draw_curves(sweeps: Sequence[VariantSweep]) -> bytes:
    """The validation score of every trial by epoch, with a cross where it was stopped and dotted
    lines where successive halving compares trials."""
    tasks: dict[str, list[VariantSweep]] = {}
    for sweep in sweeps:
        tasks.setdefault(sweep.task, []).append(sweep)
    figure, panels = style.new_panels(len(tasks), 2, _PANEL_INCHES, 0.5)
    for axes, (task, task_sweeps) in zip(panels, tasks.items(), strict=True):
        milestones = {epoch for sweep in task_sweeps for epoch in sweep.summary.milestones}
        for epoch in milestones:
            axes.axvline(
                epoch, color=palette.FAINT, linestyle=style.DOTTED, linewidth=1.4, zorder=0
            )
        for sweep in task_sweeps:
            for trial in sweep.summary.trials:
                if trial.score is None:
                    continue
                points = [(row.epoch, 100 * row.score) for row in trial.history]
                style.draw_trial(
                    *(axes, points, sweep.look, sweep.variant),
                    wins=trial.name == sweep.summary.best.name,
                    stopped=trial.stopped_early,
                    linestyle=sweep.look.line,
                )
                if len(points) == 1:
                    axes.scatter(*points[0], s=12, color=sweep.look.colour, zorder=2)
        ran = sum(s.summary.epochs_run for s in task_sweeps)
        title = f"{ran} of {sum(s.summary.grid_epochs for s in task_sweeps)} epochs run"
        title = f"{task}: {title}" if task and task != "sweep" else title
        x = "epoch (dotted: where trials are compared)" if milestones else "epoch"
        style.dress(axes, title, x, metric_axis(task_sweeps[0].summary.metric, "validation"))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.add_legend_below(figure, panels, last=["stopped early"])
    return style.png(figure)
