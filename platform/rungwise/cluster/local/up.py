"""`rungwise up`: start Ray's nodes, MLflow and Prometheus, wait until all answer, print addresses.

Everything keeps running after the command ends. Each process is recorded as it starts, so that
`rungwise down` can end what a killed `up` left. An `up` that fails or is interrupted ends what it
started.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
from rich.console import Console
from rich.status import Status

from rungwise.cluster import dashboards, ray_start, registry
from rungwise.cluster.local import processes as services
from rungwise.cluster.local.machine import (
    ClusterFolder,
    Ports,
    check_nodes,
    count_cores,
    create_root,
    divide_cores,
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

_MLFLOW_PORT, _PROMETHEUS_PORT = 5000, 9090
_OBJECT_STORE_BYTES = 512 << 20
_START_SECONDS = 180.0
_POLL_SECONDS = 0.2
_LOG_CHARACTERS = 400
_OLD_MLFLOW = "out-of-date database schema"


def start_cluster(nodes: int, root: str, console: Console) -> RegisteredCluster:
    """Return the running cluster, or start one with `root` for artifacts and MLflow's store. Raises
    UserError if it cannot be started here, or if there is one that is broken."""
    folder = ClusterFolder()
    with folder.locked():
        if (cluster := _running_cluster(folder, console)) is not None:
            console.print("the cluster runs already")
            return cluster
        check_nodes(nodes)
        root_path = create_root(root)
        ports = Ports()
        cluster = RegisteredCluster(
            job_address=f"http://127.0.0.1:{ports.near(ray_start.DASHBOARD_PORT)}",
            ray_address=f"{node_address(0)}:{ports.near(ray_start.GCS_PORT)}",
            token_path=str(folder.token),
            tracking_uri=f"http://127.0.0.1:{ports.near(_MLFLOW_PORT)}",
            prometheus_uri=None,
            root=str(root_path.parent),
            processes=(),
        )
        # Saved before anything is started, so that `down` finds whatever was started.
        registry.save(cluster)
        try:
            starter = _Starter(cluster, folder, folder.create(), ports)
            with console.status("starting") as status:
                starter.run(divide_cores(nodes, count_cores()), root_path, status)
        except BaseException:
            record = registry.find()
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

    def run(self, cpus: list[int], root: Path, status: Status) -> None:
        """Start everything and wait for it. Raises UserError if a process ends or stays silent."""
        api, token = self.cluster.job_address, self._folder.token
        tracking = self.cluster.tracking_uri
        self._start("mlflow", services.mlflow_command(root, _get_port(tracking)))
        # Only the head has the machine's GPUs: each node would count them all.
        self._start_node(0, {"CPU": cpus[0]})
        status.update("waiting for Ray's head")
        self._wait("head", lambda: node_address(0) in services.list_nodes(api, token))
        for number, count in enumerate(cpus[1:], start=1):
            self._start_node(number, {"CPU": count, "GPU": 0})
        port = self._ports.near(_PROMETHEUS_PORT)
        command = services.prometheus_command(self._folder.prometheus, api, token, port)
        if command is not None:
            uri = f"http://127.0.0.1:{port}"
            self.cluster = replace(self.cluster, prometheus_uri=uri)
            self._start("prometheus", command)
            status.update("waiting for Prometheus")
            self._wait("prometheus", lambda: services.request(f"{uri}/-/ready"))
        for number in range(1, len(cpus)):
            name, address = _node_name(number), node_address(number)
            status.update(f"waiting for {name}")
            self._wait(name, lambda address=address: address in services.list_nodes(api, token))
        status.update("waiting for MLflow")
        self._wait("mlflow", lambda: services.request(f"{tracking}/health"))
        status.update("waiting for the job API")
        self._wait("head", lambda: services.list_jobs(api, token) is not None)

    def _start_node(self, number: int, resources: dict[str, float]) -> None:
        # Ports that Ray would choose equal on every node; it picks free ones for all others.
        more = ["--dashboard-agent-listen-port", str(self._ports.any())]
        more += ["--min-worker-port", "0", "--max-worker-port", "0"]
        if number == 0:
            more += ["--ray-client-server-port", str(self._ports.any())]
        node = ray_start.NodeOptions(
            address=node_address(number),
            temp_dir=self._scratch / _node_name(number),
            head=self.cluster.ray_address if number else None,
            resources=resources,
            gcs_port=_get_port(self.cluster.ray_address),
            dashboard_port=_get_port(self.cluster.job_address),
            metrics_port=self._ports.any(),
            object_store_bytes=_OBJECT_STORE_BYTES,
            more=tuple(more),
        )
        self._start(_node_name(number), ray_start.start_command(node))

    def _start(self, what: str, command: list[str]) -> None:
        process, entry = start_process(what, command, self._environment, self._log(what))
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
    if (cluster := registry.find()) is None:
        return None
    if not find_family(cluster.processes, folder.scratch):
        folder.clear()
        console.print("the last cluster had ended by itself; its record is gone")
        return None
    missing = [entry.what for entry in cluster.processes if find_process(entry) is None]
    if missing or not folder.ready.exists():
        why = f"{', '.join(missing)} ended by itself" if missing else "it was never ready"
        raise UserError(f"the cluster runs in part ({why}); end it with: rungwise down")
    return cluster


def _node_name(number: int) -> str:
    return f"node-{number + 1}" if number else "head"


def _get_port(address: str) -> int:
    return int(address.rpartition(":")[2])


def describe_cluster(cluster: RegisteredCluster) -> str:
    """All addresses and what to do next, in lines."""
    count = sum(
        entry.what == "head" or entry.what.startswith("node-") for entry in cluster.processes
    )
    prometheus = cluster.prometheus_uri
    rows = [
        ("cluster", f"{count} nodes, token required"),
        ("job address", cluster.job_address),
        ("Ray dashboard", f"{cluster.job_address}  (asks for the token)"),
        ("MLflow", cluster.tracking_uri),
        ("Prometheus", prometheus or "not installed"),
        ("boards", f"{prometheus}/{dashboards.PAGE}" if prometheus else "need Prometheus"),
        ("token", cluster.token_path),
        ("artifacts", f"a recipe's `root: artifacts` is {Path(cluster.root) / 'artifacts'}"),
        ("logs", str(ClusterFolder().logs)),
        ("", ""),
        ("next", "rungwise submit pretrain quickstart"),
        ("", "rungwise down"),
    ]
    return "\n".join(f"{what:<14} {text}".rstrip() for what, text in rows)
