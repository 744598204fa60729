"""Running trials with Ray Tune: scheduling, and resuming after a kill.

Resuming relies on the trial records, not on Tune: its experiment snapshot lags by many seconds,
may be unreadable for a later Ray, and holds settings only as pickles. Records are written before
Tune sees an epoch, so a finished trial never runs again: it is withheld from Tune, and Optuna is
given its score. Settings are drawn from the seed, so the remaining trials are unchanged. An
interrupted trial restarts, or resumes from its last saved state if its scheduler saves any.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ray import tune
from ray.tune import Callback, Stopper
from ray.tune.schedulers import FIFOScheduler, PopulationBasedTraining, TrialScheduler
from ray.tune.search import BasicVariantGenerator

from rungwise.core.configuration.compute import ComputeConfig
from rungwise.core.errors import UserError
from rungwise.sweep import record as records
from rungwise.sweep.config import HalvingScheduler, OptunaSearch, PbtScheduler, SweepConfig
from rungwise.sweep.draws import Values, points, settings_of
from rungwise.sweep.effective import difference
from rungwise.sweep.halving import Legs
from rungwise.sweep.record import TrialRecord, name_of
from rungwise.sweep.trial import Job, run_trial

_SCORE, _MODE, _TIME = "score", "max", "epoch"


def room(compute: ComputeConfig, nodes: Sequence[dict[str, float]]) -> int:
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
    at_once = room(compute, nodes)
    earlier = records.read_all(job.output)
    ended = [trial for trial in earlier if trial.ended]
    drawn = None if isinstance(sweep.search, OptunaSearch) else points(sweep)
    total = len(drawn) if drawn is not None else sweep.trials
    assert total is not None
    cut_off = {trial.number: trial.values for trial in earlier if not trial.ended}
    left = [number for number in range(total) if name_of(number) not in {t.name for t in ended}]
    for trial in earlier:
        if trial.ended or trial.saved:
            _tell_again(trial, job)
    if not left:
        return
    for values in drawn or ():
        settings_of(job.config, values)
    watch = _Watch(job, len(ended), total)
    search: Any
    limited = at_once
    if drawn is None:
        search = _optuna(sweep, ended, cut_off, left)
        space, samples = {}, len(left)
    elif isinstance(sweep.scheduler, HalvingScheduler):
        search = watch.legs = Legs(job, drawn, watch.close)
        if not search.decide():
            return
        space, samples = {}, search.most  # an upper bound; the searcher ends the search itself
    else:
        # PBT compares the whole population, so all its trials start and take turns on resources.
        search = BasicVariantGenerator(max_concurrent=0 if job.population else at_once)
        todo = [{"number": n, "values": cut_off.get(n, drawn[n])} for n in left]
        space, samples, limited = {"trial": tune.grid_search(todo)}, 1, None
    tune.Tuner(
        tune.with_resources(
            functools.partial(run_trial, job=job),
            {"cpu": compute.cpus_per_trial, "gpu": compute.gpus_per_trial},
        ),
        param_space=space,
        tune_config=tune.TuneConfig(
            num_samples=samples,
            search_alg=search,
            scheduler=_population(sweep, job.population) if job.population else FIFOScheduler(),
            max_concurrent_trials=limited,
            # Saves starting a process per trial; safe because training seeds all its generators.
            reuse_actors=True,
            trial_name_creator=_trial_name,
            trial_dirname_creator=_folder_name,
        ),
        run_config=tune.RunConfig(
            name="sweep", storage_path=scratch, verbose=0, callbacks=[watch], stop=_Stop(watch)
        ),
    ).fit()
    if watch.wrong:
        raise watch.wrong


def _trial_name(trial: Any) -> str:
    return name_of(trial.config["trial"]["number"])


def _folder_name(trial: Any) -> str:
    return f"{_trial_name(trial)}-{trial.config.get('until', 'end')}"


def _optuna(
    sweep: SweepConfig, ended: list[TrialRecord], cut_off: dict[int, Values], left: list[int]
) -> Any:
    """Optuna with the finished trials as observations; it first repeats interrupted ones."""
    import optuna
    from ray.tune.search.optuna import OptunaSearch as Searcher

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    again = [number for number in left if number in cut_off]
    numbers = iter([*again, *(number for number in left if number not in cut_off)])

    class Numbered(Searcher):
        def suggest(self, trial_id: str) -> dict[str, Any] | None:
            values = super().suggest(trial_id)
            return (
                None if values is None else {"trial": {"number": next(numbers), "values": values}}
            )

    # Restarted with the same seed, Optuna would repeat its first draws, so change the seed.
    state = np.random.SeedSequence([sweep.seed, len(ended), len(again)]).generate_state(1)
    searcher = Numbered(
        space={key: _distribution(allowed) for key, allowed in sorted(sweep.space.items())},
        metric=_SCORE,
        mode=_MODE,
        points_to_evaluate=[cut_off[number] for number in again],
        seed=int(state[0]),
    )
    for trial in ended:
        searcher.add_evaluated_point(trial.values, trial.history[-1]["score"])
    return searcher


def _distribution(allowed: Any) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    match allowed.kind:
        case "integer":
            return IntDistribution(allowed.low, allowed.high, step=allowed.step)
        case "uniform" | "loguniform":
            return FloatDistribution(allowed.low, allowed.high, log=allowed.kind == "loguniform")
        case _:
            return CategoricalDistribution(allowed.values)


def _population(sweep: SweepConfig, scheduler: PbtScheduler) -> TrialScheduler:
    rng = np.random.default_rng([sweep.seed, len(sweep.space)])
    random.seed(sweep.seed)  # used by PBT to choose and perturb; order of arrival still matters
    varied: dict[str, list[Any] | Callable[[], Any]] = {}
    for key in scheduler.mutations:
        allowed = sweep.space[key]
        listed = allowed.finite()
        varied[key] = sorted(listed) if listed else lambda one=allowed: one.draw(rng)

    def within(config: dict[str, Any]) -> dict[str, Any]:
        values = config["trial"]["values"]
        for key in scheduler.mutations:
            values[key] = sweep.space[key].nearest(values[key])
        return config

    return _Population(
        time_attr=_TIME,
        metric=_SCORE,
        mode=_MODE,
        perturbation_interval=scheduler.perturbation_interval_epochs,
        hyperparam_mutations={"trial": {"values": varied}},
        custom_explore_fn=within,
        log_config=False,
    )


class _Population(PopulationBasedTraining):
    """PBT that lets a trial end after its last epoch; Tune's would exploit once more."""

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if result[_TIME] >= result["epochs_asked"]:
            return TrialScheduler.CONTINUE
        return super().on_trial_result(tune_controller, trial, result)


