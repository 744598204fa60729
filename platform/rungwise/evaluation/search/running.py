"""Search stage: the record of a search whose trials have all ended (pipeline/searching.py runs
them), its table, and an MLflow run of each trial nested in its own."""

import json
from collections.abc import Mapping
from statistics import fmean, stdev
from typing import Any

from rungwise.core.plural import counted
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context, Reporter
from rungwise.core.storage.folder import Folder
from rungwise.core.tables import csv_bytes
from rungwise.evaluation.search.config import HalvingRounds, WordList
from rungwise.evaluation.search.record import (
    Run,
    RunPlan,
    SearchStageConfig,
    SearchSummary,
    Trial,
    TrialPlan,
)
from rungwise.evaluation.search.scoring import count_cost, loss_key, name_measure, score_run
from rungwise.pretraining.summary import PretrainSummary
from rungwise.sweep.config import OptunaSearch
from rungwise.sweep.draws import describe_values
from rungwise.tasks.scoring.metrics import format_metric

TABLE = "trials.csv"


def run_search(
    config: SearchStageConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> SearchSummary:
    """Write the table of all trials. Inputs: the stages of their runs, by title."""
    search = config.search
    trials = [_read_trial(config, plan, inputs) for plan in config.trials]
    for trial in trials:
        _report(trial, context.report)
    seeds = [
        run for plan in config.seeds if (run := _read_run(config, plan, inputs, None)) is not None
    ]
    best = trials[config.best]
    measure = search.measure.kind
    scores = [run.score for run in (*best.runs[-1:], *seeds)]
    spread = ""
    if len(scores) > 1:
        deviation = format_score(stdev(scores), measure)
        spread = f", {len(scores)} seeds {format_score(fmean(scores), measure)} ± {deviation}"
    budget = f"{search.seconds:g} s" if search.seconds else None
    if search.tokens:
        budget = f"{search.tokens:,} tokens"
    output.write_bytes(TABLE, csv_bytes(table(trials, config.best)))
    assert best.score is not None, "the best did not fail"
    failed = sum(trial.score is None for trial in trials)
    return SearchSummary(
        variant=config.variant,
        measure=measure,
        label=name_measure(search.measure, inputs[best.runs[-1].pretrain]),
        higher_is_better=isinstance(search.measure, WordList),
        exchangeable=not isinstance(search.search, OptunaSearch)
        and not isinstance(search.scheduler, HalvingRounds),
        trials=tuple(trials),
        best=best,
        seeds=tuple(seeds),
        budget=budget,
        seconds=round(sum(trial.seconds for trial in trials), 3),
        tokens=sum(trial.tokens for trial in trials),
        show=(TABLE,),
        headline=f"{counted(len(trials), 'trial')}, {failed} failed  best "
        f"{measure.replace('_', ' ')} {format_score(best.score, measure)}{spread} "
        f"({describe_values(best.values)})",
    )


def format_score(score: float, measure: str) -> str:
    """A loss with three decimals, a correlation as points."""
    return format_metric(score, "correlation") if measure == "word_list" else f"{score:.3f}"


def table(trials: list[Trial], best: int) -> list[dict[str, Any]]:
    """Trials as flat rows with a column for each key."""
    return [
        {
            "trial": trial.name,
            **{
                key: value if isinstance(value, int | float | str) else json.dumps(value)
                for key, value in trial.values.items()
            },
            "score": "" if trial.score is None else trial.score,
            "pretrainings": len(trial.runs),
            "seconds": trial.seconds,
            "tokens": trial.tokens,
            "best": trial.number == best,
            "error": trial.error,
        }
        for trial in trials
    ]


def _read_trial(
    config: SearchStageConfig, plan: TrialPlan, inputs: Mapping[str, Artifact]
) -> Trial:
    runs: list[Run] = []
    before = None
    for each in plan.runs:
        if (run := _read_run(config, each, inputs, before)) is None:
            break
        runs.append(run)
        before = inputs[each.pretrain]
    pilot = (0.0, 0)
    if plan.pilot is not None and plan.pilot not in plan.runs and plan.pilot.pretrain in inputs:
        pilot = count_cost(inputs[plan.pilot.pretrain], None)
    return Trial(
        number=plan.number,
        values=plan.values,
        runs=tuple(runs),
        score=None if plan.error or not runs else runs[-1].score,
        seconds=round(sum(run.seconds for run in runs) + pilot[0], 3),
        tokens=sum(run.tokens for run in runs) + pilot[1],
        error=plan.error or ("" if runs else "it has no score"),
    )


def _read_run(
    config: SearchStageConfig,
    plan: RunPlan,
    inputs: Mapping[str, Artifact],
    before: Artifact | None,
) -> Run | None:
    """None if the run failed or has no score."""
    measure = config.search.measure
    pretrain = inputs.get(plan.pretrain)
    measured = inputs.get(plan.measured) if plan.measured else None
    if pretrain is None or (plan.measured and measured is None):
        return None
    score = score_run(measure, pretrain, measured)
    if score is None:
        return None
    summary, (seconds, tokens) = PretrainSummary.of(pretrain), count_cost(pretrain, before)
    key = loss_key(measure, summary)
    rows = summary.gradient.validation if summary.gradient else ()
    return Run(
        pretrain=plan.pretrain,
        fingerprint=pretrain.fingerprint,
        score=score,
        seconds=seconds,
        tokens=tokens,
        curve=tuple((int(row["tokens"]), row[key]) for row in rows if key in row),
    )


def _report(trial: Trial, report: Reporter) -> None:
    """A nested run with the settings of the trial, its curve and its score."""
    report.nested(trial.name, trial.values)
    points = trial.runs[-1].curve if trial.runs else ()
    for tokens, loss in points:
        report.metrics({"validation/score": loss}, tokens, run=trial.name)
    if trial.score is not None:
        costs = {"seconds": trial.seconds, "tokens": float(trial.tokens)}
        report.metrics({"score": trial.score, **costs}, 0, run=trial.name)
    report.nested(trial.name, {}, "FAILED" if trial.score is None else "FINISHED")
