"""Validation in Ray tasks: room for one, what becomes of it, and the rows of two workers."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import WorkerCrashedError

from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.stages.artifact import Artifact, finish
from rungwise.training.parallel import Work
from rungwise.training.ray.gradient import ValidationTask, submit
from tests.faults.training_job import job
from tests.training_runs import assert_same_weights, config, make_instances, together
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def start(cpus: float, work: Work) -> ValidationTask:
    """A task that starts as soon as Ray has counted what the one before freed."""
    return wait_until("no room", lambda: submit_once(cpus, work), 60)


def submit_once(cpus: float, work: Work) -> ValidationTask | None:
    return submit("validation of this test", ComputeConfig(cpus_per_worker=cpus), work)


def test_a_task_has_the_resources_of_a_worker_or_there_is_none(ray_session: None) -> None:
    def count_cpus(device: Any) -> dict[str, float]:
        return ray.get_runtime_context().get_assigned_resources()

    def die(device: Any) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    def sleep_long(device: Any) -> dict[str, float]:
        time.sleep(600)
        return {}

    cpus = ray.cluster_resources()["CPU"]
    assert submit_once(cpus + 1, die) is None
    assert start(cpus, count_cpus).result(60)["CPU"] == cpus
    with pytest.raises(WorkerCrashedError):
        start(cpus, die).result(60)
    with pytest.raises(TimeoutError, match="it has not ended after 1 s"):
        start(cpus, sleep_long).result(1)
    # As after a kill of the process that waits for the task: nobody closes it.
    start(cpus, count_cpus)
    assert start(cpus, count_cpus).result(60)["CPU"] == cpus


def test_rows_of_two_workers_are_those_of_the_loop_to_the_bit(
    tmp_path: Path, unused_port: int
) -> None:
    made = make_instances(tmp_path / "instances", "masked_pairs")
    record = {"stage": "instances", "fingerprint": made.fingerprint, **made.record}
    instances: Artifact = finish(made.folder, record, {})
    settings = config(**{"pretrain.validation_every_steps": 5})
    inside = together(2, settings, instances, tmp_path / "inside", unused_port)
    compute: dict[str, Any] = {
        "num_workers": 2,
        "cpus_per_worker": 0.5,
        "keep_checkpoint_every_steps": 5,
        "asynchronous_validation": True,
    }
    with job(tmp_path / "beside", settings, instances, compute=compute) as started:
        beside = started.summary().gradient
    assert inside
    assert beside
    assert list(beside.validation) == inside.validation
    assert list(beside.history) == inside.history
    assert_same_weights(tmp_path / "inside", tmp_path / "beside" / "output")
    # Checkpoints do not wait for the tasks of their steps, so some task ran.
    first = min((tmp_path / "beside").glob("output/checkpoints/*/checkpoint.json"))
    assert [row["step"] for row in json.loads(first.read_text())["progress"]["validation"]] == [0]
