"""Commands and configuration of a cluster's Prometheus and Grafana, local and on AWS.

Both listen on loopback. Ray's dashboard lists the nodes to scrape to clients that have the token.
Rules, boards and the boards' page come from dashboards/ of the repository.
"""

import shutil
from pathlib import Path
from typing import Any

import yaml

from rungwise.core.package_data import data_parent

_DCGM_PORT = 9400  # of NVIDIA's exporter, one per machine with GPUs
_GRAFANA = (Path("/usr/share/grafana/bin/grafana"), Path("/usr/sbin/grafana"))
PAGE = "consoles/rungwise.html"


def folder() -> Path:
    """The folder dashboards/ of the package or the checkout."""
    return data_parent("dashboards") / "dashboards"


def configuration(
    dashboard: str, token_file: Path, interval: str, gpus: bool = False
) -> dict[str, Any]:
    """A configuration that scrapes every node in Ray's dashboard at each `interval` ("15s"), and
    with `gpus` also NVIDIA's DCGM exporter on each."""
    discovery = {
        "url": f"{dashboard}/api/prometheus/sd",
        "refresh_interval": interval,
        "authorization": {"type": "Bearer", "credentials_file": str(token_file)},
    }
    jobs: list[dict[str, Any]] = [{"job_name": "ray", "http_sd_configs": [discovery]}]
    if gpus:
        # Ray lists several ports per machine; this maps them to a single target.
        relabel = [
            {
                "source_labels": ["__address__"],
                "regex": r"(.*):\d+",
                "target_label": "__address__",
                "replacement": f"${{1}}:{_DCGM_PORT}",
            },
            {"regex": "__meta_.*|job", "action": "labeldrop"},
        ]
        jobs.append(
            {"job_name": "dcgm", "http_sd_configs": [discovery], "relabel_configs": relabel}
        )
    return {
        "global": {
            "scrape_interval": interval,
            "scrape_timeout": "5s",
            "evaluation_interval": interval,
        },
        "rule_files": [str(folder() / "prometheus" / "rules" / "*.yml")],
        "scrape_configs": jobs,
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


def find_grafana() -> str | None:
    """The path of Grafana's program, or None if it is not installed."""
    return shutil.which("grafana") or next((str(path) for path in _GRAFANA if path.exists()), None)


def grafana_command(binary: str) -> list[str]:
    """The server's command; all settings are in `grafana_environment`."""
    home = Path(binary).resolve().parent.parent
    home = home if (home / "public").is_dir() else Path("/usr/share/grafana")
    return [binary, "server", "--homepath", str(home)]


def grafana_environment(prometheus_uri: str, data: Path, port: int) -> dict[str, str]:
    """The settings: loopback, no login, read-only, boards of the repository, frames allowed."""
    return {
        "GF_SERVER_HTTP_ADDR": "127.0.0.1",
        "GF_SERVER_HTTP_PORT": str(port),
        "GF_PATHS_DATA": str(data),
        "GF_PATHS_LOGS": str(data / "log"),
        "GF_PATHS_PLUGINS": str(data / "plugins"),
        "GF_PATHS_PROVISIONING": str(folder() / "grafana" / "provisioning"),
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
        "GF_AUTH_DISABLE_LOGIN_FORM": "true",
        "GF_SECURITY_ALLOW_EMBEDDING": "true",  # in Ray's dashboard
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        "RUNGWISE_PROMETHEUS": prometheus_uri,
        "RUNGWISE_BOARDS": str(folder() / "grafana" / "boards"),
        "RUNGWISE_RAY_BOARDS": str(data / "ray-boards"),
    }


def ray_environment(prometheus_uri: str, grafana_uri: str, data: Path) -> dict[str, str]:
    """The variables by which Ray's dashboard finds both and writes its boards for Grafana. Its
    pages then show Grafana's charts in browsers that reach `grafana_uri`."""
    return {
        "RAY_PROMETHEUS_HOST": prometheus_uri,
        "RAY_GRAFANA_HOST": grafana_uri,
        "RAY_METRICS_GRAFANA_DASHBOARD_OUTPUT_DIR": str(data / "ray-boards"),
    }
