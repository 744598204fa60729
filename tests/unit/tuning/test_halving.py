"""Successive halving by its rounds alone: runs that end in a shuffled order, and kills."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rungwise.core.stages.stage import SilentReporter
from rungwise.core.storage.folder import Folder
from rungwise.tuning.running import SweepJob, new_record, play_rounds, train
from rungwise.tuning.trials import (
    Epoch,
    draw_trials,
    read_record,
    read_records,
    resolve_settings,
    trial_name,
    write_record,
)
from tests.toy_sweeps import score_of, stage_config

BLOCK = {
    "space": {
        "finetune.learning_rate": {"kind": "loguniform", "low": 1e-5, "high": 1e-1},
        "finetune.epochs": {"kind": "choice", "values": [1, 3, 5, 8]},
    },
    "trials": 12,
    "halving": {"grace_period": 0.125},
}
CONFIG = stage_config({}, **BLOCK)
VALUES = draw_trials(CONFIG.sweep)
SETTINGS = {trial_name(n): resolve_settings(CONFIG, values) for n, values in enumerate(VALUES)}
FAILS = "trial-004"


class Cluster:
    """Runs trials round by round; `seed` draws which ends next."""

    def __init__(self, output: Path, seed: int) -> None:
        self.job = SweepJob(CONFIG, {}, Folder.at(output), "accuracy", SilentReporter(), train)
        self.ended: Counter[tuple[str, int]] = Counter()
        self.order: list[str] = []
        self.stopped: list[str] = []
        self._draw = random.Random(seed)

    def work(self, most: int | None = None) -> bool:
        """Go on until the end, or until so many runs have ended: killed then, with some begun."""
        for end, runs in play_rounds(self.job, lambda trial: self.stopped.append(trial.name)):
            self._draw.shuffle(runs)
            whole = runs if most is None else runs[:most]
            for number in whole:
                self._run(number, end)
            for number in runs[len(whole) : len(whole) + 3]:
                self._run(number, end, cut_off=True)
            if most is not None and (most := most - len(whole)) == 0:
                return False
        return True

    def _run(self, number: int, end: int, cut_off: bool = False) -> None:
        trial = read_record(trial_name(number), self.job.output) or new_record(CONFIG, number)
        name, settings = trial.name, trial.finetune
        until = min(end, settings.epochs)
        trial.history = trial.history[: trial.saved_epoch or 0]
        for epoch in range(len(trial.history) + 1, until + (not cut_off)):
            score = score_of(settings, epoch)
            row = Epoch(epoch=epoch, score=score, loss=None, seconds=0.0, metrics={})
            trial.history = (*trial.history, row)
        if name == FAILS and until > 1:
            trial.state = "failed"
        elif cut_off:
            trial.state = "running"
        elif until == settings.epochs:
            trial.state = "finished"
        else:
            trial.state, trial.saved_epoch = "waiting", until
        write_record(trial, self.job.output)
        if not cut_off:
            self.ended[name, until] += 1
            self.order.append(name)

    def told(self) -> list[Any]:
        return [
            (trial.name, trial.state, [(row.epoch, row.score) for row in trial.history])
            for trial in read_records(self.job.output)
            if trial.state != "failed"
        ]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    cluster = Cluster(tmp_path_factory.mktemp("undisturbed"), 0)
    assert cluster.work()
    return cluster


def test_the_survivors_are_those_by_hand(undisturbed: Cluster) -> None:
    left = set(SETTINGS)
    for milestone in (1, 2, 4):
        came = [name for name in left if SETTINGS[name].epochs >= milestone]
        came = [name for name in came if name != FAILS or milestone == 1]
        came.sort(key=lambda name, at=milestone: -score_of(SETTINGS[name], at))
        out = came[max(1, len(came) // 2) :]
        for name in out:
            if SETTINGS[name].epochs > milestone:
                expected = [
                    (epoch, score_of(SETTINGS[name], epoch)) for epoch in range(1, milestone + 1)
                ]
                assert (name, "stopped_early", expected) in undisturbed.told()
        left -= set(out) | {FAILS}
    for name in left:
        assert (name, "finished") in [row[:2] for row in undisturbed.told()]
    assert set(undisturbed.ended.values()) == {1}


@pytest.mark.parametrize("seed", range(1, 4))
def test_the_order_of_ends_decides_nothing(undisturbed: Cluster, tmp_path: Path, seed: int) -> None:
    other = Cluster(tmp_path / "other", seed)
    assert other.work()
    assert other.order != undisturbed.order
    assert other.told() == undisturbed.told()
    assert sorted(other.stopped) == sorted(undisturbed.stopped)


@pytest.mark.parametrize("after", [1, 11, 12, 13, 16, 18, 19])
def test_a_killed_sweep_decides_the_same_and_repeats_no_run(
    undisturbed: Cluster, tmp_path: Path, after: int
) -> None:
    cluster = Cluster(tmp_path / "killed", after)
    assert not cluster.work(after)
    assert cluster.work()
    assert cluster.told() == undisturbed.told()
    del cluster.ended[FAILS, 2]  # a trial that failed is tried again
    assert set(cluster.ended.values()) == {1}
    assert cluster.ended.keys() | {(FAILS, 2)} == undisturbed.ended.keys() | {(FAILS, 2)}
