"""`rungwise up` and `down` without Ray: what is refused, what is found again, what is ended."""

import dataclasses
import os
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from rungwise.__main__ import main
from rungwise.cluster import local
from rungwise.cluster.local import HOME_VARIABLE, LocalCluster
from rungwise.core.errors import UserError
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
def cluster(tmp_path: Path) -> LocalCluster:
    """A saved record of a cluster without processes, and its scratch folder."""
    (tmp_path / "scratch").mkdir()
    record = LocalCluster(
        job_address="http://127.0.0.1:1",
        ray_address="127.0.0.2:6379",
        token_path=str(local.cluster_folder() / "token"),
        root="/",
        scratch=str(tmp_path / "scratch"),
    )
    local.save_cluster(record)
    return record


@pytest.mark.parametrize(
    ("nodes", "cores", "expected"),
    [(2, 2, [1, 1]), (2, 5, [3, 2]), (3, 2, [1, 1, 1]), (1, 16, [16]), (4, 8, [2, 2, 2, 2])],
)
def test_nodes_share_the_cores(nodes: int, cores: int, expected: list[int]) -> None:
    assert local.divide_cores(nodes, cores) == expected


def test_a_port_that_somebody_listens_on_is_not_given() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert local.find_port(port) > port


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "0"], "--nodes is 0; expected 1 to 32"),
        (["--nodes", "33"], "--nodes is 33"),
        (["--root", "s3://bucket/artifacts"], "--root is s3://bucket/artifacts; expected a folder"),
        (["--root", "/proc/artifacts"], "--root: cannot write to /proc/artifacts"),
    ],
)
def test_a_wish_that_cannot_be_is_refused_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert "\n" not in said
    assert local.find_cluster() is None


def test_only_the_owner_can_read_the_token_and_each_start_has_one(cluster: LocalCluster) -> None:
    path = Path(cluster.token_path)
    local.write_token(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    token = path.read_text()
    assert len(bytes.fromhex(token)) == 32
    local.write_token(path)
    assert path.read_text() != token
    local.end_cluster(cluster)
    assert not path.exists()


def test_all_are_asked_to_end_and_the_stubborn_and_orphans_are_killed_but_no_stranger(
    cluster: LocalCluster,
    tmp_path: Path,
    stranger: psutil.Popen,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(local, "_GRACE_SECONDS", 1.0)
    processes: list[psutil.Popen] = []
    for number, code in enumerate((POLITE, STUBBORN, ORPHAN)):
        log = tmp_path / str(number)
        with log.open("w") as stream:
            command = [sys.executable, "-c", code]
            environment = os.environ | {local.MARK: cluster.scratch}
            processes.append(psutil.Popen(command, env=environment, stdout=stream))
        wait_until("a line", lambda log=log: log.read_text().endswith("\n"), 30)
    processes[2].wait()
    orphan = psutil.Process(int((tmp_path / "2").read_text()))
    family = {processes[0].pid, processes[1].pid, orphan.pid}
    assert {one.pid for one in local.list_processes(cluster)} == family
    with pytest.raises(UserError, match="never ready; end it with: rungwise down"):
        local.start_cluster(2, str(tmp_path), QUIET)
    local.save_cluster(ready := dataclasses.replace(cluster, ready=True))
    assert main(["up", "--nodes", "3"]) == 0
    assert "the cluster runs already" in capsys.readouterr().out
    assert local.find_cluster() == ready
    assert main(["down"]) == 0
    assert "ended 3 processes" in capsys.readouterr().out
    assert not local.list_processes(cluster)
    for process in processes:
        process.poll()
    assert (tmp_path / "0").read_text() == "ready\nasked\n"
    assert stranger.status() != psutil.STATUS_ZOMBIE
    assert local.find_cluster() is None
    assert not Path(cluster.scratch).exists()


def test_an_ended_one_is_noted(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    # The number of nodes stops it right after.
    assert main(["up", "--nodes", "0"]) == 2
    assert "the last cluster had ended by itself" in capsys.readouterr().out
    assert local.find_cluster() is None
    assert not Path(cluster.scratch).exists()
