"""The trials of a sweep in rounds, each run of one a trial of Ray Tune: one round, or one to each
milestone of synchronous successive halving, which is decided once all its trials have reached it.

    every trial ──> grace_period ──> the best 1 in reduction_factor ──> the next milestone ──> ...

A decision depends on scores alone, so the survivors do not depend on which trial ends first; the
asynchronous variant (Li et al. 2020) stops trials in order of arrival.

A run to a milestone ends by saving the training state. Waiting trials therefore hold no resources,
Tune's limit on concurrent trials applies, and one CPU is enough. Tune's own schedulers do not fit:
HyperBand fills brackets in order of arrival and cannot be given the decisions of an earlier
attempt, and with a scheduler that pauses trials Tune starts all at once, ignoring
max_concurrent_trials.

Decisions are saved before any trial continues, and a restarted sweep keeps to them.
"""

from collections.abc import Callable, Iterable
from typing import Any

from ray.tune.search import Searcher

from rungwise.core.stages.notes import read_note, write_note
from rungwise.tuning.config import EPOCHS, Halving
from rungwise.tuning.draws import Values, draw_trials
from rungwise.tuning.record import SweepTrial, read_records, trial_name, write_record
from rungwise.tuning.selection import rank_trials
from rungwise.tuning.trial import DECISIONS, SweepJob


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
