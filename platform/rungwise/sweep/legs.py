"""The trials of a sweep in legs, each a trial of Ray Tune: one leg, or one to each milestone of
synchronous successive halving, which is decided once all its trials have reached it.

    every trial ──> grace_epochs ──> the best 1 in reduction_factor ──> the next milestone ──> ...

Jamieson & Talwalkar 2016, "Non-stochastic best arm identification and hyperparameter optimization",
AISTATS, arXiv:1502.07943. A decision depends on scores alone, so the survivors do not depend on
which trial ends first; the asynchronous variant (Li et al. 2020) stops trials in order of arrival.

A leg to a milestone ends by saving the training state. Waiting trials therefore hold no resources,
Tune's limit on concurrent trials applies, and one CPU is enough. Tune's own schedulers do not fit:
HyperBand fills brackets in order of arrival and cannot be given the decisions of an earlier
attempt, and with a scheduler that pauses trials Tune starts all at once, ignoring
max_concurrent_trials.

Decisions are saved before any trial continues, and a restarted sweep keeps to them.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ray.tune.search import Searcher

from rungwise.core.stages.notes import read_note, write_note
from rungwise.sweep.config import EPOCHS, HalvingScheduler, most_epochs
from rungwise.sweep.draws import Values, propose
from rungwise.sweep.record import TrialRecord, read_record, read_records, trial_name, write_record
from rungwise.sweep.trial import DECISIONS, Job


def select_survivors(
    trials: Iterable[TrialRecord], milestone: int, scheduler: HalvingScheduler
) -> list[str]:
    """The names of trials that continue from a milestone; ties: smaller loss, then number."""
    ranked = sorted(
        (-row["score"], float("inf") if row["loss"] is None else row["loss"], trial.number)
        for trial in trials
        for row in trial.history
        if row["epoch"] == milestone and trial.state != "failed"
    )
    return [trial_name(number) for _, _, number in scheduler.select(ranked)]


class Legs(Searcher):
    """Hands out the next leg, up to the next milestone, of each surviving trial; calls `stop` for
    each trial that is dropped. Without `values`, which are by number, Optuna proposes those of a
    trial as it begins. Its only state is in the records of trials."""

    def __init__(
        self, job: Job, values: Sequence[Values] | None, stop: Callable[[TrialRecord], None]
    ) -> None:
        super().__init__()
        sweep, self._last_epoch = job.config.sweep, most_epochs(job.config)
        self._scheduler, milestones = sweep.scheduler, list[int]()
        if isinstance(self._scheduler, HalvingScheduler):
            milestones = self._scheduler.milestones(self._last_epoch)
        self._ends = [*milestones, self._last_epoch]
        self._job, self._values, self._stop = job, values, stop
        self.trials = sweep.trials or 0 if values is None else len(values)
        self._survivors: dict[str, list[str]] = {}  # by milestone: the trials that continue
        if note := read_note(job.output, DECISIONS):
            self._survivors = note
        self._round = 0
        self._failed: set[str] = set()  # in this attempt; earlier failures are retried
        self._running: set[str] = set()
        self._legs = self._open_round()

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Does nothing: `end_leg` is called with the name of the trial."""

    def save(self, checkpoint_path: str) -> None:
        """Does nothing."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing."""

    @property
    def most_legs(self) -> int:
        """The number of legs if no trial were stopped."""
        return self.trials * len(self._ends)

    def decide(self) -> bool:
        """Decide the milestones that all trials have reached; return whether anything is left."""
        while not self._legs and not self._running and self._round < len(self._ends) - 1:
            self._close_round()
            self._round += 1
            self._legs = self._open_round()
        return bool(self._legs or self._running)

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """The next leg; None while other legs of the round are running."""
        if not self.decide():
            return Searcher.FINISHED  # pyright: ignore[reportReturnType]
        if not self._legs:
            return None
        number = self._legs.pop(0)
        self._running.add(trial_name(number))
        values = self._propose(number) if self._values is None else self._values[number]
        return {"trial": {"number": number, "values": values}, "until": self._until(values)}

    def end_leg(self, name: str, failed: bool) -> None:
        self._running.discard(name)
        if failed:
            self._failed.add(name)

    def _open_round(self) -> list[int]:
        """The survivors short of the end of this round, those with records first."""
        if str(self._ends[self._round]) in self._survivors:
            return []  # decided by an earlier attempt; failures until then are final
        records = {trial.number: trial for trial in read_records(self._job.output)}
        legs: list[int] = []
        for number in sorted(range(self.trials), key=lambda number: number not in records):
            name, trial = trial_name(number), records.get(number)
            if name in self._failed or not self._survived(name):
                continue
            reached = trial.saved_epoch or 0 if trial else 0
            if trial is None or not (trial.ended or reached >= self._until(trial.values)):
                legs.append(number)
        return legs

    def _until(self, values: Values) -> int:
        """The epoch that ends this round for a trial."""
        return min(self._ends[self._round], values.get(EPOCHS, self._job.config.finetune.epochs))

    def _propose(self, number: int) -> Values:
        """The values that a trial had when it was interrupted, or those that Optuna proposes from
        the scores of trials that have ended."""
        if record := read_record(trial_name(number), self._job.output):
            return record.values
        ended = [trial for trial in read_records(self._job.output) if trial.ended]
        scored = [(trial.values, trial.history[-1]["score"]) for trial in ended]
        return propose(self._job.config.sweep, number, scored)

    def _survived(self, name: str) -> bool:
        return not self._round or name in self._survivors[str(self._ends[self._round - 1])]

    def _close_round(self) -> None:
        """Decide this milestone, unless an earlier attempt has, and stop the other trials."""
        milestone, output = self._ends[self._round], self._job.output
        assert isinstance(self._scheduler, HalvingScheduler)
        trials = [each for each in read_records(output) if self._survived(each.name)]
        if str(milestone) not in self._survivors:
            self._survivors[str(milestone)] = select_survivors(trials, milestone, self._scheduler)
            write_note(output, DECISIONS, self._survivors)
        for trial in trials:
            if trial.state == "waiting" and trial.name not in self._survivors[str(milestone)]:
                trial.state = "stopped_early"
                write_record(trial, output)
                if trial.saved_epoch is not None:
                    output.remove(trial.state_file(trial.saved_epoch))
                self._stop(trial)
