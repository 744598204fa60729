"""Running trials with Ray Tune: scheduling, and resuming after a kill.

Resuming relies on the trial records, not on Tune: its experiment snapshot lags by many seconds,
may be unreadable for a later Ray, and holds settings only as pickles. Records are written before
Tune sees an epoch, so a finished trial never runs again: it is withheld from Tune, and Optuna is
given its score. Settings are drawn from the seed, so the remaining trials are unchanged. An
interrupted trial restarts, or resumes from its last saved state if its scheduler saves any.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from ray import tune
from ray.tune import Callback, Stopper

from rungwise.core.configuration.compute import ComputeConfig
from rungwise.core.errors import UserError
from rungwise.sweep.config import OptunaSearch
from rungwise.sweep.draws import Values, draw_trials, resolve_settings
from rungwise.sweep.effective import difference
from rungwise.sweep.legs import Legs
from rungwise.sweep.record import (
    TrialRecord,
    list_points,
    read_record,
    read_records,
    trial_name,
    write_record,
)
from rungwise.sweep.trial import Job, new_record, run_trial


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


def run(job: Job, compute: ComputeConfig, nodes: Sequence[dict[str, float]], scratch: str) -> None:
    """Run every unfinished trial; results are in their records.

    Raises UserError if a drawn value was not in force.
    """
    sweep = job.config.sweep
    concurrent = count_concurrent(compute, nodes)
    records = read_records(job.output)
    ended = [trial for trial in records if trial.ended]
    values = None if isinstance(sweep.search, OptunaSearch) else draw_trials(sweep)
    for each in values or ():
        resolve_settings(job.config, each)
    watch = _Watch(job, values, len(ended))
    # Report earlier attempts' trials again, since their last reports may have been lost. Tracking
    # accepts each point of a run once, so nothing is duplicated.
    for trial in records:
        if trial.ended or trial.saved_epoch is not None:
            job.report.nested(trial.name, trial.parameters())
            for row in trial.history:
                job.report.metrics(list_points(row), row["epoch"], run=trial.name)
            if trial.ended:
                job.report.nested(trial.name, {}, "FINISHED")
    if not watch.legs.decide():
        return
    tune.Tuner(
        tune.with_resources(
            functools.partial(run_trial, job=job, cpus=compute.cpus_per_trial),
            {"cpu": compute.cpus_per_trial, "gpu": compute.gpus_per_trial},
        ),
        tune_config=tune.TuneConfig(
            num_samples=watch.legs.most_legs,  # the searcher ends the search itself
            search_alg=watch.legs,
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

    def __init__(self, job: Job, values: Sequence[Values] | None, ended: int) -> None:
        self.wrong: UserError | None = None
        self.legs = Legs(job, values, self.close)
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
        self.legs.end_leg(record.name, failed=False)
        if self.wrong or record.state == "waiting":
            return  # the sweep is being aborted, or the trial may continue
        if record.state == "running":
            record.state = "stopped_early"
            write_record(record, self._job.output)
        self.close(record)

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        record = self._record(trial)
        if record.state != "failed":
            record.state, record.error = "failed", "its process died"
            write_record(record, self._job.output)
        self.legs.end_leg(record.name, failed=True)
        self.close(record, "FAILED")

    def _compare(self, name: str, values: Values, measured: dict[str, float]) -> None:
        self.wrong = self.wrong or difference(name, values, measured)

    def _record(self, trial: Any) -> TrialRecord:
        record = read_record(str(trial), self._job.output)
        # None if its process died before writing a record.
        return record or new_record(self._job.config, **trial.config["trial"])

    def close(self, record: TrialRecord, status: str = "FINISHED") -> None:
        """End a finished trial's tracking run and report progress."""
        self._ended += 1
        self._job.report.nested(record.name, {}, status)
        score = {self._job.metric: record.history[-1]["score"]} if record.history else {}
        self._job.report.progress(self._ended, self.legs.trials, trial=record.name, **score)
