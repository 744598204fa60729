"""`rungwise up`: start Ray's nodes, MLflow and Prometheus, wait until all answer, print addresses.

Everything keeps running after the command ends. Each process is recorded as it starts, so that
`rungwise down` can end what a killed `up` left. An `up` that fails or is interrupted ends what it
started.
"""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from rich.console import Console
from rich.status import Status

from rungwise.cluster import dashboards, ray_start, registry
from rungwise.cluster.local import processes as services
from rungwise.cluster.local.machine import (
    ClusterFolder,
    MachineShare,
    Ports,
    check_capacity,
    check_nodes,
    count_cores,
    create_root,
    divide_machine,
    list_devices,
    node_address,
)
from rungwise.cluster.local.processes import (
    end_processes,
    find_family,
    find_process,
    mark_environment,
    start_process,
)
from rungwise.cluster.registry import RegisteredCluster
from rungwise.core.errors import UserError

_MLFLOW_PORT, _PROMETHEUS_PORT, _GRAFANA_PORT = 5000, 9090, 3000
_OBJECT_STORE_BYTES = 512 << 20
_START_SECONDS = 180.0
_POLL_SECONDS = 0.2
_LOG_CHARACTERS = 400
_OLD_MLFLOW = "out-of-date database schema"


@dataclass(frozen=True)
class Settings:
    """The options of `rungwise up`; None chooses automatically."""

    name: str = "local"
    nodes: int = 2
    cpus: int | None = None  # per node; None divides the machine's cores
    root: str = "artifacts"
    port: int | None = None  # of the job API and the dashboard
    mlflow_port: int | None = None
    prometheus_port: int | None = None
    dashboards: bool = False  # requires Prometheus; starts Grafana if it is installed
    grafana_port: int | None = None


def start_cluster(settings: Settings, console: Console) -> RegisteredCluster:
    """Return the running cluster of that name, or start one. Raises UserError if it cannot be
    started here, or one of that name is broken."""
    folder = ClusterFolder(settings.name)
    with folder.locked():
        if (cluster := _running_cluster(folder, console)) is not None:
            console.print(f"the cluster {cluster.name} runs already")
            return cluster
        check_nodes(settings.nodes, settings.cpus)
        root = create_root(settings.root)
        check_capacity(settings.nodes, root)
        if settings.dashboards and shutil.which("prometheus") is None:
            raise UserError(
                "--dashboards needs prometheus, which is not installed (Debian: apt-get install "
                "--no-install-recommends prometheus)"
            )
        if settings.grafana_port is not None and not settings.dashboards:
            raise UserError("--grafana-port needs --dashboards, which starts Grafana")
        shares = divide_machine(settings.nodes, count_cores(), list_devices(), settings.cpus)
        ports = Ports()

        def choose_uri(port: int | None, usual: int, option: str) -> str:
            number = ports.near(usual) if port is None else ports.claim(port, option)
            return f"http://127.0.0.1:{number}"

        job_address = choose_uri(settings.port, ray_start.DASHBOARD_PORT, "--port")
        tracking_uri = choose_uri(settings.mlflow_port, _MLFLOW_PORT, "--mlflow-port")
        prometheus_uri = choose_uri(settings.prometheus_port, _PROMETHEUS_PORT, "--prometheus-port")
        grafana_uri = None
        if settings.dashboards and dashboards.find_grafana() is not None:
            grafana_uri = choose_uri(settings.grafana_port, _GRAFANA_PORT, "--grafana-port")
        cluster = RegisteredCluster(
            name=settings.name,
            job_address=job_address,
            ray_address=f"{node_address(0)}:{ports.near(ray_start.GCS_PORT)}",
            token_path=str(folder.token),
            tracking_uri=tracking_uri,
            prometheus_uri=None,
            root=str(root.parent),
            processes=(),
            grafana_uri=grafana_uri,
        )
        # Saved before anything is started, so that `down` finds whatever was started.
        registry.save(cluster)
        try:
            starter = _Starter(cluster, folder, folder.create(), ports)
            with console.status("starting") as status:
                starter.run(shares, root, prometheus_uri, status)
        except BaseException:
            record = registry.find(settings.name)
            assert record is not None, "it was saved above"
            end_processes(record.processes, folder.scratch)
            folder.clear()
            raise
        folder.ready.touch()
        return starter.cluster


