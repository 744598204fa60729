"""Sweep stage: try settings of one variant, scored on the validation split only.

The winner's score is a maximum over trials and so too high; evaluation/comparison/compare.py gives
an unbiased one, with new seeds on the test split.
"""

import json
import math
from typing import Any

from rungwise.cluster import expected_nodes
from rungwise.cluster.session import shared_scratch
from rungwise.core.errors import UserError
from rungwise.core.plural import counted
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.core.tables import csv_bytes
from rungwise.sweep import tune
from rungwise.sweep.config import SweepStageConfig
from rungwise.sweep.draws import check_values, describe_values, grid_epochs, upstream_values
from rungwise.sweep.effective import check_inputs
from rungwise.sweep.record import STATES, ScoredTrial, SweepSummary, read_records, table
from rungwise.sweep.trial import DECISIONS, Job, Train, train
from rungwise.tasks.kinds.examples import TaskSummary
from rungwise.tasks.scoring.metrics import format_metric

TABLE, RECORD = "trials.csv", "sweep.json"


def run_sweep(
    config: SweepStageConfig,
    inputs: dict[str, Artifact],
    output: Folder,
    context: Context,
    train: Train = train,
) -> SweepSummary:
    """Run the trials; the winner has the best validation score of those that ran to their end.

    `inputs` are task, tokenizer and pretrain, the last two once per set of upstream values, if any
    (`effective.select_inputs`). Restarted with the same `output`, it runs only unfinished trials.
    Raises UserError if every trial failed, if a trial needs more than any node has, or if a value
    was not in force; ConfigError for a value that does not fit the task.
    """
    upstream = upstream_values(config.sweep)
    check_inputs(inputs, upstream)
    info = TaskSummary.of(inputs["task"]).info
    check_values(config, info)
    job = Job(config, inputs, output, info.metric, context.report, train)
    # Tune's files from a killed attempt are of no use.
    (output / ".ray-tune").remove()
    with shared_scratch(output, "ray-tune") as scratch:
        tune.run(job, context.compute, expected_nodes.list_nodes(), scratch)
    (output / STATES).remove()
    summary = summarise(job, upstream)
    output.remove(DECISIONS)
    return summary


def summarise(job: Job, upstream: list[dict[str, Any]]) -> SweepSummary:
    trials = [record.trial() for record in read_records(job.output)]
    scored = [trial for trial in trials if isinstance(trial, ScoredTrial)]
    if not scored:
        raise UserError(
            f"all {len(trials)} trials of the sweep failed, the first with: {trials[0].error}"
        )
    # Stopped trials were not trained as their settings say. Ties are broken by smaller loss, then
    # by number, which is the order of the records, so that the winner is deterministic.
    whole = [trial for trial in scored if not trial.stopped_early] or scored
    best = min(whole, key=lambda each: (-each.score, math.inf if each.loss is None else each.loss))
    epochs_asked = sum(trial.epochs_asked for trial in trials)
    stopped = sum(trial.stopped_early for trial in trials)
    failed = sum(trial.state == "failed" for trial in trials)
    summary = SweepSummary(
        trials=tuple(trials),
        best=best,
        metric=job.metric,
        upstream_values=tuple(upstream),
        stopped_early=stopped,
        failed=failed,
        epochs_run=sum(trial.epochs_run for trial in trials),
        epochs_asked=epochs_asked,
        grid_epochs=grid_epochs(job.config, epochs_asked),
        seconds=round(sum(trial.seconds for trial in trials), 3),
        headline=f"{counted(len(trials), 'trial')}, {stopped} stopped early, {failed} failed  "
        f"best validation {job.metric} {format_metric(best.score, job.metric)} "
        f"({describe_values(best.values)})",
    )
    job.output.write_bytes(TABLE, csv_bytes(table(trials)))
    whole_record = {
        "sweep": job.config.sweep.model_dump(mode="json"),
        **summary.model_dump(mode="json"),
    }
    text = json.dumps(whole_record, indent=1, ensure_ascii=False, allow_nan=False)
    job.output.write_bytes(RECORD, text.encode("utf-8"))
    return summary
