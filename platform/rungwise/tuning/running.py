"""Sweep stage: try settings of one variant on Ray Tune, scored on the validation split only.

Resuming relies on the trial records, not on Tune: its experiment snapshot lags by many seconds,
may be unreadable for a later Ray, and holds settings only as pickles. A finished trial is withheld
from Tune; an interrupted one restarts, or resumes from its last saved state if trials are halved.

Each run of a trial to the end of a round is one trial of Ray Tune. Successive halving is decided
once all trials have reached a milestone, so the survivors do not depend on which trial ends first
(the asynchronous variant, Li et al. 2020, stops trials in order of arrival). Decisions are saved
before any trial continues. Tune's own schedulers do not fit: HyperBand fills brackets in order of
arrival and cannot be given the decisions of an earlier attempt, and with a scheduler that pauses
trials Tune starts all at once, ignoring max_concurrent_trials.

The winner's score is a maximum over trials and so too high; evaluation/comparison/compare.py gives
an unbiased one, with new seeds on the test split.
"""

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import ray
from ray import tune
from ray.tune import Callback, Stopper
from ray.tune.search import Searcher

from rungwise.cluster.session import shared_scratch
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import UserError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.stages.notes import read_note, write_note
from rungwise.core.storage.folder import Folder
from rungwise.core.wording import csv_bytes, format_count
from rungwise.tasks.kinds.examples import TaskSummary
from rungwise.tasks.scoring.metrics import format_metric
from rungwise.tuning.config import (
    EPOCHS,
    Halving,
    SweepStageConfig,
    Values,
    check_values,
    count_grid_epochs,
    describe_values,
    draw_trials,
    resolve_settings,
)
from rungwise.tuning.record import (
    STATES,
    SweepSummary,
    SweepTrial,
    rank_trials,
    read_record,
    read_records,
    tabulate,
    trial_name,
    write_record,
)
from rungwise.tuning.trial import (
    DECISIONS,
    SweepJob,
    Train,
    check_applied,
    new_record,
    run_trial,
    train,
)


def select_survivors(trials: Iterable[SweepTrial], milestone: int, halving: Halving) -> list[str]:
    """The names of trials that continue from a milestone; ties: smaller loss, then number."""
    rows = [
        (trial.number, row.score, row.loss)
        for trial in trials
        for row in trial.history
        if row.epoch == milestone and trial.state != "failed"
    ]
    return [trial_name(number) for number in halving.select(rank_trials(rows))]


class RoundSearcher(Searcher):
    """Hands out the next run, up to the next milestone, of each surviving trial; calls `stop` for
    each trial that is dropped. Its only state is in the records of trials."""

    def __init__(self, job: SweepJob, stop: Callable[[SweepTrial], None]) -> None:
        super().__init__()
        self._ends = job.config.rounds
        self._job, self._stop = job, stop
        self.values = draw_trials(job.config.sweep)  # of each trial, by number
        # By milestone: the trials that continue.
        self._survivors: dict[str, list[str]] = read_note(job.output, DECISIONS) or {}
        self._round = 0
        self._failed: set[str] = set()  # in this attempt; earlier failures are retried
        self._running: set[str] = set()
        self._runs = self._open_round()

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Does nothing: `end_run` is called with the name of the trial."""

    def save(self, checkpoint_path: str) -> None:
        """Does nothing."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing."""

    def decide(self) -> bool:
        """Decide the milestones that all trials have reached; return whether anything is left."""
        while not self._runs and not self._running and self._round < len(self._ends) - 1:
            self._close_round()
            self._round += 1
            self._runs = self._open_round()
        return bool(self._runs or self._running)

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """The next run; None while other runs of the round are under way."""
        if not self.decide():
            return Searcher.FINISHED  # pyright: ignore[reportReturnType]
        if not self._runs:
            return None
        number = self._runs.pop(0)
        self._running.add(trial_name(number))
        values = self.values[number]
        return {"trial": {"number": number, "values": values}, "until": self._until(values)}

    def end_run(self, name: str, failed: bool) -> None:
        self._running.discard(name)
        if failed:
            self._failed.add(name)

    def _open_round(self) -> list[int]:
        """The survivors short of the end of this round, those with records first."""
        if str(self._ends[self._round]) in self._survivors:
            return []  # decided by an earlier attempt; failures until then are final
        records = {trial.number: trial for trial in read_records(self._job.output)}
        runs: list[int] = []
        for number in sorted(range(len(self.values)), key=lambda number: number not in records):
            name, trial = trial_name(number), records.get(number)
            if name in self._failed or not self._survived(name):
                continue
            reached = trial.saved_epoch or 0 if trial else 0
            if trial is None or not (trial.ended or reached >= self._until(trial.values)):
                runs.append(number)
        return runs

    def _until(self, values: Values) -> int:
        """The epoch that ends this round for a trial."""
        return min(self._ends[self._round], values.get(EPOCHS, self._job.config.finetune.epochs))

    def _survived(self, name: str) -> bool:
        return not self._round or name in self._survivors[str(self._ends[self._round - 1])]

    def _close_round(self) -> None:
        """Decide this milestone, unless an earlier attempt has, and stop the other trials."""
        milestone, output = self._ends[self._round], self._job.output
        halving = self._job.config.sweep.halving
        assert halving
        trials = [trial for trial in read_records(output) if self._survived(trial.name)]
        if str(milestone) not in self._survivors:
            self._survivors[str(milestone)] = select_survivors(trials, milestone, halving)
            write_note(output, DECISIONS, self._survivors)
        for trial in trials:
            if trial.state == "waiting" and trial.name not in self._survivors[str(milestone)]:
                trial.state = "stopped_early"
                write_record(trial, output)
                if trial.saved_epoch is not None:
                    output.remove(trial.state_file(trial.saved_epoch))
                self._stop(trial)


