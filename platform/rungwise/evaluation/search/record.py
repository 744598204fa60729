"""Search stage: the record of a search whose trials have all ended (pipeline/search.py runs them),
its table, and an MLflow run of each trial nested in its own."""

from collections.abc import Mapping
from statistics import fmean, stdev
from typing import Any

from rungwise.core.configuration.config import Config
from rungwise.core.plural import format_count
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context, Reporter
from rungwise.core.stages.stage import StageType
from rungwise.core.stages.summary import SummaryPart, Summary
from rungwise.core.storage.folder import Folder
from rungwise.core.tables import csv_bytes
from rungwise.evaluation.search.config import SearchConfig
from rungwise.evaluation.search.measures import Measure
from rungwise.evaluation.suites.scores import MeasureSummary
from rungwise.pretraining.summary import PretrainSummary
from rungwise.tasks.scoring.metrics import format_metric
from rungwise.tuning.draws import describe_values
from rungwise.tuning.record import TrialRecord, tabulate
from rungwise.tuning.selection import best_so_far, expected_best

TABLE = "trials.csv"


# The titles of the stages that hold the result of a pretraining: its own, and that of the suite by
# which trials are chosen, if there is one.
Titles = tuple[str, ...]


class TrialPlan(Config):
    """A trial: the values of its keys and its pretrainings, the last with its score; `pilot` is one
    that only told how long an epoch takes. `error` says why it failed, "" if it did not."""

    number: int
    values: dict[str, Any]
    runs: tuple[Titles, ...]
    pilot: Titles | None = None
    error: str = ""


class SearchStageConfig(Config):
    """A search whose trials have ended; `variant` is the name of what it tuned."""

    variant: str
    search: SearchConfig
    trials: tuple[TrialPlan, ...]
    best: int
    seeds: tuple[Titles, ...]  # of the best, with each further seed


class SearchRun(SummaryPart):
    """A finished pretraining; seconds and tokens are without a shorter run that it continues."""

    pretrain: str  # the title of its stage
    fingerprint: str
    score: float
    seconds: float
    tokens: int
    curve: tuple[tuple[int, float], ...]  # the score by tokens; empty if it has none


class SearchTrial(TrialRecord):
    """A trial with its pretrainings; seconds and tokens are with those of its pilot."""

    runs: tuple[SearchRun, ...]
    tokens: int

    def columns(self) -> dict[str, Any]:
        return {"pretrainings": len(self.runs), "tokens": self.tokens}


class SearchSummary(Summary):
    """All trials, the best one and its score with each seed of pretraining."""

    variant: str
    measure: str
    metric: str  # of the scores
    label: str  # of the measure, for people
    higher_is_better: bool
    exchangeable: bool  # whether all trials ran to their end
    trials: tuple[SearchTrial, ...]
    best: SearchTrial
    seeds: tuple[SearchRun, ...]
    budget: str | None
    seconds: float
    tokens: int

    @property
    def worst(self) -> float:
        scores = [trial.score for trial in self.trials if trial.score is not None]
        return min(scores) if self.higher_is_better else max(scores)

    @property
    def scores(self) -> list[float]:
        """The scores of all trials by number; a failed one has that of the worst."""
        return [self.worst if trial.score is None else trial.score for trial in self.trials]

    @property
    def expected(self) -> list[float]:
        """The expected best of 1, 2, ... trials; the best so far where some were stopped early."""
        curve = expected_best if self.exchangeable else best_so_far
        return curve(self.scores, self.higher_is_better)

    @property
    def winner_scores(self) -> list[float]:
        """The scores of the best with each seed, the first included."""
        assert self.best.score is not None
        return [self.best.score, *(run.score for run in self.seeds)]

    def table(self) -> list[dict[str, Any]]:
        """Trials as flat rows with a column for each key."""
        return [
            row | {"best": trial.number == self.best.number}
            for trial, row in zip(self.trials, tabulate(self.trials), strict=True)
        ]


