"""The record of the cluster that `rungwise up` started here: its addresses and processes.

It lies in ~/.rungwise/clusters/local (RUNGWISE_HOME replaces ~/.rungwise) and holds no secret; the
token is a file beside it that only its owner can read.
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

    what: str  # head, node-2, mlflow, prometheus
    pid: int
    started: float  # seconds since the epoch, from psutil's create_time


@dataclass(frozen=True)
class RegisteredCluster:
    """The record of a cluster: how to reach it, and which processes `rungwise down` ends."""

    job_address: str  # http://127.0.0.1:8265
    ray_address: str  # 127.0.0.2:6379
    token_path: str
    tracking_uri: str
    prometheus_uri: str | None
    root: str  # the base for a recipe's relative `root`
    processes: tuple[Process, ...]


def cluster_folder() -> Path:
    home = os.environ.get(HOME_VARIABLE)
    return (Path(home) if home else Path.home() / ".rungwise") / "clusters" / "local"


def save(cluster: RegisteredCluster) -> None:
    """Write the record atomically."""
    folder = cluster_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = json.dumps(dataclasses.asdict(cluster), indent=2) + "\n"
    Folder.at(folder).write_bytes(_RECORD, text.encode())


def find() -> RegisteredCluster | None:
    """The cluster that was started here, whose processes may have ended since; None if there is
    none."""
    record = cluster_folder() / _RECORD
    if not record.exists():
        return None
    try:
        data = json.loads(record.read_text("utf-8"))
        processes = tuple(Process(**process) for process in data.pop("processes"))
        return RegisteredCluster(**data, processes=processes)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{record} is not a cluster record ({error}); end its processes by hand and remove it"
        ) from error


def forget() -> None:
    """Remove the record; the rest of the folder stays."""
    (cluster_folder() / _RECORD).unlink(missing_ok=True)
