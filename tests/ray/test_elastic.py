"""Ray Train loses a worker or a node, or is told that it will: the run ends as it would have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rungwise.artifact import Artifact, finish
from rungwise.context import ComputeConfig
from rungwise.errors import UserError
from rungwise.proof import prove_resume, second_epoch
from rungwise.storage import Folder
from rungwise.training.progress import Progress
from tests.conftest import REPOSITORY
from tests.training_runs import config, make_instances, run, together, weights


@pytest.fixture(scope="module")
def instances(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = Folder.at(tmp_path_factory.mktemp("instances"))
    made = make_instances(Path(folder.uri))
    record = {"stage": "instances", "fingerprint": made.fingerprint, **made.record}
    return finish(folder, record, {})


def job(
    folder: Path, instances: Artifact, compute: dict[str, Any], changes: Any = None, **does: Any
) -> dict[str, Any]:
    """The summary of a run that something was done to."""
    done = start(folder, instances, compute, changes, **does)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return json.loads((folder / "summary.json").read_text())


def start(
    folder: Path, instances: Artifact, compute: dict[str, Any], changes: Any = None, **does: Any
) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    settings = config(**(changes or {}))
    whole = {
        "config": settings.model_dump(mode="json"),
        "compute": {
            "num_workers": 2,
            "micro_batch_size": 4,
            "checkpoint_every_steps": 5,
            "object_store_megabytes": 100,
            **compute,
        },
        "instances": instances.folder.uri,
        "output": str(folder / "output"),
        **does,
    }
    (folder / "job.json").write_text(json.dumps(whole))
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith("RAY_ADDRESS")
    }
    variables |= {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "10",
    }
    return subprocess.run(
        [sys.executable, "-m", "tests.ray.training_job", str(folder / "job.json")],
        cwd=REPOSITORY,
        env=variables,
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )


@pytest.mark.slow
def test_a_worker_that_is_killed_changes_no_bit_of_the_run(
    instances: Artifact, tmp_path: Path, unused_port: int
) -> None:
    """Against the same run with neither Ray nor a kill."""
    summary = job(tmp_path / "killed", instances, {}, kill_worker_at=13)
    assert (tmp_path / "killed" / "killed").exists()
    undisturbed = together(2, config(), instances, tmp_path / "straight", unused_port)
    assert undisturbed is not None
    assert summary["attempts"][-1]["step"] in (5, 10)
    for key in ("history", "validation", "data", "tokens"):
        assert summary[key] == getattr(undisturbed, key), key
    found, expected = weights(tmp_path / "killed" / "output"), weights(tmp_path / "straight")
    assert all(found[name].equal(expected[name]) for name in expected)


def assert_as_undisturbed(
    summary: dict[str, Any], settings: Any, instances: Artifact, folder: Path
) -> None:
    undisturbed: Progress = run(settings, instances, folder)
    assert summary["data"] == undisturbed.data
    for mine, theirs in zip(summary["history"], undisturbed.history, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_run_goes_on_with_fewer_workers_when_a_node_of_two_is_lost(
    instances: Artifact, tmp_path: Path, parallel: str
) -> None:
    summary = job(
        tmp_path / "lost",
        instances,
        {"min_workers": 1, "parallel": parallel},
        nodes=2,
        kill_node_at=12,
        pause=0.3,
    )
    assert (tmp_path / "lost" / "done").exists()
    assert [attempt["workers"] for attempt in summary["attempts"]] == [2, 1]
    assert summary["attempts"][-1]["step"] >= 5
    assert_as_undisturbed(summary, config(), instances, tmp_path / "straight")


@pytest.mark.slow
def test_what_only_the_user_can_mend_is_not_tried_again(
    instances: Artifact, tmp_path: Path
) -> None:
    """Two workers, four attempts allowed: one learns that the loss is not finite, all end."""
    changes = {"pretrain.optimizer.learning_rate": 1e30, "pretrain.max_skipped_steps": 0}
    done = start(tmp_path / "broken", instances, {}, changes)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("rungwise.errors.UserError: the ")
    assert "not finite at step" in last
    assert not (tmp_path / "broken" / "summary.json").exists()


@pytest.mark.slow
def test_a_notice_of_preemption_is_answered_with_a_checkpoint(
    instances: Artifact, tmp_path: Path
) -> None:
    summary = job(
        tmp_path / "drained",
        instances,
        {"min_workers": 1, "checkpoint_every_steps": 1000},
        {"pretrain.steps": 60},
        nodes=2,
        drain_node_at=5,
        pause=0.5,
    )
    saved = [row["step"] for row in json.loads(_newest(tmp_path / "drained"))["progress"]["saves"]]
    assert saved
    assert 5 < saved[0] < 60
    settings = config(**{"pretrain.steps": 60})
    assert_as_undisturbed(summary, settings, instances, tmp_path / "straight")


def _newest(folder: Path) -> str:
    return max(folder.glob("output/checkpoints/*/checkpoint.json")).read_text()


@pytest.mark.slow
def test_prove_resume_gives_a_certificate(instances: Artifact, tmp_path: Path) -> None:
    count = instances.summary["instances"]["train"]
    settings = config(**{"pretrain.steps": count // 12 * 2 + 5})
    compute = ComputeConfig(num_workers=2, micro_batch_size=6, object_store_megabytes=100)
    found = prove_resume(settings, instances, compute, Folder.at(tmp_path), seed=3)
    assert found == json.loads((tmp_path / "resume-certificate.json").read_text())
    assert found["verdict"] == "same"
    assert found["same_instances_at_every_step"]
    assert found["largest_relative_loss_difference"] <= 1e-5
    assert found["workers"] == {"undisturbed": 2, "until_the_kill": 2, "after_it": 1}
    assert count < 12 * found["killed_at_step"] <= 2 * count
    assert 0 < found["resumed_at_step"] <= found["killed_at_step"]
    assert len(found["data_hash_by_step"]) == settings.pretrain.steps


def test_a_run_that_does_not_reach_its_second_epoch_proves_nothing(instances: Artifact) -> None:
    with pytest.raises(UserError, match=r"pretrain\.steps is 3, which reads 0\.\d+ epochs"):
        second_epoch(config(**{"pretrain.steps": 3}), instances)
