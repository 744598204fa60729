"""`rungwise up` and `down` without Ray: what is refused, what is found again, what is ended."""

import io
import os
import shutil
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from rungwise.__main__ import main
from rungwise.cluster import ray_start, registry
from rungwise.cluster.local import processes
from rungwise.cluster.local import processes as services
from rungwise.cluster.local.down import stop_cluster
from rungwise.cluster.local.machine import ClusterFolder, Ports, can_bind, divide_cores
from rungwise.cluster.local.up import start_cluster
from rungwise.cluster.registry import HOME_VARIABLE, Process, RegisteredCluster
from rungwise.core.errors import UserError
from rungwise.core.storage.folder import Folder
from rungwise.core.tracking.sender import default_uri
from tests.waiting import wait_until

QUIET = Console(quiet=True)
SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
STUBBORN += "print('ready', flush=True); time.sleep(300)"
POLITE = "import signal, sys, time\n"
POLITE += "signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('asked')))\n"
POLITE += "print('ready', flush=True); time.sleep(300)"
# A parent that ends at once and leaves a child.
ORPHAN = f"import subprocess; print(subprocess.Popen({SLEEP!r}).pid, flush=True)"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def stranger() -> Iterator[psutil.Popen]:
    """A process that has nothing to do with any cluster."""
    with psutil.Popen(SLEEP) as process:
        yield process
        process.kill()


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def cluster(*recorded: Process) -> RegisteredCluster:
    return RegisteredCluster(
        job_address="http://127.0.0.1:1",
        ray_address="127.0.0.2:6379",
        token_path=str(ClusterFolder().token),
        tracking_uri="",
        prometheus_uri=None,
        root="/",
        processes=recorded,
    )


def made() -> tuple[ClusterFolder, Path]:
    """The folder of a cluster that is being started, and its scratch."""
    folder = ClusterFolder()
    with folder.locked():
        return folder, folder.create()


def wait_for_line(log: Path) -> str:
    wait_until("a line", lambda: log.read_text().endswith("\n"), 30)
    return log.read_text().strip()


@pytest.mark.parametrize(
    ("nodes", "cores", "expected"),
    [(2, 2, [1, 1]), (2, 5, [3, 2]), (3, 2, [1, 1, 1]), (1, 16, [16]), (4, 8, [2, 2, 2, 2])],
)
def test_nodes_share_the_cores_and_none_has_less_than_one(
    nodes: int, cores: int, expected: list[int]
) -> None:
    assert divide_cores(nodes, cores) == expected


def test_a_port_that_somebody_listens_on_is_not_given_nor_one_twice(listener: int) -> None:
    assert not can_bind("0.0.0.0", listener)
    ports = Ports()
    assert listener < ports.near(listener) < ports.near(listener)


