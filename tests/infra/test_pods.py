"""Commands, variables, probes and hooks of the manifests, run as processes here (pods.py)."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import REPOSITORY, small_recipe, write_corpus, write_recipe
from tests.infra.pods import KUBERAY, TOKEN, Pod, pods, render, write_overlay
from tests.waiting import wait_until

HEAD, SPOT, NEW = "127.0.0.2", "127.0.0.3", "127.0.0.4"
STEPS = 3000  # half a minute and more, so that a run is not over before anything happens to it
NOTICE = 10  # seconds, as of a cloud that gives less than two minutes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("kubectl") is None, reason="needs kubectl (Debian: kubernetes-client)"
    ),
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and its text, as a user has it and as an image holds it."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(REPOSITORY / "workflows", folder / "workflows")
    write_corpus(folder / "text", documents=60)
    recipe = small_recipe(Path("runs"), folder / "text")
    recipe["pretrain"] |= {"steps": STEPS, "validation_every_steps": 1000}
    write_recipe(folder / "small.yaml", recipe)
    return folder


@pytest.fixture(scope="module")
def undisturbed(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of the same run without a cluster."""
    root = tmp_path_factory.mktemp("undisturbed")
    command = [sys.executable, "-m", "rungwise", "run", "pretrain", "small.yaml", f"root={root}"]
    done = subprocess.run(
        command, cwd=project, env=variables(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return root


def variables(**more: str) -> dict[str, str]:
    """The environment of a user who knows the cluster's token."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "MLFLOW_"))}
    return inherited | {"PYTHONPATH": str(REPOSITORY / "platform")} | more


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, Any]:
    """That of the overlay `spot` as a user patches it: places of this machine, a short notice."""
    places = [str(tmp_path / "bucket"), f"sqlite:///{tmp_path / 'mlflow.db'}"]
    groups = ["headGroupSpec", "workerGroupSpecs/0", "workerGroupSpecs/1"]
    changes: dict[str, Any] = {
        f"{group}/template/spec/containers/0/env/{number}/value": place
        for group in groups
        for number, place in enumerate(places)
    }
    spot = "workerGroupSpecs/1/template/spec"
    changes[f"{spot}/terminationGracePeriodSeconds"] = NOTICE + 10
    changes[f"{spot}/containers/0/lifecycle/preStop/exec/command/3"] = str(NOTICE)
    patch = [{"op": "replace", "path": f"/spec/{k}", "value": v} for k, v in changes.items()]
    patches = [{"target": {"kind": "RayCluster"}, "patch": yaml.safe_dump(patch)}]
    folder = write_overlay(tmp_path / "overlay", "spot", ["durable-head"], patches=patches)
    [made] = [each for each in render(folder) if each["kind"] == "RayCluster"]
    return made


class Job:
    """A command that submits a job and follows it."""

    def __init__(self, command: list[str], folder: Path, log: Path) -> None:
        self._log = log
        environment = variables(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)
        with log.open("w") as stream:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=stream, stderr=stream
            )

    def printed(self) -> str:
        return self._log.read_text()

    def wait_for_steps(self) -> None:
        """Until the job says that some of its training is done."""
        pattern = re.compile(rf"^pretrain +running .* [1-9][\d,]*/{STEPS:,} ", re.MULTILINE)
        wait_until(self.printed, lambda: pattern.search(self.printed()), code=self.process.poll)

    def finish(self) -> None:
        assert self.process.wait(280) == 0, self.printed()


def read_training(root: Path) -> dict[str, Any]:
    [record] = root.glob("pretrain/*/artifact.json")
    return json.loads(record.read_text())["summary"]["gradient"]


def list_artifacts(root: Path) -> set[str]:
    """The stages that are finished, each with its fingerprint."""
    return {str(record.parent.relative_to(root)) for record in root.glob("*/*/artifact.json")}


def assert_undisturbed(root: Path, undisturbed: Path) -> None:
    """Every artifact has the id, and every step the loss, of the undisturbed run."""
    assert list_artifacts(root) == list_artifacts(undisturbed)
    assert read_training(root)["history"] == read_training(undisturbed)["history"]


@pytest.mark.timeout(900)
def test_a_training_saves_before_its_spot_pod_goes_and_goes_on_in_the_next_one(
    project: Path, undisturbed: Path, cluster: dict[str, Any], tmp_path: Path
) -> None:
    """No checkpoint is due: the one that the run goes on from answers the pod's `preStop`."""
    root = tmp_path / "bucket" / "runs"
    with pods(cluster, tmp_path) as running:
        head = running.start("head", HEAD)
        spot = running.start("spot", SPOT)
        assert all(pod.probe("livenessProbe") for pod in (head, spot))
        command = [sys.executable, "-m", "rungwise", "submit", "workflows/pretrain.py"]
        command += ["small.yaml", f"compute.checkpoint_every_steps={10 * STEPS}"]
        job = Job([*command, "--address", head.job_server], project, tmp_path / "log")
        job.wait_for_steps()
        assert list_checkpoints(root) == []
        began = time.monotonic()
        hook = spot.run_hook()
        assert hook.returncode == 0, hook.stderr
        # The hook leaves the workers all the time that there is.
        assert NOTICE - 1 < time.monotonic() - began < NOTICE + 10
        [saved] = list_checkpoints(root)
        spot.kill()
        assert not spot.probe("readinessProbe")
        running.start("spot", NEW)
        job.finish()
    attempts = read_training(root)["attempts"]
    assert [attempt["step"] for attempt in attempts] == [0, saved]
    assert_undisturbed(root, undisturbed)


@pytest.mark.timeout(900)
def test_a_rayjob_whose_head_is_lost_goes_on_in_its_next_cluster(
    project: Path, undisturbed: Path, cluster: dict[str, Any], tmp_path: Path
) -> None:
    """KubeRay answers the loss with a new cluster and the entrypoint once more."""
    rayjob = yaml.safe_load((KUBERAY / "overlays" / "job" / "rayjob.yaml").read_text())["spec"]
    assert rayjob["backoffLimit"] > 0
    root = tmp_path / "bucket" / "runs"
    run = rayjob["entrypoint"].split()[:2]  # the image has this command
    run += ["pretrain", "small.yaml", "compute.checkpoint_every_steps=200", f"root={root}"]
    for log in (tmp_path / "first.log", tmp_path / "second.log"):
        with pods(cluster, project) as running:
            head = running.start("head", HEAD)
            running.start("spot", SPOT)
            job = submit(head, run, log)
            if log.name == "second.log":
                job.finish()
                break
            job.wait_for_steps()
            wait_until(job.printed, lambda: list_checkpoints(root), code=job.process.poll)
            head.kill()
            assert job.process.wait(280) != 0
            assert not list(root.glob("pretrain/*/artifact.json"))
    assert read_training(root)["attempts"][-1]["step"] >= 200
    assert_undisturbed(root, undisturbed)


@pytest.mark.timeout(300)
def test_a_cluster_with_a_durable_head_outlives_its_head(
    cluster: dict[str, Any], tmp_path: Path
) -> None:
    """The worker of before takes a task of the next head, which still knows the first job."""
    program = """
import os, ray
ray.init()
print("in group", ray.get(ray.remote(lambda: os.environ["RAY_NODE_TYPE_NAME"]).remote()))
"""
    (tmp_path / "program.py").write_text(program)
    with pods(cluster, tmp_path) as running:
        head = running.start("head", HEAD)
        spot = running.start("spot", SPOT)
        for log in (tmp_path / "before", tmp_path / "after"):
            job = submit(head, ["python", str(tmp_path / "program.py")], log)
            job.finish()
            assert "in group spot" in job.printed()
            if log.name == "before":
                head.kill()
                head.start()
                head.wait_until_ready()
        assert spot.process.poll() is None
        known = [str(Path(sys.executable).with_name("ray")), "job", "list", "--address"]
        listed = Job([*known, head.job_server], tmp_path, tmp_path / "list")
        listed.finish()
        assert listed.printed().count("JobStatus.SUCCEEDED") == 2


def submit(head: Pod, entrypoint: list[str], log: Path) -> Job:
    """Submit as KubeRay's submitter of a RayJob does."""
    command = [str(Path(sys.executable).with_name("ray")), "job", "submit"]
    return Job([*command, "--address", head.job_server, "--", *entrypoint], log.parent, log)


def list_checkpoints(root: Path) -> list[int]:
    """The steps of the checkpoints of a training that is not finished."""
    records = root.glob("pretrain/*/checkpoints/*/checkpoint.json")
    return sorted(json.loads(record.read_text())["progress"]["step"] for record in records)
