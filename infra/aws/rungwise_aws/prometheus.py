"""Run a cluster's Prometheus and Grafana on the head, on loopback; users forward the ports. Ray
tells Prometheus which nodes exist."""

import os
from pathlib import Path

from rungwise.cluster import dashboards
from rungwise.cluster.description import Machine
from rungwise.cluster.ray_start import DASHBOARD_PORT
from rungwise.core.errors import UserError
from rungwise_aws.scratch import scratch_folder
from rungwise_aws.token import TOKEN_FILE

BINARY = "/usr/bin/prometheus"
PORT, GRAFANA_PORT = 9090, 3000
_RETENTION = "15d"
_INTERVAL = "15s"


def prometheus_command(machine: Machine, config: Path, storage: Path) -> list[str]:
    """Write the configuration and return the server's command."""
    groups = machine.scaling.groups if machine.scaling else {}
    gpus = any("GPU" in group.resources for group in groups.values())
    url = f"http://127.0.0.1:{DASHBOARD_PORT}"
    settings = dashboards.configuration(url, TOKEN_FILE, _INTERVAL, gpus)
    command = dashboards.configure_prometheus(BINARY, config, settings, storage, PORT)
    return [*command, f"--storage.tsdb.retention.time={_RETENTION}"]


def become_prometheus(machine: Machine) -> None:
    config = Path(os.environ["RUNTIME_DIRECTORY"]) / "prometheus.yml"
    os.execv(BINARY, prometheus_command(machine, config, scratch_folder() / "prometheus"))


def grafana_data() -> Path:
    """The folder for Grafana's data and the boards that Ray writes."""
    return scratch_folder() / "grafana"


def dashboard_variables() -> dict[str, str]:
    """The variables by which Ray's dashboard finds both; browsers use forwarded ports."""
    return dashboards.ray_environment(_uri(PORT), _uri(GRAFANA_PORT), grafana_data())


def become_grafana(machine: Machine) -> None:
    """Replace this process with Grafana. Raises UserError if it is not installed."""
    binary = dashboards.find_grafana()
    if binary is None:
        raise UserError(
            "Grafana is not installed on this image; the boards are on Prometheus' page"
        )
    variables = dashboards.grafana_environment(_uri(PORT), grafana_data(), GRAFANA_PORT)
    os.execve(binary, dashboards.grafana_command(binary), {**os.environ, **variables})


def _uri(port: int) -> str:
    return f"http://127.0.0.1:{port}"