TABLE, RECORD = "trials.csv", "sweep.json"


def run_sweep(
    config: SweepStageConfig,
    inputs: dict[str, Artifact],
    output: Folder,
    context: Context,
    train: Train = train,
) -> SweepSummary:
    """Run the trials; the winner has the best validation score of those that ran to their end.

    `inputs` are task, tokenizer and pretrain. Restarted with the same `output`, it runs only
    unfinished trials. Raises UserError if every trial failed, if a trial needs more than any node
    has, or if a value was not in force; ConfigError for a value that does not fit the task.
    """
    info = TaskSummary.of(inputs["task"]).info
    check_values(config, info)
    job = SweepJob(config, inputs, output, info.metric, context.report, train)
    # Tune's files from a killed attempt are of no use.
    (output / ".ray-tune").remove()
    with shared_scratch(output, "ray-tune") as scratch:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        run_trials(job, context.compute, nodes, scratch)
    (output / STATES).remove()
    summary = summarise(job)
    output.remove(DECISIONS)
    return summary


def summarise(job: SweepJob) -> SweepSummary:
    trials = read_records(job.output)
    # Stopped trials were not trained as their settings say, so one wins only if all were stopped.
    whole = [trial for trial in trials if not trial.stopped_early]
    ranked = _rank(whole) or _rank(trials)
    if not ranked:
        raise UserError(
            f"all {len(trials)} trials of the sweep failed, the first with: {trials[0].error}"
        )
    best = next(trial for trial in trials if trial.number == ranked[0])
    assert best.score is not None
    epochs_asked = sum(trial.epochs_asked for trial in trials)
    stopped = sum(trial.stopped_early for trial in trials)
    failed = sum(trial.state == "failed" for trial in trials)
    summary = SweepSummary(
        trials=tuple(trials),
        best=best,
        metric=job.metric,
        stopped_early=stopped,
        failed=failed,
        epochs_run=sum(trial.epochs_run for trial in trials),
        epochs_asked=epochs_asked,
        grid_epochs=count_grid_epochs(job.config, epochs_asked),
        seconds=round(sum(trial.seconds for trial in trials), 3),
        headline=f"{format_count(len(trials), 'trial')}, {stopped} stopped early, {failed} failed  "
        f"best validation {job.metric} {format_metric(best.score, job.metric)} "
        f"({describe_values(best.values)})",
    )
    job.output.write_bytes(TABLE, csv_bytes(tabulate(trials)))
    whole_record = {
        "sweep": job.config.sweep.model_dump(mode="json"),
        **summary.model_dump(mode="json"),
    }
    text = json.dumps(whole_record, indent=1, ensure_ascii=False, allow_nan=False)
    job.output.write_bytes(RECORD, text.encode("utf-8"))
    return summary


def _rank(trials: Sequence[SweepTrial]) -> list[int]:
    return rank_trials((trial.number, trial.score, trial.loss) for trial in trials)


