"""Sweep stage: try settings of one variant on Ray Tune, scored on the validation split only.

Resuming relies on the records of trials: Tune's snapshot lags and holds settings only as pickles.
Halving is decided once all trials have reached a milestone, whichever ends first (the asynchronous
variant, Li et al. 2020, stops them in order of arrival), so each round is one run of Tune.

A sweep over a key that nothing reads would look normal, so the resolved `finetune` block must hold
each value (`resolve_settings`).

The winner's score is a maximum over trials and so too high; evaluation/comparison/compare.py gives
an unbiased one, with new seeds on the test split.
"""

import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from ray import tune
from ray.exceptions import RayActorError
from ray.tune import Callback

from rungwise.cluster.session import shared_scratch
from rungwise.core.configuration.canonical import csv_bytes
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import UserError, format_count
from rungwise.core.stages.artifact import Artifact, Inputs, read_note, write_note
from rungwise.core.stages.stage import Context, Reporter
from rungwise.core.storage.folder import Folder
from rungwise.finetune import FinetuneConfig, OnEpoch, finetune, load_data
from rungwise.models.device import use_threads
from rungwise.tasks.kinds.examples import TaskSummary
from rungwise.tasks.scoring.metrics import format_metric
from rungwise.tuning import trials as records
from rungwise.tuning.trials import Epoch, Halving, SweepStageConfig, SweepSummary, SweepTrial

TABLE = "trials.csv"
DECISIONS = "milestones.json"  # of successive halving, in the artifact until the sweep ends

# The training of a trial, by settings, inputs, seed, what to call after an epoch, and a state that
# `on_epoch` received or None.
Train = Callable[[FinetuneConfig, Inputs, int, OnEpoch, bytes | None], None]


def train(
    settings: FinetuneConfig, inputs: Inputs, seed: int, on_epoch: OnEpoch, start: bytes | None
) -> None:
    data = load_data(inputs["task"], inputs["tokenizer"], inputs["pretrain"], settings)
    finetune(settings, data, seed, on_epoch, start)


@dataclass(frozen=True)
class SweepJob:
    """The values that all trials of a sweep share, sent to their processes."""

    config: SweepStageConfig
    inputs: Mapping[str, Artifact]
    output: Folder
    metric: str  # of the validation split; higher is better
    report: Reporter
    train: Train


class _AtMilestone(Exception):
    """Ends the training of a trial that waits at a milestone."""


def run_trial(config: dict[str, Any], *, job: SweepJob, cpus: float, end: int) -> None:
    """Run the trial of a `number` to the epoch `end` of a round, for Ray Tune, with as many threads
    as it holds whole CPUs. Raises UserError if the score is not finite."""
    use_threads(cpus)
    trial, start = new_record(job.config, config["number"]), None
    if job.config.sweep.halving:
        earlier = records.read_record(trial.name, job.output)
        if earlier is not None and earlier.saved_epoch is not None:
            file = earlier.state_file(earlier.saved_epoch)
            if read_note(job.output, f"{file}.json"):
                start = job.output.read_bytes(file)
        if earlier is not None and (start is not None or earlier.saved_epoch is None):
            trial = earlier
    # Epochs after the saved state run again.
    trial.history = trial.history[: trial.saved_epoch or 0]
    trial.state, trial.error = "running", ""
    records.write_record(trial, job.output)
    settings = trial.finetune
    if not trial.history:
        job.report.nested(trial.name, trial.parameters())
    before, start_time = trial.seconds, time.monotonic()

    def on_epoch(
        epoch: int, metrics: dict[str, float], state: Callable[[], bytes] | None = None
    ) -> None:
        # Prefer the score of the kept weights, which can be of an earlier epoch.
        score = metrics.get("kept/score", metrics[job.metric])
        if not math.isfinite(score):
            raise UserError(f"{trial.name}: {job.metric} is {score} after epoch {epoch}")
        trial.seconds = before + time.monotonic() - start_time
        loss = metrics.get("kept/loss", metrics.get("loss", math.nan))
        row = Epoch(
            epoch=epoch,
            score=score,
            loss=loss if math.isfinite(loss) else None,
            seconds=round(trial.seconds, 3),
            metrics={key: value for key, value in metrics.items() if math.isfinite(value)},
        )
        trial.history, trial.score, trial.loss = (*trial.history, row), row.score, row.loss
        # Mark the last epoch as the end: Tune may cut short whatever follows.
        trial.state = "finished" if epoch == settings.epochs else "running"
        if epoch == end and trial.state == "running":
            assert state is not None, "successive halving needs the state of training"
            file = trial.state_file(epoch)
            job.output.write_bytes(file, state())
            digest = {file: job.output.sha256(file)}
            write_note(job.output, f"{file}.json", {"epoch": epoch}, digest)
            former, trial.saved_epoch, trial.state = trial.saved_epoch, epoch, "waiting"
            records.write_record(trial, job.output)
            if former is not None:
                job.output.remove(trial.state_file(former))
        else:
            records.write_record(trial, job.output)
        job.report.metrics(row.points(), epoch, run=trial.name)
        job.report.flush()
        tune.report({"score": score, "epoch": epoch})
        if trial.state == "waiting":
            raise _AtMilestone

    try:
        job.train(settings, dict(job.inputs), trial.seed, on_epoch, start)
        if not trial.history:
            raise UserError(f"{trial.name}: its training ended without an epoch")
        trial.state = "finished"
    except _AtMilestone:
        pass
    except RayActorError:
        raise  # the board has died with the driver; the record says how far the trial came
    except Exception as error:
        trial.fail(str(error) or type(error).__name__)
        raise
    finally:
        # Tune stops a trial by SystemExit; the driver then writes its final state.
        if trial.state != "running":
            records.write_record(trial, job.output)
        job.report.flush()


