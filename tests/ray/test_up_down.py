"""`rungwise up` and `down` for real: two nodes, jobs, the token, what is lost, what is left."""

import contextlib
import http.client
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from rungwise.cluster.local import (
    HOME_VARIABLE,
    LocalCluster,
    cluster_folder,
    count_cores,
    divide_cores,
    find_cluster,
    list_processes,
    node_environment,
)
from rungwise.training.ray.resume_proof import kill_with_children
from tests.commands import PYTHON_PATH, RUNGWISE, copy_project, execute
from tests.conftest import REPOSITORY, small_recipe, write_corpus, write_recipe
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

RAY = str(Path(sys.executable).with_name("ray"))
PASSWORD, CLOUD_KEY = "planted-password-5e1f", "planted-cloud-key-90ab"
PLANTED = {
    "AWS_SECRET_ACCESS_KEY": CLOUD_KEY,
    "MLFLOW_TRACKING_URI": f"http://somebody:{PASSWORD}@127.0.0.1:1",
}
STAGES = ("corpus", "tokenizer", "tokens", "instances", "pretrain")


def rungwise(
    *arguments: str, folder: Path, status: int | None = 0, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The command as a user gives it in `folder`."""
    return execute([*RUNGWISE, *arguments], folder, variables(**(more or {})), status)


def variables(**more: str) -> dict[str, str]:
    ours = {"PYTHONPATH": PYTHON_PATH, HOME_VARIABLE: os.environ[HOME_VARIABLE]}
    return {**os.environ, **ours, **more}


@dataclass(frozen=True)
class Up:
    """The cluster that `rungwise up` started in `folder` for this `home`, and what it printed."""

    home: Path
    folder: Path
    said: str

    @property
    def record(self) -> LocalCluster | None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(HOME_VARIABLE, str(self.home))
            return find_cluster()

    @property
    def cluster(self) -> LocalCluster:
        assert self.record is not None
        return self.record

    @property
    def path(self) -> Path:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(HOME_VARIABLE, str(self.home))
            return cluster_folder()

    @property
    def token(self) -> Path:
        return Path(self.cluster.token_path)

    @property
    def environment(self) -> dict[str, str]:
        """Of a user who has the token."""
        return node_environment(self.token)

    def family(self) -> list[psutil.Process]:
        return list_processes(self.cluster)

    def find_raylet(self, address: str) -> psutil.Process:
        """The raylet of a node, below which are its workers and agents."""
        raylets = (each for each in self.family() if each.name() == "raylet")
        return next(each for each in raylets if f"--node_ip_address={address}" in each.cmdline())

    def get(self, path: str, method: str = "GET", token: str | None = None) -> Any:
        """What the dashboard answers to the owner of the token, or of another one."""
        request = urllib.request.Request(self.cluster.job_address + path, method=method)
        right = self.token.read_text()
        if token := right if token is None else token:
            request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def submit(self, *arguments: str) -> list[str]:
        """`ray job submit` of the project; the command."""
        command = [RAY, "job", "submit", "--address", self.cluster.job_address]
        return [*command, "--working-dir", str(self.folder / "project"), *arguments]


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("home")
        patch.setenv(HOME_VARIABLE, str(home))
        yield home


@contextlib.contextmanager
def started(home: Path, folder: Path, *arguments: str, **more: str) -> Iterator[Up]:
    place = {HOME_VARIABLE: str(home)}
    done = rungwise("up", *arguments, folder=folder, more=place | more)
    up = Up(home, folder, done.stdout)
    try:
        yield up
    finally:
        if up.record is not None:
            rungwise("down", folder=folder, status=None, more=place)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Iterator[Up]:
    """Two nodes; each worker of a run takes the CPUs of one."""
    folder = tmp_path_factory.mktemp("work")
    copy_project(folder / "project")
    with started(home, folder, **PLANTED) as up:
        yield up


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "text", documents=30)


def open_ports() -> list[tuple[str, int, int | None]]:
    """The address, port and process of everything that listens on this machine."""
    return [
        (each.laddr.ip, each.laddr.port, each.pid)
        for each in psutil.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN and each.laddr
    ]


def arguments_of_all() -> list[str]:
    """The arguments of every process of the machine."""
    found: list[str] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            found += process.cmdline()
    return found


def assert_gone(up: Up, cluster: LocalCluster, family: list[psutil.Process]) -> None:
    left = [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert left == []
    assert not list_processes(cluster)
    assert not Path(cluster.scratch).exists()
    assert not Path(cluster.token_path).exists()
    assert up.record is None


def test_both_nodes_are_alive_by_rays_own_word(cluster: Up) -> None:
    command = [RAY, "list", "nodes", "--address", cluster.cluster.job_address, "--format", "json"]
    done = execute(command, variables=cluster.environment)
    nodes = json.loads(done.stdout[done.stdout.index("[") :])
    assert {node["node_ip"]: node["state"] for node in nodes} == {
        "127.0.0.2": "ALIVE",
        "127.0.0.3": "ALIVE",
    }
    cpus = sorted((node["resources_total"]["CPU"] for node in nodes), reverse=True)
    assert cpus == divide_cores(2, count_cores())


@pytest.mark.parametrize(("token", "status"), [("", 401), ("f" * 64, 403)], ids=["none", "wrong"])
def test_without_the_right_token_nothing_is_answered(cluster: Up, token: str, status: int) -> None:
    for path, method in (("/api/jobs/", "GET"), ("/api/jobs/", "POST"), ("/api/v0/nodes", "GET")):
        with pytest.raises(urllib.error.HTTPError) as refused:
            cluster.get(path, method, token)
        assert refused.value.code == status


# One call of each of Ray's services, by the name of who answers it.
CALLS = {
    "gcs": "NodeInfoGcsService/GetAllNodeInfo",
    "raylet": "NodeManagerService/GetNodeStats",
    "objects": "ObjectManagerService/Pull",
    "agent": "ReporterService/GetTraceback",
    "worker": "CoreWorkerService/GetCoreWorkerStats",
}


def test_a_port_that_others_reach_wants_the_token_or_gives_measurements_only(cluster: Up) -> None:
    pids = {process.pid for process in cluster.family()}
    wide = {port for ip, port, pid in open_ports() if pid in pids and ip in ("0.0.0.0", "::")}
    assert int(cluster.cluster.ray_address.rpartition(":")[2]) in wide
    assert int(cluster.cluster.job_address.rpartition(":")[2]) not in wide
    measurements = set()
    for port in wide:
        with contextlib.suppress(OSError, http.client.HTTPException):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
                assert answer.read().startswith(b"# HELP"), port
            measurements.add(port)
    said = set()
    for port in wide - measurements:
        for name, call in CALLS.items():
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                with pytest.raises(grpc.RpcError) as refused:
                    channel.unary_unary(f"/ray.rpc.{call}")(b"", timeout=30)
                said.add((name, refused.value.code().name))
    assert {answer for _, answer in said} == {"UNAUTHENTICATED", "UNIMPLEMENTED"}
    wanting = {name for name, answer in said if answer == "UNAUTHENTICATED"}
    assert wanting >= {"gcs", "raylet", "objects", "agent"}


def artifacts(root: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for stage in STAGES:
        (path,) = root.glob(f"{stage}/*/artifact.json")
        found[stage] = json.loads(path.read_text())
    return found


def sums(record: dict[str, Any]) -> dict[str, str]:
    """The sha256 of each file, but for what a checkpoint says of its attempt and time."""
    return {
        re.sub(r"(?<=/step-\d{9})-[0-9a-f]{16}", "", name): file["sha256"]
        for name, file in record["files"].items()
        if not name.endswith("/checkpoint.json")
    }


def test_two_nodes_leave_the_bytes_of_a_run_here(cluster: Up, corpus: Path, tmp_path: Path) -> None:
    recipe = small_recipe(Path("artifacts"), corpus)
    here = write_recipe(tmp_path / "here.yaml", recipe)
    rungwise("run", str(REPOSITORY / "workflows" / "pretrain.py"), str(here), folder=tmp_path)
    submitted = cluster.submit("--", "python", "workflows/pretrain.py", str(here))
    execute(submitted, variables=cluster.environment)
    laptop, two_nodes = artifacts(tmp_path / "artifacts"), artifacts(cluster.folder / "artifacts")
    for stage in STAGES:
        assert two_nodes[stage]["fingerprint"] == laptop[stage]["fingerprint"]
        assert sums(two_nodes[stage]) == sums(laptop[stage]), stage
    assert "model.safetensors" in sums(two_nodes["pretrain"])
    runs = [made["pretrain"]["summary"]["gradient"] for made in (two_nodes, laptop)]
    for key in ("history", "validation", "data_hash"):
        assert runs[0][key] == runs[1][key]
    # The run is in the store that a run in this folder uses.
    with contextlib.closing(sqlite3.connect(cluster.folder / "artifacts" / "mlflow.db")) as store:
        locations = [row[0] for row in store.execute("SELECT artifact_uri FROM runs")]
        states = {row[0] for row in store.execute("SELECT status FROM runs")}
    assert len(locations) >= len(STAGES)
    assert states == {"FINISHED"}
    assert all(uri.startswith(f"file://{cluster.folder}/artifacts/") for uri in locations)


def test_no_secret_is_in_a_log_a_list_of_processes_or_the_tracking_store(cluster: Up) -> None:
    secrets = [cluster.token.read_text(), PASSWORD, CLOUD_KEY]
    scratch = Path(cluster.cluster.scratch)
    folders = (cluster.path, scratch, cluster.folder / "artifacts")
    read: dict[str, bytes] = {
        str(path): path.read_bytes()
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and path != cluster.token
    }
    read["arguments of all processes"] = "\0".join(arguments_of_all()).encode()
    for path in ("/api/jobs/", "/api/v0/jobs", "/api/v0/actors", "/api/v0/runtime_envs"):
        shown = path if path.endswith("/") else f"{path}?detail=true&limit=1000"
        read[path] = json.dumps(cluster.get(shown)).encode()
    # That the search finds what is there, and in the places meant.
    (job,) = [row for row in cluster.get("/api/jobs/") if row["submission_id"]]
    having = [name for name, data in read.items() if job["submission_id"].encode() in data]
    assert any("/logs/" in name and name.startswith(str(scratch)) for name in having)
    assert "/api/jobs/" in having
    assert any(name.endswith("mlflow.db") and b"rungwise" in data for name, data in read.items())
    for secret in secrets:
        assert [name for name, data in read.items() if secret.encode() in data] == []


def test_a_run_goes_on_when_the_second_node_is_killed(
    cluster: Up, corpus: Path, tmp_path: Path
) -> None:
    recipe = small_recipe(Path("artifacts"), corpus)
    recipe["pretrain"] |= {"steps": 1500, "validation_every_steps": 500, "log_every_steps": 100}
    recipe["compute"] |= {"min_workers": 1, "checkpoint_every_steps": 50}
    config = write_recipe(tmp_path / "recipe.yaml", recipe)
    log = tmp_path / "log"
    with (
        log.open("w") as stream,
        psutil.Popen(
            cluster.submit("--", "python", "workflows/pretrain.py", str(config)),
            env=cluster.environment,
            stdout=stream,
            stderr=stream,
        ) as job,
    ):
        saved = "pretrain/*/checkpoints/*/checkpoint.json"
        root = cluster.folder / "artifacts"
        before = set(root.glob(saved))
        wait_until("a checkpoint", lambda: job.poll() is not None or set(root.glob(saved)) - before)
        assert job.poll() is None, log.read_text()
        kill_with_children(cluster.find_raylet("127.0.0.3").pid)
        assert job.wait(900) == 0, log.read_text()
    (record,) = [
        found
        for path in root.glob("pretrain/*/artifact.json")
        if (found := json.loads(path.read_text()))["summary"]["gradient"]["steps"] == 1500
    ]
    attempts = record["summary"]["gradient"]["attempts"]
    assert [attempt["workers"] for attempt in attempts] == [2, 1]
    assert attempts[1]["step"] >= 50


def test_down_leaves_nothing_and_touches_no_other_cluster(cluster: Up, tmp_path: Path) -> None:
    with started(tmp_path / "home", tmp_path, "--nodes", "1") as other:
        assert other.cluster.job_address != cluster.cluster.job_address
        theirs = {process.pid for process in other.family()}
        mine, record = cluster.family(), cluster.cluster
        assert not theirs & {process.pid for process in mine}
        rungwise("down", folder=tmp_path)
        assert_gone(cluster, record, mine)
        # The other one is as it was, and takes a job.
        assert theirs <= {process.pid for process in other.family()}
        command = [RAY, "job", "submit", "--address", other.cluster.job_address]
        job = [*command, "--", "python", "-c", "print(6 * 7)"]
        assert "42" in execute(job, variables=other.environment).stdout


@contextlib.contextmanager
def starting(folder: Path) -> Iterator[tuple[Up, psutil.Popen]]:
    """An `up` whose head has begun to start."""
    up = Up(folder / "home", folder, "")
    environment = variables(**{HOME_VARIABLE: str(up.home)})
    with psutil.Popen(
        [*RUNGWISE, "up"], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        wait_until("a record", lambda: up.record is not None)
        wait_until("processes of the head", lambda: len(up.family()) > 4)
        yield up, process


def test_what_an_up_that_was_killed_left_is_ended_by_down(tmp_path: Path) -> None:
    place = {HOME_VARIABLE: str(tmp_path / "home")}
    with starting(tmp_path) as (up, process):
        assert process.poll() is None, "it was to be killed half-way"
        process.kill()
    again = rungwise("up", folder=tmp_path, status=2, more=place)
    assert "the cluster was never ready" in again.stderr
    family, cluster = up.family(), up.cluster
    rungwise("down", folder=tmp_path, more=place)
    assert_gone(up, cluster, family)


def test_an_up_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    with starting(tmp_path) as (up, process):
        family, cluster = up.family(), up.cluster
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 130
    assert "interrupted; everything that had started was stopped" in said
    assert_gone(up, cluster, family)
