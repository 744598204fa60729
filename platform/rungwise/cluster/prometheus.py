"""The Prometheus configuration of a cluster, whose nodes Ray's dashboard lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def configuration(dashboard: str, token_file: Path, interval: str) -> dict[str, Any]:
    """A configuration that scrapes every node that the dashboard lists, each `interval` ("15s")."""
    discovery = {
        "url": f"{dashboard}/api/prometheus/sd",
        "refresh_interval": interval,
        "authorization": {"type": "Bearer", "credentials_file": str(token_file)},
    }
    return {
        "global": {"scrape_interval": interval, "scrape_timeout": "5s"},
        "scrape_configs": [{"job_name": "ray", "http_sd_configs": [discovery]}],
    }
