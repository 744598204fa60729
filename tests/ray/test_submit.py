"""Jobs on a real head with token auth, reached over a line that is cut."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from ray.job_submission import JobSubmissionClient

from rungwise.cluster.local import node_environment, start_command
from rungwise.submission import connect, find_server
from tests.commands import RUNGWISE, copy_project
from tests.conftest import REPOSITORY, find_ports, small_recipe, write_corpus, write_recipe
from tests.waiting import wait_until

TOKEN = "planted-token-" + "5e1d" * 8
_HOST = "127.0.0.2"  # 127.0.0.1 Ray replaces by the machine's outer address


@dataclass(frozen=True)
class Head:
    """Where it answers, the file with its token, and what its processes and jobs have set."""

    port: int
    folder: Path  # its sessions, with all logs
    token_path: Path
    environment: dict[str, str]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Line:
    """A TCP line to a port of loopback that can be cut and joined again."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._ends: list[socket.socket] = []
        self._listener = self._listen(0)
        self.port = int(self._listener.getsockname()[1])

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """End every connection, and take no more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._ends.clear()

    def join(self) -> None:
        """Take connections again, at the same port."""
        self._listener = self._listen(self.port)

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self._ends += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    @staticmethod
    def _carry(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """A Ray head on ports of its own, ended by its process id."""
    scratch = Path(tempfile.mkdtemp(prefix="rw", dir="/tmp"))  # short: it holds Unix sockets
    token_path = scratch / "token"
    token_path.touch(mode=0o600)
    token_path.write_text(TOKEN)
    ports = [str(port) for port in find_ports(6)]
    names = ["port", "dashboard-port", "metrics-export-port", "dashboard-agent-listen-port"]
    names += ["dashboard-agent-grpc-port", "ray-client-server-port"]
    options = {
        "num-cpus": 2,
        "object-store-memory": 200_000_000,
        **dict(zip(names, ports, strict=True)),
    }
    environment = node_environment(token_path, HOME=str(scratch))
    environment.pop("PYTHONPATH", None)
    process = psutil.Popen(
        [*start_command(_HOST, scratch / "ray", None, options), "--block"],
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    made = Head(int(ports[1]), scratch / "ray", token_path, environment)
    try:
        wait_until("the dashboard", lambda: _answers(made), code=process.poll)
        yield made
    finally:
        # `ray start --block` sits out a SIGTERM; what it started is below it in the process tree.
        for member in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        process.wait(30)
        shutil.rmtree(scratch, ignore_errors=True)


def _answers(head: Head) -> bool:
    request = urllib.request.Request(
        f"{head.address}/api/version", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a user has in the folder, without environments and artifacts; these go beside it."""
    folder = copy_project(tmp_path_factory.mktemp("submit") / "project")
    # Marks by which to tell the code that came with the job from the code that is installed here.
    for name, text in (
        ("corpus/summary.py", ':,} dropped"'),
        ("commands/run.py", ' stages built"'),
    ):
        module = folder / "platform" / "rungwise" / name
        marked = module.read_text().replace(text, text.replace('"', ' of the job"'))
        assert marked != module.read_text()
        module.write_text(marked)
    write_corpus(folder / "text", documents=60)
    write_recipe(folder / "small.yaml", small_recipe(folder.parent / "root", Path("text")))
    return folder


@pytest.fixture
def client(
    head: Head, project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> JobSubmissionClient:
    """Commands of this process go to the head, with the project; and Ray's client of it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", head.address)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(head.token_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_ADDRESS", "RUNGWISE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(project)
    return connect(find_server(None))


def test_a_submitted_workflow_is_followed_over_a_line_that_breaks(
    client: JobSubmissionClient, head: Head, project: Path, tmp_path: Path
) -> None:
    line = Line(int(client.get_address().rpartition(":")[2]))
    command = [*RUNGWISE, "submit", "workflows/instances.py", "small.yaml"]
    command += ["--address", line.address]
    errors = tmp_path / "errors"
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            command,
            cwd=project,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY / "platform")},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        assert process.stdout is not None
        printed = [process.stdout.readline()]
        while not printed[-1].startswith("corpus"):
            assert printed[-1], "".join(printed) + errors.read_text()
            printed.append(process.stdout.readline())
        running = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
        line.cut()
        time.sleep(3)
        assert process.poll() is None
        line.join()
        printed += process.stdout.readlines()
        assert process.wait(120) == 0, errors.read_text()
    line.cut()
    text = "".join(printed)
    (job,) = re.findall(r"^submitted (\S+)$", text, re.MULTILINE)
    assert client.get_job_logs(job) in text  # all of it, each line once
    assert "4 of 4 stages built" in text
    logs = [path for path in head.folder.rglob("*.*") if path.suffix in (".log", ".out", ".err")]
    assert any(job in path.name for path in logs)
    for shown in (text, errors.read_text(), str(client.get_job_info(job)), *map(str, running)):
        assert TOKEN not in shown
    assert not [path for path in logs if TOKEN in path.read_text(errors="replace")]
    (corpus,) = (project.parent / "root").glob("corpus/*/artifact.json")
    assert "dropped of the job" in json.loads(corpus.read_text())["summary"]["headline"]