def count_concurrent(compute: ComputeConfig, nodes: Sequence[dict[str, float]]) -> int:
    """The number of concurrent trials: as many as asked for, or as fit on the nodes.

    `nodes` are their resources. Raises UserError if a trial needs more than any node has.
    """
    cpus, gpus = compute.cpus_per_trial, compute.gpus_per_trial
    fit = sum(
        int(min(node.get("CPU", 0) / cpus, node.get("GPU", 0) / gpus if gpus else np.inf) + 1e-9)
        for node in nodes
    )
    if fit == 0:
        most = [max((node.get(kind, 0) for node in nodes), default=0) for kind in ("CPU", "GPU")]
        raise UserError(
            f"a trial asks for {cpus:g} CPUs and {gpus:g} GPUs on one node, but no node has so "
            f"many: the most are {most[0]:g} CPUs and {most[1]:g} GPUs; lower "
            "compute.cpus_per_trial or compute.gpus_per_trial, or add a larger node"
        )
    return max(1, min(compute.max_concurrent_trials, fit))


def run_trials(
    job: SweepJob, compute: ComputeConfig, nodes: Sequence[dict[str, float]], scratch: str
) -> None:
    """Run every unfinished trial; results are in their records.

    Raises UserError if a drawn value was not in force.
    """
    concurrent = count_concurrent(compute, nodes)
    records = read_records(job.output)
    watch = _Watch(job, sum(trial.ended for trial in records))
    for values in watch.rounds.values:
        resolve_settings(job.config, values)
    # Report earlier attempts' trials again, since their last reports may have been lost. Tracking
    # accepts each point of a run once, so nothing is duplicated.
    for trial in records:
        if trial.ended or trial.saved_epoch is not None:
            job.report.nested(trial.name, trial.parameters())
            for row in trial.history:
                job.report.metrics(row.points(), row.epoch, run=trial.name)
            if trial.ended:
                job.report.nested(trial.name, {}, "FINISHED")
    if not watch.rounds.decide():
        return
    tune.Tuner(
        tune.with_resources(
            functools.partial(run_trial, job=job, cpus=compute.cpus_per_trial),
            {"cpu": compute.cpus_per_trial, "gpu": compute.gpus_per_trial},
        ),
        tune_config=tune.TuneConfig(
            # As if no trial were stopped: the searcher ends the sweep itself.
            num_samples=len(watch.rounds.values) * len(job.config.rounds),
            search_alg=watch.rounds,
            max_concurrent_trials=concurrent,
            # Saves starting a process per trial; safe because training seeds all its generators.
            reuse_actors=True,
            trial_name_creator=lambda trial: trial_name(trial.config["trial"]["number"]),
            trial_dirname_creator=lambda trial: f"{trial}-{trial.config['until']}",
        ),
        run_config=tune.RunConfig(
            name="sweep", storage_path=scratch, verbose=0, callbacks=[watch], stop=watch
        ),
    ).fit()
    if watch.wrong:
        raise watch.wrong


class _Watch(Callback, Stopper):
    """Compares measured with drawn values, and stops the sweep as soon as one was not in force;
    completes records and reports progress."""

    def __init__(self, job: SweepJob, ended: int) -> None:
        self.wrong: UserError | None = None
        self.rounds = RoundSearcher(job, self.close)
        self._job = job
        self._ended = ended

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self.wrong is not None

    def on_trial_result(
        self, iteration: int, trials: list, trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self._compare(str(trial), result["values"], result["measured"])

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        record = self._record(trial)
        self._compare(record.name, record.values, record.effective)
        self.rounds.end_run(record.name, failed=False)
        if self.wrong or record.state == "waiting":
            return  # the sweep is being aborted, or the trial may continue
        self.close(record)

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        record = self._record(trial)
        if record.state != "failed":
            record.fail("its process died")
            write_record(record, self._job.output)
        self.rounds.end_run(record.name, failed=True)
        self.close(record, "FAILED")

    def _compare(self, name: str, values: Values, measured: dict[str, float]) -> None:
        try:
            check_applied(name, values, measured)
        except UserError as error:
            self.wrong = self.wrong or error

    def _record(self, trial: Any) -> SweepTrial:
        record = read_record(str(trial), self._job.output)
        # None if its process died before writing a record.
        return record or new_record(self._job.config, **trial.config["trial"])

    def close(self, record: SweepTrial, status: str = "FINISHED") -> None:
        """End a finished trial's tracking run and report progress."""
        self._ended += 1
        self._job.report.nested(record.name, {}, status)
        score = {self._job.metric: record.history[-1].score} if record.history else {}
        self._job.report.progress(self._ended, len(self.rounds.values), trial=record.name, **score)
