"""The section about tuning: searches over pretraining, sweeps over fine-tuning, and what depends
on how much was tried."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator

from rungwise.core.stages.artifact import Artifact
from rungwise.core.wording import list_first
from rungwise.evaluation.comparison.claims import ClaimsSummary
from rungwise.evaluation.search.record import SearchSummary
from rungwise.evaluation.suites.section import Panel, Point, plot_value
from rungwise.report import palette, style
from rungwise.report.formats import metric_axis, scale
from rungwise.report.page import Section
from rungwise.report.palette import Series
from rungwise.report.sections.variants import Row, VariantSweep, select_stage
from rungwise.tasks.scoring.metrics import format_metric
from rungwise.tuning.config import describe_values
from rungwise.tuning.record import tabulate

_COLUMNS = 2
_NAMED = 8


@dataclass(frozen=True)
class Tuned:
    """The search of a rung and how the rung is drawn."""

    rung: str
    look: Series
    summary: SearchSummary

    @property
    def shown(self) -> Mapping[str, str]:
        """Scores as they are written."""
        summary, metric = self.summary, self.summary.metric
        winner = summary.winner_scores
        return {
            "best": format_metric(winner[0], metric),
            "worst": format_metric(summary.worst, metric),
            "one": format_metric(summary.expected[0], metric),
            "mean": format_metric(fmean(winner), metric),
            "spread": format_metric(stdev(winner), metric) if len(winner) > 1 else "",
        }

    @property
    def values(self) -> str:
        return describe_values(self.summary.best.values)

    @property
    def failed(self) -> int:
        return sum(trial.score is None for trial in self.summary.trials)


def gather_searches(
    inputs: Mapping[str, Artifact], looks: Mapping[str, Series], names: Mapping[str, str]
) -> list[Tuned]:
    """Every search of a run; `names` are those of variants on the page, where they differ."""
    summaries = [SearchSummary.of(each) for each in select_stage(inputs, "search").values()]
    rungs = [names.get(each.variant, each.variant) for each in summaries]
    return [
        Tuned(rung, looks.get(rung) or palette.series(place), summary)
        for place, (rung, summary) in enumerate(zip(rungs, summaries, strict=True))
    ]


def describe_untuned(searches: Sequence[Tuned], rungs: Iterable[str]) -> str:
    """A sentence that names the rungs that were not tuned beside those that were; "" if none."""
    tuned = {each.rung for each in searches}
    others = [rung for rung in rungs if rung not in tuned]
    if not searches or not others:
        return ""
    return (
        f"Not tuned: {list_first(others, _NAMED)}. They have the settings of the recipe, so where "
        "one of them loses to a tuned rung it may be for want of tuning."
    )


def list_untuned(searches: Sequence[Tuned], claims: ClaimsSummary) -> dict[str, list[str]]:
    """The rungs that were not tuned, of each claim that compares them with tuned ones."""
    tuned, untuned = {each.rung for each in searches}, dict[str, list[str]]()
    for claim in claims.claims:
        tested = [row for row in claim.comparisons if row.value is not None]
        # A term is a rung, or one at a layer or a label budget.
        rungs = {re.split("[/@]", term)[0] for row in tested for term in row.terms}
        if rungs & tuned and rungs - tuned:
            untuned[claim.id] = sorted(rungs - tuned)
    return untuned


def list_changed_verdicts(
    inputs: Mapping[str, Artifact], claims_after: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """The verdicts by number of trials, of each claim that has not the same one at all of them."""
    verdicts: dict[str, dict[str, str]] = {}
    for part, title in claims_after.items():
        for claim in ClaimsSummary.of(inputs[title]).claims:
            verdicts.setdefault(claim.id, {})[part] = claim.verdict
    return {name: each for name, each in verdicts.items() if len({*each.values()}) > 1}


def write_tuning(
    searches: Sequence[Tuned],
    sweeps: Sequence[VariantSweep] = (),
    *,
    names: Sequence[str],
    verdicts_after: Mapping[str, Mapping[str, str]] | None = None,
    lost: Sequence[float] = (),
) -> Section | None:
    """The section; None if nothing was tuned. `names` are all rungs or variants, `lost` what the
    winner of each sweep lost with new seeds."""
    if not searches and not sweeps:
        return None
    fields = {
        "searches": searches,
        "sweeps": sweeps,
        "untuned": describe_untuned(searches, names),
        "verdicts_after": verdicts_after or {},
        "lost": fmean(lost) if lost else None,
    }
    plots: dict[str, bytes | None] = {}
    if searches:
        plots["expected_best"] = _draw_expected(searches)
        plots["trials_while_learning"] = _draw_searches(searches)
    if sweeps:
        plots["sweep_curves"] = draw_sweeps(sweeps)
    csv = {
        "searches": [
            {"rung": each.rung, **row} for each in searches for row in each.summary.table()
        ],
        "trials": trial_rows(sweeps),
    }
    return Section("tuning", "Tuning", fields, plots, csv)


def trial_rows(sweeps: Sequence[VariantSweep]) -> list[Row]:
    """Every trial of every sweep with its settings; failed ones have no score."""
    return [
        {
            "task": sweep.task,
            "variant": sweep.variant,
            **row,
            "stopped_early": trial.stopped_early,
            "winner": trial.name == sweep.summary.best.name,
        }
        for sweep in sweeps
        for trial, row in zip(sweep.summary.trials, tabulate(sweep.summary.trials), strict=True)
    ]


def _draw_expected(searches: Sequence[Tuned]) -> bytes:
    """The expected best by the number of trials, one panel for each measure."""
    panels = []
    for label in dict.fromkeys(each.summary.label for each in searches):
        lines: dict[str, list[Point]] = {}
        for each in searches:
            if each.summary.label == label:
                factor = scale(each.summary.metric)
                lines[each.rung] = [
                    plot_value(trials, factor * score)
                    for trials, score in enumerate(each.summary.expected, start=1)
                ]
        panels.append(Panel("the best of so many trials", "trials", label, lines))
    looks = {each.rung: each.look for each in searches}
    return style.draw_panels(panels, looks, _COLUMNS)


def _draw_searches(searches: Sequence[Tuned]) -> bytes | None:
    """The score of every trial by tokens read; None if no model was scored while it learnt."""
    curves = [
        each
        for each in searches
        if any(len(run.curve) > 1 for trial in each.summary.trials for run in trial.runs)
    ]
    if not curves:
        return None
    figure, panels = style.new_panels(len(curves), _COLUMNS, 3.2, 0.6)
    for axes, each in zip(panels, curves, strict=True):
        best = each.summary.best
        for trial in each.summary.trials:
            if points := [point for run in trial.runs[-1:] for point in run.curve if point[0]]:
                wins = trial.number == best.number
                style.draw_trial(
                    *(axes, points, each.look, "the best" if wins else "other trials"),
                    wins=wins,
                    stopped=trial.stopped_early,
                    marker=".",
                )
        style.dress(axes, each.rung, "tokens", each.summary.label)
        axes.xaxis.set_major_formatter(EngFormatter())
    style.add_legend_below(figure, panels, last=["stopped early"])
    return style.png(figure)


def draw_sweeps(sweeps: Sequence[VariantSweep]) -> bytes:
    """The validation score of every trial by epoch, a panel for each task, with a cross where it
    was stopped and dotted lines where successive halving compares trials."""
    tasks: dict[str, list[VariantSweep]] = {}
    for sweep in sweeps:
        tasks.setdefault(sweep.task, []).append(sweep)
    figure, panels = style.new_panels(len(tasks), _COLUMNS, 3.7, 0.5)
    for axes, (task, task_sweeps) in zip(panels, tasks.items(), strict=True):
        for sweep in task_sweeps:
            _draw_trials(axes, sweep)
        milestones = {epoch for sweep in task_sweeps for epoch in sweep.summary.milestones}
        for epoch in milestones:
            line: Any = {"color": palette.FAINT, "linestyle": style.DOTTED, "linewidth": 1.4}
            axes.axvline(epoch, zorder=0, **line)
        ran = sum(s.summary.epochs_run for s in task_sweeps)
        title = f"{ran} of {sum(s.summary.grid_epochs for s in task_sweeps)} epochs run"
        title = f"{task}: {title}" if task and task != "sweep" else title
        x = "epoch (dotted: where trials are compared)" if milestones else "epoch"
        style.dress(axes, title, x, metric_axis(task_sweeps[0].summary.metric, "validation"))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.add_legend_below(figure, panels, last=["stopped early"])
    return style.png(figure)


def _draw_trials(axes: Axes, sweep: VariantSweep) -> None:
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
