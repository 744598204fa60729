"""The services of a local cluster: their commands, and requests to check that they answer."""

import json
import shutil
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rungwise.cluster import dashboards
from rungwise.core.storage.folder import Folder
from rungwise.core.tracking.store import artifact_location, default_uri, make_store

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


def prometheus_command(
    folder: Path, dashboard: str, token: Path, port: int, gpus: bool = False
) -> list[str] | None:
    """The command of a Prometheus that scrapes Ray's nodes; None if it is not installed."""
    binary = shutil.which("prometheus")
    if binary is None:
        return None
    settings = dashboards.configuration(dashboard, token, _SCRAPE, gpus)
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
