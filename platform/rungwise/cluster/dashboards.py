"""Command and configuration of a local cluster's Prometheus.

It listens on loopback. Ray's dashboard lists the nodes to scrape to clients that have the token.
Rules and the boards' page come from dashboards/ of the repository.
"""

from pathlib import Path
from typing import Any

import yaml

from rungwise.core.package_data import data_parent

PAGE = "consoles/rungwise.html"


def folder() -> Path:
    """The folder dashboards/ of the package or the checkout."""
    return data_parent("dashboards") / "dashboards"


def configuration(dashboard: str, token_file: Path, interval: str) -> dict[str, Any]:
    """A configuration that scrapes every node in Ray's dashboard at each `interval` ("15s")."""
    discovery = {
        "url": f"{dashboard}/api/prometheus/sd",
        "refresh_interval": interval,
        "authorization": {"type": "Bearer", "credentials_file": str(token_file)},
    }
    return {
        "global": {
            "scrape_interval": interval,
            "scrape_timeout": "5s",
            "evaluation_interval": interval,
        },
        "rule_files": [str(folder() / "prometheus" / "rules" / "*.yml")],
        "scrape_configs": [{"job_name": "ray", "http_sd_configs": [discovery]}],
    }


def configure_prometheus(
    binary: str, config: Path, settings: dict[str, Any], storage: Path, port: int
) -> list[str]:
    """Write the configuration and return the server's command."""
    config.write_text(yaml.safe_dump(settings, sort_keys=False), "utf-8")
    return [
        binary,
        f"--config.file={config}",
        f"--storage.tsdb.path={storage}",
        f"--web.listen-address=127.0.0.1:{port}",
        f"--web.console.templates={folder() / 'prometheus' / 'consoles'}",
    ]
