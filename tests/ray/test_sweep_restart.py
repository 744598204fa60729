"""A sweep whose driver is killed, machine and all, and is then simply started again."""

import json
import math
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from rungwise.core.storage.folder import Folder
from rungwise.core.tracking.sender import KEY_TAG
from rungwise.tuning.trials import SweepTrial, read_records
from tests.commands import PYTHON_PATH, environment
from tests.conftest import REPOSITORY
from tests.toy_sweeps import BEST_RATE, marks
from tests.waiting import wait_until

RATES = {"finetune.learning_rate": {"kind": "loguniform", "low": 1e-5, "high": 1e-1}}
pytestmark = pytest.mark.slow


@dataclass
class Toy:
    """The workflow of sweep_job.py with one sweep block, as a command."""

    folder: Path
    root: str
    block: dict[str, Any]

    def start(self, cpus: int) -> subprocess.Popen[str]:
        arguments = [str(self.folder), self.root, str(cpus), json.dumps(self.block)]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.ray.sweep_job", *arguments],
            cwd=REPOSITORY,
            env=environment(HOME=str(self.folder), PYTHONPATH=PYTHON_PATH),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, cpus: int = 2) -> None:
        driver = self.start(cpus)
        said, _ = driver.communicate(timeout=280)
        assert driver.returncode == 0, said

    def trials(self) -> list[SweepTrial]:
        stage = Folder.at(self.root) / "sweep"
        return [trial for name in stage.subfolders() for trial in read_records(stage / name)]

    def ended(self) -> dict[str, SweepTrial]:
        return {trial.name: trial for trial in self.trials() if trial.ended}

    def starts(self) -> list[float]:
        """The learning rate of every trial that was begun, as often as it was."""
        return [mark["learning_rate"] for mark in marks(self.folder / "starts")]

    def kill_in_the_middle(self, after: int) -> None:
        """SIGKILL to the driver once so many trials have ended; wait until nothing moves."""
        driver = self.start(2)
        wait_until("trials", lambda: len(self.ended()) >= after, 250, driver.poll)
        driver.kill()
        driver.communicate()
        before: list[SweepTrial] = []
        while before != (before := self.trials()):
            time.sleep(4)


def trial_of(run: Any) -> str:
    """The trial of a nested run, which is named after its sweep too."""
    return run.info.run_name.rpartition("/")[2].partition(" of ")[0]


def nested_runs(folder: Path) -> list[Any]:
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("toy")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], max_results=500)
    return [run for run in runs if "/trial-" in str(run.info.run_name)]


def test_a_killed_halving_decides_as_it_would_have_and_repeats_no_run(tmp_path: Path) -> None:
    """Of eight trials of four epochs four pass the first milestone, two the second."""
    toy = Toy(tmp_path, str(tmp_path / "root"), {"space": RATES, "trials": 8, "halving": {}})
    toy.kill_in_the_middle(after=3)  # as soon as the first milestone is decided
    before, begun = {trial.name: trial for trial in toy.trials()}, len(toy.starts())
    toy.run()
    after = toy.ended()
    # By hand: after any epoch the better trial is the one with the rate nearer to the best.
    rates = {name: trial.values["finetune.learning_rate"] for name, trial in after.items()}
    ranked = sorted(rates, key=lambda name: abs(math.log10(rates[name] / BEST_RATE)))
    epochs = dict(zip(ranked, (4, 4, 2, 2, 1, 1, 1, 1), strict=True))
    assert {name: len(trial.history) for name, trial in after.items()} == epochs
    assert {name for name, trial in after.items() if trial.state == "finished"} == {*ranked[:2]}
    reached = [trial.saved_epoch for trial in before.values() if trial.saved_epoch]
    done = sum(1 + (epoch > 1) for epoch in reached)
    done += sum(trial.state == "finished" for trial in before.values())
    assert len(toy.starts()) - begun == 8 + 4 + 2 - done
    for name, trial in before.items():
        if trial.ended:
            assert after[name] == trial
        elif epoch := trial.saved_epoch:
            assert after[name].history[:epoch] == trial.history[:epoch]
    runs = nested_runs(toy.folder)
    assert sorted(map(trial_of, runs)) == sorted(after)
    assert {run.info.status for run in runs} == {"FINISHED"}


def test_no_trial_that_has_ended_is_repeated_after_a_kill(folder: Folder, tmp_path: Path) -> None:
    total = 8
    toy = Toy(tmp_path, folder.uri, {"space": RATES, "trials": total})
    toy.kill_in_the_middle(after=3)
    before, begun = toy.ended(), len(toy.starts())
    assert 3 <= len(before) < total
    toy.run()

    after = toy.ended()
    assert len(after) == total
    for name, trial in before.items():
        assert after[name] == trial  # to the second that it took
    starts = Counter(toy.starts())
    for trial in before.values():
        assert starts[trial.values["finetune.learning_rate"]] == 1
    # What was cut off is run again with the values it had, and nothing else twice.
    assert set(starts) == {t.values["finetune.learning_rate"] for t in after.values()}
    assert sum(starts.values()) - begun == total - len(before)

    runs = nested_runs(toy.folder)
    assert sorted(map(trial_of, runs)) == sorted(after)
    assert len({run.data.tags[KEY_TAG] for run in runs}) == total
    client = MlflowClient(f"sqlite:///{toy.folder}/mlflow.db")
    for run in runs:
        trial = after[trial_of(run)]
        assert run.info.status == "FINISHED"
        drawn = trial.values["finetune.learning_rate"]
        assert float(run.data.params["finetune.learning_rate"]) == drawn
        points = client.get_metric_history(run.info.run_id, "validation/accuracy")
        assert [point.step for point in points] == list(range(1, len(points) + 1))
        # A cut-off trial may since have been stopped at an earlier epoch than it had reached.
        assert len(points) >= len(trial.history)


def test_a_sweep_ends_on_one_cpu_beside_the_stage_that_waits_for_it(tmp_path: Path) -> None:
    toy = Toy(tmp_path, str(tmp_path / "root"), {"space": RATES, "trials": 3})
    toy.run(cpus=1)
    assert len(toy.ended()) == 3