def new_record(config: SweepStageConfig, number: int) -> SweepTrial:
    """The record of a trial that has not begun."""
    values = records.draw_trials(config.sweep)[number]
    settings = records.resolve_settings(config, values)
    return SweepTrial(number=number, values=values, finetune=settings, seed=config.sweep.seed)


def select_survivors(trials: Iterable[SweepTrial], milestone: int, halving: Halving) -> list[str]:
    """The names of trials that continue from a milestone; ties: smaller loss, then number."""
    rows = [
        (trial.number, row.score, row.loss)
        for trial in trials
        for row in trial.history
        if row.epoch == milestone and trial.state != "failed"
    ]
    return [records.trial_name(number) for number in halving.select(records.rank_trials(rows))]


def play_rounds(
    job: SweepJob, stop: Callable[[SweepTrial], None]
) -> Iterator[tuple[int, list[int]]]:
    """Yield the epoch that ends each round, and the numbers of trials to run that far, those with
    records first; call `stop` for each trial that is dropped. The only state is in the records: a
    milestone is decided once all its trials have ended, or by an earlier attempt, whose failures
    are then final. Other failed trials run again."""
    config, output = job.config, job.output
    decided: dict[str, list[str]] = read_note(output, DECISIONS) or {}
    numbers = list(range(len(records.draw_trials(config.sweep))))
    for end in config.rounds:
        records_by_number = {trial.number: trial for trial in records.read_records(output)}
        runs = [
            number
            for number in sorted(numbers, key=lambda number: number not in records_by_number)
            if (trial := records_by_number.get(number)) is None
            or not (trial.ended or (trial.saved_epoch or 0) >= end)
        ]
        if runs and str(end) not in decided:
            yield end, runs
        if end == config.rounds[-1]:
            return
        assert config.sweep.halving
        trials = [trial for trial in records.read_records(output) if trial.number in numbers]
        if str(end) not in decided:
            decided[str(end)] = select_survivors(trials, end, config.sweep.halving)
            write_note(output, DECISIONS, decided)
        numbers = [number for number in numbers if records.trial_name(number) in decided[str(end)]]
        for trial in trials:
            if trial.state == "waiting" and trial.number not in numbers:
                trial.state = "stopped_early"
                records.write_record(trial, output)
                if trial.saved_epoch is not None:
                    output.remove(trial.state_file(trial.saved_epoch))
                stop(trial)


def run_sweep(
    config: SweepStageConfig, inputs: Inputs, output: Folder, context: Context, train: Train = train
) -> SweepSummary:
    """Run the trials; the winner has the best validation score of those that ran to their end.
    `inputs` are task, tokenizer and pretrain. Restarted with the same `output`, it runs only
    unfinished trials. Raises UserError if every trial failed or one needs more than any node has,
    ConfigError for a value that does not fit the task."""
    info = TaskSummary.of(inputs["task"]).info
    records.check_values(config, info)
    job = SweepJob(config, inputs, output, info.metric, context.report, train)
    # Tune's files from a killed attempt are of no use.
    (output / ".ray-tune").remove()
    with shared_scratch(output, "ray-tune") as scratch:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        run_trials(job, context.compute, nodes, scratch)
    (output / records.STATES).remove()
    summary = summarise(job)
    output.remove(DECISIONS)
    return summary


