"""Workers, nodes and drivers are killed, or it is announced: the run ends as it would have."""

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rungwise.core.stages.artifact import Artifact
from rungwise.training.summary import GradientRun, PretrainSummary
from rungwise.training.throughput import Progress
from tests.faults.raylets import Raylets, raylets
from tests.faults.training_job import job
from tests.training_runs import assert_same_weights, config, finished_instances, run, together

HEAD, OTHER, NEW = "127.0.0.2", "127.0.0.3", "127.0.0.4"


@pytest.fixture(scope="module")
def instances(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return finished_instances(tmp_path_factory.mktemp("instances"))


@pytest.fixture
def two_nodes() -> Iterator[Raylets]:
    with raylets(HEAD, OTHER) as cluster:
        yield cluster


def assert_bits_of(summary: PretrainSummary, output: Path, undisturbed: Progress, at: Path) -> None:
    """Everything that a run leaves is what the undisturbed one at `at` left."""
    assert summary.tokens == undisturbed.tokens
    for key in ("history", "validation"):
        assert list(getattr(run_of(summary), key)) == getattr(undisturbed, key), key
    assert_data_of(summary, undisturbed)
    assert_same_weights(output, at)


def run_of(summary: PretrainSummary) -> GradientRun:
    assert summary.gradient is not None
    return summary.gradient


def assert_data_of(summary: PretrainSummary, undisturbed: Progress) -> None:
    assert [list(row) for row in run_of(summary).data] == undisturbed.data


def assert_losses_of(summary: PretrainSummary, undisturbed: Progress) -> None:
    """With other workers meanwhile: the same rows, and losses up to rounding."""
    assert_data_of(summary, undisturbed)
    for name in ("history", "validation"):
        mine, theirs = getattr(run_of(summary), name), getattr(undisturbed, name)
        losses = [row["loss"] for row in theirs]
        assert [row["loss"] for row in mine] == pytest.approx(losses, rel=1e-5)
    final = undisturbed.validation[-1]["loss"]
    assert summary.final["loss"] == pytest.approx(final, rel=1e-5)


@pytest.mark.slow
def test_a_worker_that_is_killed_changes_no_bit_of_the_run(
    instances: Artifact, tmp_path: Path
) -> None:
    """Against the same run with neither Ray nor a kill."""
    with job(tmp_path / "killed", config(), instances, kill_at=13) as started:
        summary = started.summary()
    assert (tmp_path / "killed" / "killed").exists()
    undisturbed = together(2, config(), instances, tmp_path / "straight")
    assert undisturbed is not None
    assert run_of(summary).attempts[-1].step in (5, 10)
    output = tmp_path / "killed" / "output"
    assert_bits_of(summary, output, undisturbed, tmp_path / "straight")


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_run_goes_on_with_fewer_workers_when_a_node_of_two_is_lost(
    instances: Artifact, tmp_path: Path, two_nodes: Raylets, parallel: str
) -> None:
    compute = {"min_workers": 1, "parallel": parallel}
    lost = tmp_path / "lost"
    with job(lost, config(), instances, two_nodes.environment, compute, pause=0.3) as started:
        started.wait_for_step(12)
        two_nodes.kill(OTHER)
        summary = started.summary()
    assert [attempt.workers for attempt in run_of(summary).attempts] == [2, 1]
    assert run_of(summary).attempts[-1].step >= 5
    assert_losses_of(summary, run(config(), instances, tmp_path / "straight"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_grows_again_when_a_node_comes_after_one_was_lost(
    instances: Artifact, tmp_path: Path, two_nodes: Raylets
) -> None:
    changes = {"pretrain.steps": 200, "pretrain.optimizer.learning_rate": 0.003}
    settings = config(**changes)
    compute = {"min_workers": 1, "checkpoint_every_steps": 50}
    elastic = tmp_path / "elastic"
    with job(elastic, settings, instances, two_nodes.environment, compute, pause=0.8) as started:
        started.wait_for_step(52)
        two_nodes.kill(OTHER)
        started.wait_until("one worker", lambda: started.reached()[1] == 1)
        two_nodes.start(NEW)
        started.wait_until("two workers", lambda: started.reached()[1] == 2)
        summary = started.summary()
        workers = started.workers()
    attempts = run_of(summary).attempts
    assert [attempt.workers for attempt in attempts] == [2, 1, 2]
    assert attempts[1].step == 50
    # Nothing that one worker did is done again: the checkpoint of this step was not due.
    assert attempts[2].step % 50
    assert {worker["node"] for worker in workers if worker["world_size"] == 2} == {HEAD, NEW}
    assert_losses_of(summary, run(settings, instances, tmp_path / "straight"))


@pytest.mark.slow
def test_a_notice_of_preemption_is_answered_with_a_checkpoint_before_the_node_goes(
    instances: Artifact, tmp_path: Path, two_nodes: Raylets
) -> None:
    """No checkpoint is due; the node has fifteen seconds, then it is taken away."""
    settings = config(**{"pretrain.steps": 80})
    compute = {"min_workers": 1, "checkpoint_every_steps": 1000}
    drained = tmp_path / "drained"
    with job(drained, settings, instances, two_nodes.environment, compute, pause=0.5) as started:
        started.wait_for_step(5)
        deadline = time.monotonic() + 15
        two_nodes.drain(started.nodes()[OTHER], seconds=15)
        started.wait_until("a checkpoint", started.checkpoint, deadline - time.monotonic())
        record = started.checkpoint()
        assert record is not None
        time.sleep(max(0.0, deadline - time.monotonic()))
        two_nodes.kill(OTHER)
        summary = started.summary()
    saved = record["progress"]["step"]
    assert 5 < saved < 40
    assert [(attempt.step, attempt.workers) for attempt in run_of(summary).attempts] == [
        (0, 2),
        (saved, 1),
    ]
    assert_losses_of(summary, run(settings, instances, tmp_path / "straight"))


@pytest.mark.slow
def test_a_driver_that_is_killed_and_started_again_changes_no_bit_of_the_run(
    instances: Artifact, tmp_path: Path
) -> None:
    """SIGKILL to the driver alone; what it started is left to end by itself."""
    settings = config(**{"pretrain.steps": 60})
    with job(tmp_path / "killed", settings, instances, pause=0.1) as started:
        started.wait_for_step(33)
        # Ray's agents of a node, which hold nothing of the run, look about once a minute.
        left = [process for process in started.family() if "Agent" not in process.name()]
        started.process.kill()
        started.process.wait()
        _, alive = psutil.wait_procs(left, timeout=30)
        assert not alive, alive
    with job(tmp_path / "killed", settings, instances) as started:
        summary = started.summary()
    undisturbed = together(2, settings, instances, tmp_path / "straight")
    assert undisturbed is not None
    assert run_of(summary).attempts[-1].step >= 25
    output = tmp_path / "killed" / "output"
    assert_bits_of(summary, output, undisturbed, tmp_path / "straight")
