"""The command a user types is stopped, is killed on S3, or has no tracking server."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from rungwise.core.stages.artifact import find_artifacts
from rungwise.core.storage.folder import Folder
from rungwise.training.ray.resume_proof import kill_with_children
from tests.commands import environment
from tests.conftest import REPOSITORY, s3_bucket, small_recipe, write_corpus, write_recipe
from tests.waiting import wait_until

# Each test is two or three whole commands.
pytestmark = pytest.mark.timeout(900)
# Slow enough to be stopped in the middle: about ten seconds of training.
LONG = {
    "pretrain.steps": 240,
    "pretrain.log_every_steps": 10,
    "compute.checkpoint_every_steps": 20,
    "model.hidden_size": 64,
    "pretrain.global_batch_size": 32,
    "model.dropout": 0.1,
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    corpus = write_corpus(tmp_path / "text", documents=60)
    return write_recipe(tmp_path / "recipe.yaml", small_recipe(tmp_path / "root", corpus))


def start(config: Path, *overrides: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "workflows/pretrain.py", str(config), *overrides],
        cwd=REPOSITORY,
        env=environment(HOME=str(config.parent), COLUMNS="200"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(config: Path, *overrides: str) -> str:
    process = start(config, *overrides)
    try:
        output, _ = process.communicate(timeout=600)
    finally:
        kill_with_children(process.pid)
    assert process.returncode == 0, output
    return output


def changes(values: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def record_of(root: Folder | Path, stage: str) -> dict[str, Any]:
    folder = Folder.at(root if isinstance(root, Path) else root.uri) / stage
    (label,) = (name for name in folder.subfolders() if not name.startswith("."))
    return json.loads((folder / label).read_bytes("artifact.json"))


def attempts_of(root: Path) -> list[dict[str, Any]]:
    return record_of(root, "pretrain")["summary"]["gradient"]["attempts"]


def assert_same_run(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["summary"]["final"] == other["summary"]["final"]
    for key in ("history", "validation", "data"):
        assert one["summary"]["gradient"][key] == other["summary"]["gradient"][key], key
    assert one["files"]["model.safetensors"] == other["files"]["model.safetensors"]


def wait_for_a_checkpoint(root: Folder, process: subprocess.Popen[str]) -> None:
    """Return when a checkpoint of a step after the first is finished."""

    def holds() -> bool:
        return any(name.endswith("/checkpoint.json") for name in (root / "pretrain").names())

    wait_until("a checkpoint", holds, code=process.poll)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["a disk", "S3"])
def test_kill_9_in_the_middle_then_the_same_command_ends_with_the_same_bits(
    place: str, config: Path, tmp_path: Path
) -> None:
    """On S3 artifacts, checkpoints and what Ray Train writes lie in the bucket."""
    with contextlib.ExitStack() as stack:
        top = (
            str(tmp_path) if place == "a disk" else stack.enter_context(s3_bucket("rungwise-runs"))
        )
        root = Folder.at(f"{top}/killed")
        # Beside a root in a bucket the tracking store would lie in the working folder.
        store = f"sqlite:///{tmp_path}/mlflow.db"
        command = [*changes(LONG), f"root={root.uri}", f"tracking.uri={store}"]
        process = start(config, *command)
        try:
            wait_for_a_checkpoint(root, process)
            os.killpg(process.pid, signal.SIGKILL)
        finally:
            kill_with_children(process.pid)
        process.communicate()
        finished = {each.stage for each in find_artifacts(root)}
        assert finished == {"corpus", "tokenizer", "tokens", "instances"}
        resumed = run(config, *command)
        assert "goes on where it was stopped" in resumed
        for name in finished:
            lines = [line for line in resumed.splitlines() if line.startswith(name)]
            assert any("cached" in line for line in lines)
        killed = record_of(root, "pretrain")
        assert not [name for name in (root / "pretrain").names() if "ray-train" in name]
    assert killed["summary"]["gradient"]["attempts"][-1]["step"] >= 20
    run(config, *changes(LONG))
    whole = record_of(tmp_path / "root", "pretrain")
    assert_same_run(killed, whole)
    assert killed["summary"]["tokens"] == whole["summary"]["tokens"]
    # MLflow holds one run of the stage, with every step once.
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("rungwise")
    assert experiment is not None
    [stage] = client.search_runs([experiment.experiment_id], "tags.`rungwise.stage` = 'pretrain'")
    points = client.get_metric_history(stage.info.run_id, "train/loss")
    assert sorted(point.step for point in points) == list(range(10, 241, 10))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_is_stopped_at_any_moment_keeps_its_steps_and_says_so(
    config: Path, tmp_path: Path, workers: int
) -> None:
    """Without checkpoints on a schedule; a line of progress comes every ten seconds."""
    rarely = {"compute.checkpoint_every_steps": 100_000, "compute.num_workers": workers}
    stopped = changes(LONG | rarely | {"pretrain.steps": 3000})
    moments = random.Random(0)
    before, begun = 0, 0
    for _ in range(2):
        begun = before
        process = start(config, *stopped)
        try:
            assert process.stdout
            lines = iter(process.stdout.readline, "")
            assert any("loss" in line and "running" in line for line in lines)
            time.sleep(moments.uniform(0, 1.5))
            os.killpg(process.pid, signal.SIGINT)
            output = "".join(lines)
        finally:
            kill_with_children(process.pid)
        assert process.wait() == 130, output
        saved = re.search(r"note +saved at step ([\d,]+)", output)
        assert saved, output
        step = int(saved[1].replace(",", ""))
        assert step > before
        before = step
    # The workers go on while the driver ends, and so may reach the last step.
    ended = bool(list((tmp_path / "root" / "pretrain").glob("*/artifact.json")))
    run(config, *stopped)
    assert attempts_of(tmp_path / "root")[-1]["step"] == (begun if ended else before)
    run(config, f"root={tmp_path / 'undisturbed'}", *stopped)
    one, other = (record_of(tmp_path / name, "pretrain") for name in ("root", "undisturbed"))
    assert_same_run(one, other)


@pytest.mark.slow
def test_a_tracking_server_that_is_gone_for_the_whole_run_changes_no_bit(
    config: Path, tmp_path: Path, unused_port: int
) -> None:
    gone = run(config, f"tracking.uri=http://127.0.0.1:{unused_port}")
    assert re.search(r"rungwise gc \S*pretrain", gone)
    run(config, f"root={tmp_path / 'undisturbed'}")
    one, other = (record_of(tmp_path / name, "pretrain") for name in ("root", "undisturbed"))
    assert_same_run(one, other)
