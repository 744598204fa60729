"""`ray job submit` against a cluster started by `ray start --head` runs the same workflow file."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import REPOSITORY, small_recipe, write_corpus, write_recipe


@pytest.fixture
def head() -> Iterator[tuple[str, dict[str, str]]]:
    """A Ray head of our own on free ports, ended by its process id; its address and environment."""
    ports = []
    probes = [socket.socket() for _ in range(6)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
        ports.append(probe.getsockname()[1])
    for probe in probes:
        probe.close()
    scratch = Path(tempfile.mkdtemp(prefix="rw", dir="/tmp"))  # short: it holds Unix sockets
    binaries = Path(sys.executable).parent
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("RAY_ADDRESS", "MLFLOW"))},
        "HOME": str(scratch),
        "RAY_AUTH_MODE": "disabled",
        "PATH": f"{binaries}:{os.environ['PATH']}",
    }
    process = subprocess.Popen(
        [
            str(binaries / "ray"),
            "start",
            "--head",
            "--block",
            "--num-cpus",
            "2",
            "--node-ip-address",
            "127.0.0.1",
            "--port",
            str(ports[0]),
            "--dashboard-host",
            "127.0.0.1",
            "--dashboard-port",
            str(ports[1]),
            "--dashboard-agent-listen-port",
            str(ports[2]),
            "--metrics-export-port",
            str(ports[3]),
            "--ray-client-server-port",
            str(ports[4]),
            "--dashboard-agent-grpc-port",
            str(ports[5]),
            "--object-store-memory",
            "200000000",
            "--temp-dir",
            str(scratch / "ray"),
            "--disable-usage-stats",
        ],
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{ports[1]}"
    try:
        deadline = time.monotonic() + 90
        while True:
            try:
                with urllib.request.urlopen(f"{address}/api/version", timeout=2):
                    break
            except (urllib.error.URLError, OSError):
                assert process.poll() is None, "ray start ended"
                assert time.monotonic() < deadline, "the dashboard does not answer"
                time.sleep(0.5)
        yield address, environment
    finally:
        # `ray start --block` sits out a SIGTERM; what it started is below it in the process tree.
        family = [*psutil.Process(process.pid).children(recursive=True), process]
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        process.wait(30)
        shutil.rmtree(scratch, ignore_errors=True)


def test_a_submitted_job_runs_the_workflow_on_the_cluster(
    head: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    address, environment = head
    corpus = write_corpus(tmp_path / "text", documents=60)
    config = write_recipe(tmp_path / "recipe.yaml", small_recipe(tmp_path / "root", corpus))
    # What a user has in the folder: the project, without environments and artifacts.
    folder = tmp_path / "project"
    for name in ("platform", "workflows"):
        shutil.copytree(
            REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    # A mark by which to tell the code that came with the job from the code that is installed here.
    stage = folder / "platform" / "rungwise" / "corpus" / "summary.py"
    marked = stage.read_text().replace(':,} documents"', ':,} documents of the job"')
    assert marked != stage.read_text()
    stage.write_text(marked)
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "ray"),
            "job",
            "submit",
            "--address",
            address,
            "--working-dir",
            str(folder),
            "--",
            "python",
            "workflows/pretrain.py",
            str(config),
            "pretrain.steps=20",
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 of 5 stages built" in done.stdout
    (corpus_record,) = (tmp_path / "root").glob("corpus/*/artifact.json")
    assert "documents of the job" in json.loads(corpus_record.read_text())["summary"]["headline"]
    (record,) = (tmp_path / "root").glob("pretrain/*/artifact.json")
    assert json.loads(record.read_text())["summary"]["steps"] == 20


def test_a_failing_workflow_fails_the_job(head: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    address, environment = head
    config = write_recipe(
        tmp_path / "recipe.yaml", small_recipe(tmp_path / "root", tmp_path / "no")
    )
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "ray"),
            "job",
            "submit",
            "--address",
            address,
            "--",
            "python",
            str(REPOSITORY / "workflows" / "pretrain.py"),
            str(config),
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "corpus.sources.0.paths: no file matches" in done.stdout
