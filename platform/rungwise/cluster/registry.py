"""The registry of clusters that `rungwise up` started here: their addresses and processes.

Each cluster has a folder below ~/.rungwise/clusters (RUNGWISE_HOME replaces ~/.rungwise). The
record holds no secret; the token is a file beside it that only its owner can read.
"""

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

from rungwise.core.errors import UserError
from rungwise.core.storage.folder import Folder

_RECORD = "cluster.json"
HOME_VARIABLE = "RUNGWISE_HOME"


@dataclass(frozen=True)
class Process:
    """A process of a cluster, identified by pid and start time, since pids are reused."""

    what: str  # head, node-2, mlflow, prometheus, grafana
    pid: int
    started: float  # seconds since the epoch, from psutil's create_time


@dataclass(frozen=True)
class RegisteredCluster:
    """The record of a cluster: how to reach it, and which processes `rungwise down` ends."""

    name: str
    job_address: str  # http://127.0.0.1:8265
    ray_address: str  # 127.0.0.2:6379
    token_path: str
    tracking_uri: str
    prometheus_uri: str | None
    root: str  # the base for a recipe's relative `root`
    processes: tuple[Process, ...]
    grafana_uri: str | None = None


def clusters_folder() -> Path:
    home = os.environ.get(HOME_VARIABLE)
    return (Path(home) if home else Path.home() / ".rungwise") / "clusters"


def save(cluster: RegisteredCluster) -> None:
    """Write the record atomically."""
    folder = clusters_folder() / cluster.name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = json.dumps(dataclasses.asdict(cluster), indent=2) + "\n"
    Folder.at(folder).write_bytes(_RECORD, text.encode())


def all_clusters() -> list[RegisteredCluster]:
    """All clusters with a record, by name; their processes may have ended since."""
    records = sorted(clusters_folder().glob(f"*/{_RECORD}"))
    return [_read(record) for record in records]


def find(name: str | None) -> RegisteredCluster | None:
    """The cluster of that name, or without a name the only one; None if there is none. Raises
    UserError if no cluster has that name, or there are several and no name is given."""
    clusters = all_clusters()
    if name is None:
        if len(clusters) > 1:
            names = ", ".join(cluster.name for cluster in clusters)
            raise UserError(f"several clusters run here ({names}); choose one with --name")
        return clusters[0] if clusters else None
    for cluster in clusters:
        if cluster.name == name:
            return cluster
    names = ", ".join(cluster.name for cluster in clusters) or "none"
    raise UserError(f"no cluster named {name} was started here; there is: {names}")


def forget(name: str) -> None:
    """Remove the record; the rest of the folder stays."""
    (clusters_folder() / name / _RECORD).unlink(missing_ok=True)


def _read(record: Path) -> RegisteredCluster:
    try:
        data = json.loads(record.read_text("utf-8"))
        processes = tuple(Process(**process) for process in data.pop("processes"))
        return RegisteredCluster(**data, processes=processes)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{record} is not a cluster record ({error}); end its processes by hand and remove it"
        ) from error
