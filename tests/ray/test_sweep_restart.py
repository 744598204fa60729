"""A sweep whose driver is killed, machine and all, and is then simply started again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from rungwise.storage import Folder
from rungwise.sweep import record as records
from rungwise.tracking import KEY_TAG
from tests.conftest import REPOSITORY
from tests.toy_sweeps import marks

RATES = {"finetune.learning_rate": {"kind": "loguniform", "low": 1e-5, "high": 1e-1}}
ASHA = {"kind": "asha", "grace_epochs": 1}
PBT = {"kind": "pbt", "mutations": ["finetune.learning_rate"]}
pytestmark = pytest.mark.slow


def command(folder: Path, cpus: int, block: dict[str, Any]) -> list[str]:
    return [sys.executable, "-m", "tests.ray.sweep_job", str(folder), str(cpus), json.dumps(block)]


def environment(folder: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW", "RAY_ADDRESS"))}
    path = f"{REPOSITORY / 'platform'}{os.pathsep}{REPOSITORY}"
    return kept | {"HOME": str(folder), "PYTHONPATH": path}


def run(folder: Path, cpus: int, block: dict[str, Any]) -> None:
    done = subprocess.run(
        command(folder, cpus, block),
        cwd=REPOSITORY,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def swept(folder: Path) -> Folder:
    """The folder of the sweep's artifact."""
    (found,) = (folder / "root" / "sweep").iterdir()
    return Folder.at(found)


def ended(folder: Path) -> dict[str, records.TrialRecord]:
    if not (folder / "root" / "sweep").exists():
        return {}
    return {trial.name: trial for trial in records.read_all(swept(folder)) if trial.ended}


def kill_in_the_middle(folder: Path, block: dict[str, Any], after: int) -> None:
    """SIGKILL to the driver once so many trials have ended, and wait until nothing moves."""
    driver = subprocess.Popen(
        command(folder, 2, block),
        cwd=REPOSITORY,
        env=environment(folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 200
    while len(ended(folder)) < after:
        assert driver.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    driver.kill()
    driver.wait()
    before = -1
    while before != (before := len(list((folder / "root").rglob("*")))):
        time.sleep(3)


def nested_runs(folder: Path) -> list[Any]:
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("toy")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], max_results=500)
    return [run for run in found if run.info.run_name.startswith("trial-")]


@pytest.mark.parametrize(
    ("search", "trials"), [({"kind": "random"}, 8), ({"kind": "optuna"}, 8)], ids=lambda x: str(x)
)
def test_no_trial_that_has_ended_is_repeated_after_a_kill(
    tmp_path: Path, search: dict[str, Any], trials: int
) -> None:
    block = {"space": RATES, "trials": trials, "search": search, "scheduler": ASHA}
    kill_in_the_middle(tmp_path, block, after=3)
    before = ended(tmp_path)
    assert 3 <= len(before) < trials
    begun = len(marks(tmp_path / "starts"))
    run(tmp_path, 2, block)

    after = ended(tmp_path)
    assert len(after) == trials
    for name, trial in before.items():
        assert after[name] == trial  # to the second that it took
    starts = Counter(mark["learning_rate"] for mark in marks(tmp_path / "starts"))
    for trial in before.values():
        assert starts[trial.values["finetune.learning_rate"]] == 1
    # What was cut off is run again with the values it had, and nothing else twice.
    assert set(starts) == {t.values["finetune.learning_rate"] for t in after.values()}
    assert sum(starts.values()) - begun == trials - len(before)

    runs = nested_runs(tmp_path)
    assert sorted(run.info.run_name for run in runs) == sorted(after)
    assert len({run.data.tags[KEY_TAG] for run in runs}) == trials
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    for run_ in runs:
        trial = after[run_.info.run_name]
        assert run_.info.status == "FINISHED"
        drawn = trial.values["finetune.learning_rate"]
        assert float(run_.data.params["finetune.learning_rate"]) == drawn
        points = client.get_metric_history(run_.info.run_id, "validation/accuracy")
        assert [point.step for point in points] == list(range(1, len(points) + 1))
        # A cut-off trial may since have been stopped at an earlier epoch than it had reached.
        assert len(points) >= len(trial.history)


def test_a_killed_population_goes_on_from_its_saved_states(tmp_path: Path) -> None:
    block = {"space": RATES, "trials": 3, "scheduler": PBT}
    kill_in_the_middle(tmp_path, block, after=1)
    before = {trial.name: trial for trial in records.read_all(swept(tmp_path))}
    run(tmp_path, 2, block)
    after = ended(tmp_path)
    assert len(after) == 3
    for name, trial in before.items():
        if trial.ended:
            assert after[name] == trial
        elif trial.saved and trial.saved.trial == name:
            # The epochs before its last state are those of the first attempt.
            assert after[name].history[: trial.saved.rows] == trial.history[: trial.saved.rows]
    assert all(trial.history[-1]["epoch"] == 4 for trial in after.values())
    assert not (Path(swept(tmp_path).uri) / ".states").exists()


def test_a_sweep_ends_on_one_cpu_beside_the_stage_that_waits_for_it(tmp_path: Path) -> None:
    run(tmp_path, 1, {"space": RATES, "trials": 3})
    assert len(ended(tmp_path)) == 3