class _Starter:
    """Starts the processes of a cluster, and adds each to its record."""

    def __init__(
        self, cluster: RegisteredCluster, folder: ClusterFolder, scratch: Path, ports: Ports
    ) -> None:
        self.cluster = cluster
        self._folder = folder
        self._scratch = scratch
        self._ports = ports
        self._started: dict[str, psutil.Popen] = {}
        variables = ray_start.environment(
            folder.token,
            **{ray_start.ROOT_VARIABLE: cluster.root},
            MLFLOW_TRACKING_URI=cluster.tracking_uri,
            # Saves seven processes for MLflow's own jobs, which are not used here.
            MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false",
            # By default these are the same for every cluster on the machine.
            AUTOSCALER_METRIC_PORT=str(ports.any()),
            DASHBOARD_METRIC_PORT=str(ports.any()),
        )
        self._environment = mark_environment(variables, scratch)

    def run(
        self, shares: list[MachineShare], root: Path, prometheus_uri: str, status: Status
    ) -> None:
        """Start everything and wait for it. Raises UserError if a process ends or stays silent."""
        api, token = self.cluster.job_address, self._folder.token
        tracking = self.cluster.tracking_uri
        data = self._folder.prometheus / "grafana"
        if grafana_uri := self.cluster.grafana_uri:
            self._environment |= dashboards.ray_environment(prometheus_uri, grafana_uri, data)
        self._start("mlflow", services.mlflow_command(root, _get_port(tracking)))
        self._start_node(0, shares[0])
        status.update("waiting for Ray's head")
        self._wait("head", lambda: node_address(0) in services.list_nodes(api, token))
        for number, share in enumerate(shares[1:], start=1):
            self._start_node(number, share)
        gpus = any(share.devices for share in shares)
        command = services.prometheus_command(
            self._folder.prometheus, api, token, _get_port(prometheus_uri), gpus
        )
        if command is not None:
            self.cluster = replace(self.cluster, prometheus_uri=prometheus_uri)
            self._start("prometheus", command)
            status.update("waiting for Prometheus")
            self._wait("prometheus", lambda: services.request(f"{prometheus_uri}/-/ready"))
        if grafana_uri and (binary := dashboards.find_grafana()):
            port = _get_port(grafana_uri)
            more = dashboards.grafana_environment(prometheus_uri, data, port)
            self._start("grafana", dashboards.grafana_command(binary), more)
            status.update("waiting for Grafana")
            self._wait("grafana", lambda: services.request(f"{grafana_uri}/api/health"))
        for number in range(1, len(shares)):
            name, address = _node_name(number), node_address(number)
            status.update(f"waiting for {name}")
            self._wait(name, lambda address=address: address in services.list_nodes(api, token))
        status.update("waiting for MLflow")
        self._wait("mlflow", lambda: services.request(f"{tracking}/health"))
        status.update("waiting for the job API")
        self._wait("head", lambda: services.list_jobs(api, token) is not None)

    def _start_node(self, number: int, share: MachineShare) -> None:
        # Ports that Ray would choose equal on every node; it picks free ones for all others.
        more = ["--dashboard-agent-listen-port", str(self._ports.any())]
        more += ["--min-worker-port", "0", "--max-worker-port", "0"]
        if number == 0:
            more += ["--ray-client-server-port", str(self._ports.any())]
        node = ray_start.NodeOptions(
            address=node_address(number),
            temp_dir=self._scratch / _node_name(number),
            head=self.cluster.ray_address if number else None,
            resources=share.resources,
            gcs_port=_get_port(self.cluster.ray_address),
            dashboard_port=_get_port(self.cluster.job_address),
            metrics_port=self._ports.any(),
            object_store_bytes=_OBJECT_STORE_BYTES,
            more=tuple(more),
        )
        self._start(_node_name(number), ray_start.start_command(node), share.environment)

    def _start(self, what: str, command: list[str], more: dict[str, str] | None = None) -> None:
        process, entry = start_process(
            what, command, self._environment | (more or {}), self._log(what)
        )
        self._started[what] = process
        self.cluster = replace(self.cluster, processes=(*self.cluster.processes, entry))
        registry.save(self.cluster)

    def _wait(self, what: str, query: Callable[[], object]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not services.is_answering(query):
            for name, process in self._started.items():
                if process.poll() is not None:
                    raise UserError(f"{name} has ended: {self._reason(name)}")
            if time.monotonic() > deadline:
                raise UserError(
                    f"{what} does not answer after {_START_SECONDS:.0f} s: {self._reason(what)}"
                )
            time.sleep(_POLL_SECONDS)

    def _log(self, what: str) -> Path:
        return self._folder.logs / f"{what}.log"

    def _reason(self, what: str) -> str:
        """The most informative line of a log, the log's path, and the remedy if known."""
        lines = self._log(what).read_text(errors="replace").splitlines()
        lines = [line.strip() for line in lines if line.strip()]
        errors = [line for line in lines if "Error" in line or "Exception" in line]
        line = (errors or lines or ["its log is empty"])[-1][:_LOG_CHARACTERS]
        reason = f"{line} (all of it: {self._log(what)})"
        if what == "mlflow" and _OLD_MLFLOW in line:
            return f"{reason}; the store is another version's: choose another folder with --root"
        return reason


def _running_cluster(folder: ClusterFolder, console: Console) -> RegisteredCluster | None:
    """The cluster if it is running; one that ended by itself is cleared and gives None."""
    clusters = {cluster.name: cluster for cluster in registry.all_clusters()}
    if (cluster := clusters.get(folder.name)) is None:
        return None
    if not find_family(cluster.processes, folder.scratch):
        folder.clear()
        console.print(f"the last cluster {cluster.name} had ended by itself; its record is gone")
        return None
    missing = [entry.what for entry in cluster.processes if find_process(entry) is None]
    if missing or not folder.ready.exists():
        why = f"{', '.join(missing)} ended by itself" if missing else "it was never ready"
        raise UserError(
            f"a cluster {cluster.name} runs in part ({why}); end it with: "
            f"rungwise down --name {cluster.name}"
        )
    return cluster


def _node_name(number: int) -> str:
    return f"node-{number + 1}" if number else "head"


def _get_port(address: str) -> int:
    return int(address.rpartition(":")[2])


def describe_cluster(cluster: RegisteredCluster) -> str:
    """All addresses and what to do next, in lines."""
    root = Path(cluster.root)
    count = sum(
        entry.what == "head" or entry.what.startswith("node-") for entry in cluster.processes
    )
    name = "" if cluster.name == "local" else f" --name {cluster.name}"
    boards = f"{cluster.prometheus_uri}/{dashboards.PAGE}"
    if cluster.grafana_uri:
        boards = f"{cluster.grafana_uri}/dashboards, {boards}"
    rows = [
        (f"cluster {cluster.name}", f"{count} nodes, token required"),
        ("job address", cluster.job_address),
        ("Ray dashboard", f"{cluster.job_address}  (asks for the token)"),
        ("MLflow", cluster.tracking_uri),
        ("Prometheus", cluster.prometheus_uri or "not installed"),
        ("boards", boards if cluster.prometheus_uri else "need Prometheus"),
        ("token", cluster.token_path),
        ("artifacts", f"a recipe's `root: artifacts` is {root / 'artifacts'}"),
        ("logs", str(ClusterFolder(cluster.name).logs)),
        ("", ""),
        ("next", f"rungwise submit pretrain quickstart{name}"),
        ("", f"rungwise down{name}"),
    ]
    return "\n".join(f"{what:<14} {text}".rstrip() for what, text in rows)
