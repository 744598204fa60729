"""The processes of a local cluster: start them to outlive the command, find them, end them.

Each inherits a mark in its environment: the cluster's scratch folder, which is unique. The mark
finds processes whose parents have ended, and those started just before `rungwise up` was killed. A
recorded process is identified by pid and start time, so that a later process with the same pid is
left alone.

The services of a local cluster: their commands, and requests to check that they answer.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from rungwise.cluster import dashboards
from rungwise.cluster.registry import Process
from rungwise.core.errors import UserError
from rungwise.core.storage.folder import Folder
from rungwise.core.tracking.sender import artifact_location, default_uri, make_store

MARK = "RUNGWISE_LOCAL_CLUSTER"
# Ray sets process titles, which by default overwrite the environment that others can read.
_KEEP_ENVIRONMENT = {"SPT_NOENV": "1"}
_LAST = ("head", "mlflow")  # ended last, since the others use them while they end
_GRACE_SECONDS = 5.0
_KILLS = 20


def mark_environment(environment: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """Add the mark of the cluster with this scratch folder to `environment`."""
    return {**environment, **_KEEP_ENVIRONMENT, MARK: str(scratch)}


def start_process(
    what: str, command: Sequence[str], environment: Mapping[str, str], log: Path
) -> tuple[psutil.Popen, Process]:
    """Start a process that this terminal's signals do not reach, with its output in `log`."""
    with log.open("w") as stream:
        process = psutil.Popen(
            command,
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
    return process, Process(what, process.pid, process.create_time())


def find_process(recorded: Process) -> psutil.Process | None:
    """The recorded process; None if it has ended, even if its pid was reused."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(recorded.pid)
        # The machine's clock may since have been adjusted by a fraction of a second.
        if abs(process.create_time() - recorded.started) < 1.0 and _is_alive(process):
            return process
    return None


def find_family(recorded: Iterable[Process], scratch: Path | None) -> list[psutil.Process]:
    """Every live process of the cluster: recorded, a descendant of those, or marked."""
    processes = [process for entry in recorded if (process := find_process(entry))]
    if scratch is not None:
        processes += [each for each in psutil.process_iter() if _read_mark(each) == str(scratch)]
    for process in list(processes):
        with contextlib.suppress(psutil.NoSuchProcess):
            processes += process.children(recursive=True)
    alive = {process.pid: process for process in processes if _is_alive(process)}
    alive.pop(os.getpid(), None)
    return list(alive.values())


def end_processes(recorded: Sequence[Process], scratch: Path | None) -> int:
    """End every process of the cluster, by SIGTERM and then SIGKILL; return their number. Raises
    UserError if one cannot be ended."""
    count = len(find_family(recorded, scratch))
    for last in (False, True):
        processes = [
            process
            for entry in recorded
            if (entry.what in _LAST) == last and (process := find_process(entry))
        ]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        psutil.wait_procs(processes, _GRACE_SECONDS)
    for _ in range(_KILLS):
        if not (processes := find_family(recorded, scratch)):
            return count
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, 1)
    ids = ", ".join(str(process.pid) for process in processes)
    raise UserError(f"these processes do not end: {ids}; look at what holds them, then try again")


def _read_mark(process: psutil.Process) -> str | None:
    # Other users' processes hide their environment, and kernel threads have none.
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ().get(MARK)
    return None


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


_ANSWER_SECONDS = 5.0
_SCRAPE = "10s"


def mlflow_command(root: Path, port: int) -> list[str]:
    """The command of an MLflow server for the store of local runs with the same root. Artifacts are
    written directly to their folder as in such runs, since an experiment keeps its first location,
    which must be reachable without the server."""
    uri = default_uri(Folder.at(root), None)
    make_store(uri)  # so that a kill of the server while it starts leaves no half-made one
    location = artifact_location(uri)
    assert location is not None, "a store of a local root is SQLite"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri]
    command += ["--default-artifact-root", location, "--artifacts-destination", location]
    return [*command, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]


def prometheus_command(folder: Path, dashboard: str, token: Path, port: int) -> list[str] | None:
    """The command of a Prometheus that scrapes Ray's nodes; None if it is not installed."""
    binary = shutil.which("prometheus")
    if binary is None:
        return None
    settings = dashboards.configuration(dashboard, token, _SCRAPE)
    return dashboards.configure_prometheus(
        binary, folder / "prometheus.yml", settings, folder / "data", port
    )


def is_answering(query: Callable[[], object]) -> bool:
    """Whether a request to a service, one of those below, returns something non-empty."""
    try:
        return bool(query())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def list_nodes(dashboard: str, token: Path) -> set[str]:
    """The addresses of the nodes that Ray counts as alive."""
    state = json.loads(request(f"{dashboard}/api/v0/nodes?limit=1000", token=token))
    rows = state["data"]["result"]["result"]
    return {row["node_ip"] for row in rows if row["state"] == "ALIVE"}


def list_jobs(dashboard: str, token: Path) -> list[dict[str, Any]]:
    """The submitted jobs that have not ended. Raises OSError or ValueError without an answer."""
    rows = json.loads(request(f"{dashboard}/api/jobs/", token=token))
    return [row for row in rows if row["submission_id"] and row["status"] in ("PENDING", "RUNNING")]


def stop_job(dashboard: str, token: Path, submission_id: str) -> None:
    """Stop a job, which closes its run as Ctrl-C does. Raises OSError if refused."""
    request(f"{dashboard}/api/jobs/{submission_id}/stop", "POST", token)


def request(url: str, method: str = "GET", token: Path | None = None) -> bytes:
    """The body of a response. Raises OSError unless the server answers 200."""
    headers = {} if token is None else {"Authorization": f"Bearer {token.read_text().strip()}"}
    # A proxy could not reach this machine's loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    query = urllib.request.Request(url, method=method, headers=headers)
    with opener.open(query, timeout=_ANSWER_SECONDS) as response:
        return response.read()
