"""Run the Prometheus of a cluster on the head; Ray itself tells it which nodes there are."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from rungwise.cluster.aws.scratch import scratch_folder
from rungwise.cluster.aws.token import TOKEN_FILE
from rungwise.cluster.prometheus import configuration
from rungwise.cluster.ray_start import DASHBOARD_PORT

BINARY = "/usr/bin/prometheus"
PORT = 9090
_RETENTION = "15d"
_INTERVAL = "15s"


def command(config: Path, storage: Path) -> list[str]:
    """The command of the server, which listens on loopback and is reached by port forwarding."""
    return [
        BINARY,
        f"--config.file={config}",
        f"--storage.tsdb.path={storage}",
        f"--storage.tsdb.retention.time={_RETENTION}",
        f"--web.listen-address=127.0.0.1:{PORT}",
    ]


def become_prometheus() -> None:
    """Write the configuration and replace this process by Prometheus."""
    config = Path(os.environ["RUNTIME_DIRECTORY"]) / "prometheus.yml"
    dashboard = f"http://127.0.0.1:{DASHBOARD_PORT}"
    settings = configuration(dashboard, TOKEN_FILE, _INTERVAL)
    config.write_text(yaml.safe_dump(settings, sort_keys=False), "utf-8")
    os.execv(BINARY, command(config, scratch_folder() / "prometheus"))
