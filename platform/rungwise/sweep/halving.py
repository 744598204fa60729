"""Synchronous successive halving: a rung is decided once all its trials have reached it.

    every trial ──> grace_epochs ──> the best 1 in reduction_factor ──> the next rung ──> ...

Jamieson & Talwalkar 2016, "Non-stochastic best arm identification and hyperparameter optimization",
AISTATS, arXiv:1502.07943. A decision depends on scores alone, so the survivors do not depend on
which trial ends first; the asynchronous variant (Li et al. 2020) stops trials in order of arrival.

Each leg from rung to rung is a separate Ray Tune trial that ends by saving the training state; this
searcher hands legs out. Waiting trials therefore hold no resources, Tune's limit on concurrent
trials applies, and one CPU is enough. Tune's own schedulers do not fit: HyperBand fills brackets in
order of arrival and cannot be given the decisions of an earlier attempt, and with a scheduler that
pauses trials Tune starts all at once, ignoring max_concurrent_trials.

Decisions are saved before any trial continues, and a restarted sweep keeps to them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ray.tune.search import Searcher

from rungwise.sweep import record as records
from rungwise.sweep.config import HalvingScheduler, most_epochs
from rungwise.sweep.draws import Values
from rungwise.sweep.record import TrialRecord, name_of
from rungwise.sweep.trial import DECISIONS, STATES, Job


def go_on(trials: Iterable[TrialRecord], rung: int, factor: int) -> list[str]:
    """The names of trials that continue: one in `factor` of those at the rung, at least one. Ties
    are broken by smaller loss, then by number."""
    ranked = sorted(
        (-row["score"], float("inf") if row["loss"] is None else row["loss"], trial.number)
        for trial in trials
        for row in trial.history
        if row["epoch"] == rung and trial.state != "failed"
    )
    return [name_of(number) for _, _, number in ranked[: max(1, len(ranked) // factor)]]


class Legs(Searcher):
    """Hands out the next leg, up to the next rung, of each surviving trial; calls `stop` for each
    trial that is dropped."""

    def __init__(
        self, job: Job, drawn: Sequence[Values], stop: Callable[[TrialRecord], None]
    ) -> None:
        super().__init__()
        scheduler = job.config.sweep.scheduler
        assert isinstance(scheduler, HalvingScheduler)
        most = most_epochs(job.config)
        self._factor = scheduler.reduction_factor
        self._ends = [*scheduler.rungs(most), most]
        self._job, self._drawn, self._stop = job, drawn, stop
        self._decided: dict[str, list[str]] = {}  # by the rung's epoch: the trials that continue
        if job.output.exists(DECISIONS):
            self._decided = json.loads(job.output.read_bytes(DECISIONS))
        self._round = 0
        self._failed: set[str] = set()  # in this attempt; earlier failures are retried
        self._under_way: set[str] = set()
        self._legs_left = self._legs()

    @property
    def most(self) -> int:
        """The number of legs if no trial were stopped."""
        return len(self._drawn) * len(self._ends)

    def decide(self) -> bool:
        """Decide the rungs that all trials have reached; return whether anything is left to do."""
        while not self._legs_left and not self._under_way and self._round < len(self._ends) - 1:
            self._choose()
            self._round += 1
            self._legs_left = self._legs()
        return bool(self._legs_left or self._under_way)

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """The next leg; None while other legs of the round are running."""
        if not self.decide():
            return Searcher.FINISHED  # pyright: ignore[reportReturnType]
        if not self._legs_left:
            return None
        number, until = self._legs_left.pop(0)
        self._under_way.add(name_of(number))
        return {"trial": {"number": number, "values": self._drawn[number]}, "until": until}

    def leg_ended(self, name: str, failed: bool) -> None:
        self._under_way.discard(name)
        if failed:
            self._failed.add(name)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Does nothing: `leg_ended` is called with the name instead."""

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: records and decisions are the only state."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing, likewise."""

    def _legs(self) -> list[tuple[int, int]]:
        """(number, last epoch) of surviving trials that have not reached the end of this round."""
        end = self._ends[self._round]
        if str(end) in self._decided:  # by an earlier attempt; failures until then are final
            return []
        begun = {trial.name: trial for trial in records.read_all(self._job.output)}
        legs: list[tuple[int, int]] = []
        for number, values in enumerate(self._drawn):
            name, trial = name_of(number), begun.get(name_of(number))
            if name in self._failed or not self._came_through(name):
                continue
            asked = values.get("finetune.epochs", self._job.config.finetune.epochs)
            until = min(end, asked)
            reached = trial.saved.epoch if trial and trial.saved else 0
            if not (trial and trial.ended) and reached < until:
                legs.append((number, until))
        return legs

    def _came_through(self, name: str) -> bool:
        return not self._round or name in self._decided[str(self._ends[self._round - 1])]

    def _choose(self) -> None:
        """Decide this round's rung, unless an earlier attempt has, and stop the other trials."""
        rung, output = self._ends[self._round], self._job.output
        trials = [each for each in records.read_all(output) if self._came_through(each.name)]
        if str(rung) not in self._decided:
            self._decided[str(rung)] = go_on(trials, rung, self._factor)
            output.write_bytes(DECISIONS, json.dumps(self._decided, indent=1).encode())
        for trial in trials:
            if trial.state == "waiting" and trial.name not in self._decided[str(rung)]:
                trial.state = "stopped_early"
                records.write(trial, output)
                if trial.saved:
                    output.remove(f"{STATES}/{trial.saved.file}")
                self._stop(trial)
