"""`ray start` for one node of this machine: its arguments and environment.

Ray reads the token from a file. It never appears in arguments or variables, which other users of
the machine could read.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rungwise.cluster.environment import ENVIRONMENT

GCS_PORT = 6379
DASHBOARD_PORT = 8265
METRICS_PORT = 8080
TOKEN_BYTES = 32
# How long the head keeps an uploaded folder that no job uses, so that a stopped job can be resumed.
# Ray's default of ten minutes is too short.
_PACKAGE_SECONDS = {"RAY_RUNTIME_ENV_TEMPORARY_REFERENCE_EXPIRATION_S": str(7 * 86_400)}
# The base for a recipe's relative `root` when a job runs on the cluster.
ROOT_VARIABLE = "RUNGWISE_ROOT"


@dataclass(frozen=True)
class NodeOptions:
    """One Ray node. `head` is the address to join, None for the head itself. Ray chooses ports that
    are 0. `resources` are CPU and GPU; {} lets Ray count them."""

    address: str
    temp_dir: Path
    head: str | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    gcs_port: int = GCS_PORT
    dashboard_port: int = DASHBOARD_PORT
    metrics_port: int = METRICS_PORT
    object_store_bytes: int | None = None
    more: tuple[str, ...] = ()  # more options, such as ports of a second node on a machine


def start_command(node: NodeOptions) -> list[str]:
    """The command that starts `node` and blocks; the dashboard listens on loopback only."""
    arguments = [str(Path(sys.executable).with_name("ray")), "start", "--block"]
    arguments += ["--disable-usage-stats", "--node-ip-address", node.address]
    arguments += ["--temp-dir", str(node.temp_dir), "--metrics-export-port", str(node.metrics_port)]
    if node.head is None:
        arguments += ["--head", "--port", str(node.gcs_port), "--dashboard-host", "127.0.0.1"]
        arguments += ["--dashboard-port", str(node.dashboard_port), "--include-dashboard", "true"]
    else:
        arguments += ["--address", node.head]
    for name, option in (("CPU", "--num-cpus"), ("GPU", "--num-gpus")):
        if name in node.resources:
            arguments += [option, f"{node.resources[name]:g}"]
    if node.object_store_bytes is not None:
        arguments += ["--object-store-memory", str(node.object_store_bytes)]
    return [*arguments, *node.more]


def environment(token_path: Path, **more: str) -> dict[str, str]:
    """The environment of `ray start` and its processes: our settings unless the user has set them,
    token auth, `more`."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        # The third says that the workers have this process's environment; those of a job may not.
        if not name.startswith(("RAY_ADDRESS", "RAY_AUTH", "RAY_ENABLE_UV_RUN", "MLFLOW_"))
    }
    binaries = str(Path(sys.executable).parent)  # a job's `python` is the first one on PATH
    path = os.pathsep.join([binaries, inherited.get("PATH", os.defpath)])
    auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_path)}
    return {**ENVIRONMENT, **_PACKAGE_SECONDS, **inherited, "PATH": path, **auth, **more}