class _Watch(Callback):
    """Compares measured with drawn values, completes records and reports progress."""

    def __init__(self, job: Job, ended: int, total: int) -> None:
        self.wrong: UserError | None = None
        self.legs: Legs | None = None
        self._job = job
        self._ended = ended
        self._total = total

    def on_trial_result(
        self, iteration: int, trials: list, trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        # Not the values of `trial`, which PBT may have changed already.
        self._compare(str(trial), result["values"], result["measured"])

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        record = self._record(trial)
        self._compare(record.name, record.values, record.effective)
        if self.legs:
            self.legs.leg_ended(record.name, failed=False)
        if self.wrong or record.state == "waiting":
            return  # the sweep is being aborted, or the trial may continue
        if record.state == "running":
            record.state = "stopped_early"
            records.write(record, self._job.output)
        self.close(record)

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        record = self._record(trial)
        if record.state != "failed":
            record.state, record.error = "failed", "its process died"
            records.write(record, self._job.output)
        if self.legs:
            self.legs.leg_ended(record.name, failed=True)
        self.close(record, "FAILED")

    def _compare(self, name: str, values: Values, measured: dict[str, float]) -> None:
        self.wrong = self.wrong or difference(name, values, measured)

    def _record(self, trial: Any) -> TrialRecord:
        record = records.read(str(trial), self._job.output)
        if record is not None:
            return record
        # Its process died before writing a record.
        drawn = trial.config["trial"]
        settings = settings_of(self._job.config, drawn["values"]).model_dump(mode="json")
        return TrialRecord(
            name=str(trial),
            number=drawn["number"],
            drawn=drawn["values"],
            values=drawn["values"],
            upstream=None,
            settings=settings,
            seed=self._job.config.sweep.seed,
        )

    def close(self, record: TrialRecord, status: str = "FINISHED") -> None:
        """End a finished trial's tracking run and report progress."""
        self._ended += 1
        self._job.report.nested(record.name, {}, status)
        shown = {self._job.metric: record.history[-1]["score"]} if record.history else {}
        self._job.report.progress(self._ended, self._total, trial=record.name, **shown)


class _Stop(Stopper):
    """Stops the sweep as soon as a drawn value was not in force."""

    def __init__(self, watch: _Watch) -> None:
        self._watch = watch

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._watch.wrong is not None


def _tell_again(trial: TrialRecord, job: Job) -> None:
    """Report an earlier attempt's trial again, since its last reports may have been lost. Tracking
    accepts each point of a run once, so nothing is duplicated."""
    job.report.nested(trial.name, trial.parameters())
    for row in trial.history:
        job.report.metrics(trial.points(row), row["epoch"], run=trial.name)
    if trial.ended:
        job.report.nested(trial.name, {}, "FINISHED")