def summarise(job: SweepJob) -> SweepSummary:
    trials = records.read_records(job.output)
    # Stopped trials were not trained as their settings say, so one wins only if all were stopped.
    whole = [trial for trial in trials if not trial.stopped_early]
    ranked = _rank(whole) or _rank(trials)
    if not ranked:
        raise UserError(
            f"all {len(trials)} trials of the sweep failed, the first with: {trials[0].error}"
        )
    best = next(trial for trial in trials if trial.number == ranked[0])
    assert best.score is not None
    stopped = sum(trial.stopped_early for trial in trials)
    failed = sum(trial.state == "failed" for trial in trials)
    summary = SweepSummary(
        trials=tuple(trials),
        best=best,
        metric=job.metric,
        stopped_early=stopped,
        failed=failed,
        epochs_run=sum(len(trial.history) for trial in trials),
        epochs_asked=sum(trial.finetune.epochs for trial in trials),
        seconds=round(sum(trial.seconds for trial in trials), 3),
        headline=f"{format_count(len(trials), 'trial')}, {stopped} stopped early, {failed} failed  "
        f"best validation {job.metric} {format_metric(best.score, job.metric)} "
        f"({records.describe_values(best.values)})",
    )
    job.output.write_bytes(TABLE, csv_bytes(records.tabulate(trials)))
    return summary


def _rank(trials: Sequence[SweepTrial]) -> list[int]:
    return records.rank_trials((trial.number, trial.score, trial.loss) for trial in trials)


def count_concurrent(compute: ComputeConfig, nodes: Sequence[dict[str, float]]) -> int:
    """The number of concurrent trials: as many as asked for, or as fit on the nodes. `nodes` are
    their resources. Raises UserError if a trial needs more than any node has."""
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
    """Run every unfinished trial; results are in their records."""
    concurrent = count_concurrent(compute, nodes)
    trials = records.draw_trials(job.config.sweep)
    for values in trials:
        records.resolve_settings(job.config, values)
    earlier_trials = records.read_records(job.output)
    watch = _Watch(job, sum(trial.ended for trial in earlier_trials), len(trials))
    # Report earlier attempts' trials again, since their last reports may have been lost. Tracking
    # accepts each point of a run once, so nothing is duplicated.
    for trial in earlier_trials:
        if trial.ended or trial.saved_epoch is not None:
            job.report.nested(trial.name, trial.parameters())
            for row in trial.history:
                job.report.metrics(row.points(), row.epoch, run=trial.name)
            if trial.ended:
                job.report.nested(trial.name, {}, "FINISHED")
    for end, runs in play_rounds(job, watch.close):
        tune.Tuner(
            tune.with_resources(
                functools.partial(run_trial, job=job, cpus=compute.cpus_per_trial, end=end),
                {"cpu": compute.cpus_per_trial, "gpu": compute.gpus_per_trial},
            ),
            param_space={"number": tune.grid_search(runs)},
            tune_config=tune.TuneConfig(
                max_concurrent_trials=concurrent,
                # Saves starting a process per trial; safe because training seeds all its
                # generators.
                reuse_actors=True,
                trial_name_creator=lambda trial: records.trial_name(trial.config["number"]),
                trial_dirname_creator=str,
            ),
            run_config=tune.RunConfig(
                name=f"until-{end}", storage_path=scratch, verbose=0, callbacks=[watch]
            ),
        ).fit()


class _Watch(Callback):
    """Completes records and reports progress."""

    def __init__(self, job: SweepJob, ended: int, total: int) -> None:
        self._job = job
        self._ended, self._total = ended, total

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        record = self._record(trial)
        if record.state != "waiting":  # a trial that waits may continue
            self.close(record)

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        record = self._record(trial)
        if record.state != "failed":
            record.fail("its process died")
            records.write_record(record, self._job.output)
        self.close(record, "FAILED")

    def _record(self, trial: Any) -> SweepTrial:
        record = records.read_record(str(trial), self._job.output)
        # None if its process died before writing a record.
        return record or new_record(self._job.config, trial.config["number"])

    def close(self, record: SweepTrial, status: str = "FINISHED") -> None:
        """End a finished trial's tracking run and report progress."""
        self._ended += 1
        self._job.report.nested(record.name, {}, status)
        score = {self._job.metric: record.history[-1].score} if record.history else {}
        self._job.report.progress(self._ended, self._total, trial=record.name, **score)
