"""The section about searches over pretraining: what equal tuning gave, and what depends on it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from matplotlib.ticker import EngFormatter, MaxNLocator

from rungwise.core.plural import list_first
from rungwise.core.stages.artifact import Artifact
from rungwise.evaluation.comparison.claims import ClaimsSummary
from rungwise.evaluation.search.record import SearchSummary
from rungwise.report import palette, style
from rungwise.report.palette import Series
from rungwise.report.sections.tables import Row
from rungwise.report.sections.variants import select_stage
from rungwise.tasks.scoring.metrics import OWN_UNITS, format_metric
from rungwise.tuning.draws import describe_values

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


def gather_searches(inputs: Mapping[str, Artifact], looks: Mapping[str, Series]) -> list[Tuned]:
    """Every search of a run."""
    summaries = [SearchSummary.of(each) for each in select_stage(inputs, "search").values()]
    return [
        Tuned(each.variant, looks.get(each.variant) or palette.series(place), each)
        for place, each in enumerate(summaries)
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


def changed_verdicts(
    inputs: Mapping[str, Artifact], claims_after: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """The verdicts by number of trials, of each claim that has not the same one at all of them."""
    verdicts: dict[str, dict[str, str]] = {}
    for part, title in claims_after.items():
        for claim in ClaimsSummary.of(inputs[title]).claims:
            verdicts.setdefault(claim.id, {})[part] = claim.verdict
    return {name: each for name, each in verdicts.items() if len({*each.values()}) > 1}


def search_rows(searches: Sequence[Tuned]) -> list[Row]:
    """Every trial of every search with its settings."""
    return [{"rung": each.rung, **row} for each in searches for row in each.summary.table()]


def draw_searches(searches: Sequence[Tuned]) -> dict[str, bytes]:
    """The pictures of the section by file name without the suffix."""
    plots = {"expected_best": draw_expected(searches)}
    if curves := draw_trials(searches):
        plots["trials_while_learning"] = curves
    return plots


def draw_expected(searches: Sequence[Tuned]) -> bytes:
    """The expected best by the number of trials, one panel for each measure."""
    measures = dict.fromkeys(each.summary.label for each in searches)
    figure, panels = style.new_panels(len(measures), _COLUMNS, 3.2, 0.8)
    for axes, label in zip(panels, measures, strict=True):
        for each in searches:
            if each.summary.label != label:
                continue
            scale = 1 if each.summary.metric in OWN_UNITS else 100
            curve = [scale * score for score in each.summary.expected]
            axes.plot(
                range(1, len(curve) + 1),
                curve,
                color=each.look.colour,
                linestyle=each.look.line,
                marker=each.look.marker,
                markersize=5,
                label=each.rung,
            )
            # The spread of the best over seeds, beside the last point.
            winner = [scale * score for score in each.summary.winner_scores]
            axes.scatter([len(curve) + 0.25] * len(winner), winner, s=14, color=each.look.colour)
        style.dress(axes, "the best of so many trials", "trials", label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.add_legend_below(figure, panels)
    return style.png(figure)


def draw_trials(searches: Sequence[Tuned]) -> bytes | None:
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
