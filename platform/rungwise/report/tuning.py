"""The section about tuning: searches over pretraining, sweeps over fine-tuning, and what depends
on how much was tried."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from rungwise.core.errors import list_first
from rungwise.core.stages.artifact import Artifact
from rungwise.evaluation.comparison.claims import ClaimsSummary
from rungwise.evaluation.comparison.seeds import input_name
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.evaluation.search import SearchSummary
from rungwise.evaluation.suites.base import Panel, plot_value
from rungwise.report import style
from rungwise.report.formats import Series, scale, series
from rungwise.report.page import Section
from rungwise.report.variants import input_artifact, select_stage
from rungwise.tasks.scoring.metrics import format_metric
from rungwise.tuning.config import describe_values
from rungwise.tuning.record import SweepSummary

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
        summary, winner = self.summary, self.summary.winner_scores
        scores = {"best": winner[0], "worst": summary.worst, "one": summary.expected[0]}
        scores |= {"mean": fmean(winner)} | ({"spread": stdev(winner)} if len(winner) > 1 else {})
        return {name: format_metric(score, summary.metric) for name, score in scores.items()}


@dataclass(frozen=True)
class VariantSweep:
    """The sweep of one variant on one task. `settings` is the sweep block of the recipe, `again`
    the mean validation score of the winner with new seeds."""

    task: str
    variant: str
    summary: SweepSummary
    settings: Mapping[str, Any]
    again: float


def gather_searches(
    inputs: Mapping[str, Artifact], looks: Mapping[str, Series], names: Mapping[str, str]
) -> list[Tuned]:
    """Every search of a run; `names` are those of variants on the page, where they differ."""
    summaries = [SearchSummary.of(each) for each in select_stage(inputs, "search").values()]
    rungs = [names.get(each.variant, each.variant) for each in summaries]
    return [
        Tuned(rung, looks.get(rung) or series(place), summary)
        for place, (rung, summary) in enumerate(zip(rungs, summaries, strict=True))
    ]


def gather_sweeps(inputs: Mapping[str, Artifact], names: Mapping[str, str]) -> list[VariantSweep]:
    """Every sweep of a run, in the order of tasks and variants; `names` are those on the page."""
    sweeps = []
    for artifact in select_stage(inputs, "evaluate").values():
        evaluation = EvaluateSummary.of(artifact)
        for variant in evaluation.variants:
            title = input_name("sweep", variant)
            if evaluation.budget is None and title in artifact.record["inputs"]:
                sweep = input_artifact(artifact, title, inputs)
                summary, settings = SweepSummary.of(sweep), sweep.record["config"]["sweep"]
                name, again = names[variant], fmean(evaluation.scores(variant, "validation"))
                sweeps.append(VariantSweep(evaluation.task, name, summary, settings, again))
    return sweeps


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


def write_tuning(
    searches: Sequence[Tuned], sweeps: Sequence[VariantSweep] = (), *, names: Iterable[str]
) -> Section | None:
    """The section; None if nothing was tuned. `names` are all rungs or variants."""
    if not searches and not sweeps:
        return None
    tuned = {each.rung for each in searches}
    fields = {
        "searches": searches,
        "describe_values": describe_values,
        "sweeps": sweeps,
        "untuned": list_first([name for name in names if name not in tuned], _NAMED),
        "lost": fmean(each.again - each.summary.best_score for each in sweeps) if sweeps else None,
    }
    plots = {"expected_best": _draw_expected(searches) if searches else None}
    return Section("tuning", "Tuning", fields, plots)


def _draw_expected(searches: Sequence[Tuned]) -> bytes:
    """The expected best by the number of trials, one panel for each measure."""
    panels = []
    for label in dict.fromkeys(each.summary.label for each in searches):
        lines = {
            each.rung: [
                plot_value(trials, scale(each.summary.metric) * score)
                for trials, score in enumerate(each.summary.expected, start=1)
            ]
            for each in searches
            if each.summary.label == label
        }
        panels.append(Panel("the best of so many trials", "trials", label, lines))
    return style.draw_panels(panels, {each.rung: each.look for each in searches}, _COLUMNS)