def test_an_address_of_another_machine_cannot_be_a_nodes() -> None:
    assert can_bind("127.0.0.9")
    assert not can_bind("192.0.2.77")  # RFC 5737: of nobody


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "0"], "--nodes is 0; expected 1 to 32"),
        (["--nodes", "33"], "--nodes is 33"),
        (["--root", "s3://bucket/artifacts"], "--root is s3://bucket/artifacts; expected a folder"),
        (["--root", "/proc/artifacts"], "--root /proc/artifacts cannot be made"),
    ],
)
def test_a_wish_that_cannot_be_is_refused_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    assert main(["up", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert "\n" not in said
    assert registry.find() is None


def test_only_the_owner_can_read_the_token_and_each_start_has_its_own() -> None:
    one, scratch = made()
    assert stat.S_IMODE(one.token.stat().st_mode) == 0o600
    assert stat.S_IMODE(one.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(scratch.stat().st_mode) == 0o700
    token = one.token.read_text()
    assert len(bytes.fromhex(token)) == 32
    one.clear()
    assert made()[0].token.read_text() != token
    one.clear()


def test_sockets_below_the_scratch_folder_have_paths_short_enough() -> None:
    folder, scratch = made()
    session = "session_2026-12-31_23-59-59_999999_4194304/sockets/plasma_store"
    assert len(str(scratch / "node-32" / session)) < 104  # the least of the systems' limits
    folder.clear()


def test_two_commands_are_not_at_work_on_one_cluster_at_once() -> None:
    folder = ClusterFolder()
    with (
        folder.locked(),
        pytest.raises(UserError, match="another rungwise up or down is at work"),
        ClusterFolder().locked(),
    ):
        pass
    with folder.locked():
        pass


def test_what_is_cleared_leaves_the_logs_of_every_node() -> None:
    folder, scratch = made()
    registry.save(cluster())
    for node in ("head", "node-2"):
        session = scratch / node / "session_2026-01-01_00-00-00_000000_1"
        (session / "logs").mkdir(parents=True)
        (session / "logs" / "raylet.out").write_text(node)
        (session / "runtime_resources").mkdir()
        (scratch / node / "session_latest").symlink_to(session)
    folder.ready.touch()
    folder.clear()
    left = [str(path.relative_to(folder.path)) for path in folder.path.rglob("*") if path.is_file()]
    assert sorted(left) == ["lock", "logs/ray/head/raylet.out", "logs/ray/node-2/raylet.out"]
    assert not scratch.exists()
    assert registry.find() is None


def test_a_process_that_was_given_a_recorded_id_is_left_alone(stranger: psutil.Popen) -> None:
    mine = Process("head", stranger.pid, stranger.create_time())
    assert processes.find_process(mine) is not None
    earlier = Process("head", stranger.pid, stranger.create_time() - 60)
    assert processes.find_process(earlier) is None
    _, scratch = made()
    registry.save(cluster(earlier))
    console = Console(file=io.StringIO(), record=True)
    stop_cluster(console)
    assert stranger.is_running()
    assert "had ended by itself: head" in console.export_text()
    assert registry.find() is None
    assert not scratch.exists()


def test_all_are_asked_to_end_and_the_stubborn_and_orphans_are_killed_but_no_stranger(
    tmp_path: Path, stranger: psutil.Popen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_GRACE_SECONDS", 1.0)
    scratch = tmp_path / "scratch"
    environment = processes.mark_environment(os.environ, scratch)
    codes = {"mlflow": POLITE, "head": STUBBORN, "node-2": ORPHAN}
    started, entries = zip(
        *(
            processes.start_process(
                what, [sys.executable, "-c", code], environment, tmp_path / what
            )
            for what, code in codes.items()
        ),
        strict=True,
    )
    lines = {what: wait_for_line(tmp_path / what) for what in codes}
    parent = psutil.Process(entries[2].pid)
    parent.wait()
    orphan = psutil.Process(int(lines["node-2"]))
    assert [processes.find_process(entry) is None for entry in entries] == [False, False, True]
    left = {entries[0].pid, entries[1].pid, orphan.pid}
    # Without the records it is the mark that finds them.
    assert {one.pid for one in processes.find_family((), scratch)} == left
    assert processes.end_processes(entries, scratch) == 3
    assert not any(psutil.pid_exists(pid) for pid in left - {orphan.pid})
    assert not processes.find_family(entries, scratch)
    for process in started:
        process.poll()
    assert (tmp_path / "mlflow").read_text() == "ready\nasked\n"
    assert stranger.status() != psutil.STATUS_ZOMBIE


def test_no_signal_of_the_terminal_reaches_what_is_started(tmp_path: Path) -> None:
    process, entry = processes.start_process("head", SLEEP, os.environ, tmp_path / "log")
    assert os.getsid(process.pid) == process.pid != os.getsid(0)
    processes.end_processes([entry], None)
    process.poll()  # psutil has waited for it


def test_a_cluster_that_ended_by_itself_is_noted_and_forgotten(
    tmp_path: Path, stranger: psutil.Popen
) -> None:
    _, scratch = made()
    registry.save(cluster(Process("head", stranger.pid, stranger.create_time() - 60)))
    console = Console(file=io.StringIO(), record=True)
    # The number of nodes stops it right after.
    with pytest.raises(UserError, match="--nodes is 0"):
        start_cluster(0, str(tmp_path / "artifacts"), console)
    assert "the last cluster had ended by itself; its record is gone" in console.export_text()
    assert registry.find() is None
    assert not scratch.exists()


def test_a_cluster_that_runs_in_part_is_not_taken_for_whole(
    tmp_path: Path, stranger: psutil.Popen
) -> None:
    folder, _ = made()
    alive = Process("head", stranger.pid, stranger.create_time())
    registry.save(cluster(alive))
    with pytest.raises(UserError, match=r"it was never ready.*rungwise down"):
        start_cluster(2, str(tmp_path), QUIET)
    folder.ready.touch()
    assert start_cluster(2, str(tmp_path), QUIET).processes == (alive,)
    registry.save(cluster(alive, Process("node-2", stranger.pid, 1.0)))
    with pytest.raises(UserError, match="node-2 ended by itself"):
        start_cluster(2, str(tmp_path), QUIET)
    folder.clear()


def test_the_server_has_the_store_that_a_run_here_would_have(tmp_path: Path) -> None:
    command = services.mlflow_command(tmp_path / "artifacts", 5000)
    uri = default_uri(Folder.at(tmp_path / "artifacts"), None)
    assert command[command.index("--backend-store-uri") + 1] == uri
    assert command[command.index("--host") + 1] == "127.0.0.1"


def test_prometheus_reads_the_token_from_its_file_and_stays_on_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: "prometheus")
    (tmp_path / "token").write_text("secret")
    command = services.prometheus_command(
        tmp_path, "http://127.0.0.1:8265", tmp_path / "token", 9090
    )
    assert command is not None
    assert "--web.listen-address=127.0.0.1:9090" in command
    assert "secret" not in (tmp_path / "prometheus.yml").read_text()


def test_a_cluster_keeps_what_the_user_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "300")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "90")
    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")  # as for a run on this machine
    variables = ray_start.environment(Path("token"))
    assert variables["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] == "300"
    assert variables["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "15"  # docs/how-to/local-cluster.md
    assert "RAY_ENABLE_UV_RUN_RUNTIME_ENV" not in variables


def test_nothing_is_said_to_answer_where_nothing_listens(unused_port: int, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    nowhere = f"http://127.0.0.1:{unused_port}"
    assert not services.is_answering(lambda: services.request(nowhere))
    assert not services.is_answering(
        lambda: services.list_jobs(nowhere, tmp_path / "token") is not None
    )
    assert not services.is_answering(lambda: services.list_nodes(nowhere, tmp_path / "token"))