def run_search(
    config: SearchStageConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> SearchSummary:
    """Write the table of all trials. Inputs: the stages of their runs, by title."""
    search, measure = config.search, config.search.measure
    rounds = max(len(plan.runs) for plan in config.trials)
    trials = [_read_trial(measure, plan, rounds, inputs) for plan in config.trials]
    for trial in trials:
        _report(trial, context.report)
    runs = [_read_run(measure, titles, inputs, None) for titles in config.seeds]
    seeds = [run for run in runs if run is not None]
    best = trials[config.best]
    scores = [run.score for run in (*best.runs[-1:], *seeds)]
    spread = ""
    if len(scores) > 1:
        deviation = format_metric(stdev(scores), measure.metric)
        mean = format_metric(fmean(scores), measure.metric)
        spread = f", {len(scores)} seeds {mean} ± {deviation}"
    budget = f"{search.seconds:g} s" if search.seconds else None
    if search.tokens:
        budget = f"{search.tokens:,} tokens"
    assert best.score is not None, "the best did not fail"
    failed = sum(trial.score is None for trial in trials)
    summary = SearchSummary(
        variant=config.variant,
        measure=measure.kind,
        metric=measure.metric,
        label=measure.label(PretrainSummary.of(inputs[best.runs[-1].pretrain])),
        higher_is_better=measure.higher_is_better,
        exchangeable=search.halving is None,
        trials=tuple(trials),
        best=best,
        seeds=tuple(seeds),
        budget=budget,
        seconds=round(sum(trial.seconds for trial in trials), 3),
        tokens=sum(trial.tokens for trial in trials),
        show=(TABLE,),
        headline=f"{format_count(len(trials), 'trial')}, {failed} failed  best "
        f"{measure.kind.replace('_', ' ')} {format_metric(best.score, measure.metric)}{spread} "
        f"({describe_values(best.values)})",
    )
    output.write_bytes(TABLE, csv_bytes(summary.table()))
    return summary


SEARCH = StageType("search", 2, run_search, SearchSummary)


def score_run(
    measure: Measure, pretrain: Artifact, measured: Artifact | None = None
) -> float | None:
    """The score of a finished pretraining, None if it has none."""
    of_suite = MeasureSummary.of(measured) if measured else None
    return measure.score(PretrainSummary.of(pretrain), of_suite)


def count_cost(pretrain: Artifact, before: Artifact | None = None) -> tuple[float, int]:
    """Seconds and tokens of a pretraining, without those of the shorter one `before` if it goes on
    from there: the steps that it took over count as its average step."""
    summary, own = PretrainSummary.of(pretrain), 1.0
    if before is not None and summary.gradient is not None and summary.gradient.prolonged:
        last = summary.gradient.prolonged[-1]
        if last.fingerprint == before.fingerprint:
            own -= last.step / summary.gradient.steps
    return summary.seconds * own, round(summary.tokens * own)


def _read_trial(
    measure: Measure, plan: TrialPlan, rounds: int, inputs: Mapping[str, Artifact]
) -> SearchTrial:
    runs: list[SearchRun] = []
    before = None
    for titles in plan.runs:
        if (run := _read_run(measure, titles, inputs, before)) is None:
            break
        runs.append(run)
        before = inputs[run.pretrain]
    pilot = (0.0, 0)
    if plan.pilot and plan.pilot not in plan.runs and plan.pilot[0] in inputs:
        pilot = count_cost(inputs[plan.pilot[0]])
    failed = bool(plan.error) or not runs
    return SearchTrial(
        number=plan.number,
        values=plan.values,
        state="failed" if failed else "finished" if len(runs) == rounds else "stopped_early",
        runs=tuple(runs),
        score=None if failed else runs[-1].score,
        seconds=round(sum(run.seconds for run in runs) + pilot[0], 3),
        tokens=sum(run.tokens for run in runs) + pilot[1],
        error=plan.error or ("" if runs else "it has no score"),
    )


def _read_run(
    measure: Measure, titles: Titles, inputs: Mapping[str, Artifact], before: Artifact | None
) -> SearchRun | None:
    """None if the run failed or has no score."""
    if not all(title in inputs for title in titles):
        return None
    pretrain, *measured = (inputs[title] for title in titles)
    if (score := score_run(measure, pretrain, *measured)) is None:
        return None
    seconds, tokens = count_cost(pretrain, before)
    return SearchRun(
        pretrain=titles[0],
        fingerprint=pretrain.fingerprint,
        score=score,
        seconds=seconds,
        tokens=tokens,
        curve=measure.curve(PretrainSummary.of(pretrain)),
    )


def _report(trial: SearchTrial, report: Reporter) -> None:
    """A nested run with the settings of the trial, its curve and its score."""
    report.nested(trial.name, trial.values)
    points = trial.runs[-1].curve if trial.runs else ()
    for tokens, loss in points:
        report.metrics({"validation/score": loss}, tokens, run=trial.name)
    if trial.score is not None:
        costs = {"seconds": trial.seconds, "tokens": float(trial.tokens)}
        report.metrics({"score": trial.score, **costs}, 0, run=trial.name)
    report.nested(trial.name, {}, "FAILED" if trial.score is None else "FINISHED")
