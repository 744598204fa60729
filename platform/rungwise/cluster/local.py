"""`rungwise up` and `down`: a Ray cluster of several nodes on this machine.

Its folder, ~/.rungwise/clusters/local (RUNGWISE_HOME replaces ~/.rungwise), holds cluster.json, its
token, and what `ray start` said. Each process inherits a mark in its environment, the cluster's
scratch folder, by which it is found, also after its parents have ended.
"""

import contextlib
import dataclasses
import json
import os
import random
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console

from rungwise.cluster.environment import ENVIRONMENT, ROOT_VARIABLE
from rungwise.core.errors import UserError
from rungwise.core.storage.folder import Folder, is_remote, local_path
from rungwise.core.tracking.store import default_uri

HOME_VARIABLE = "RUNGWISE_HOME"
MARK = "RUNGWISE_LOCAL_CLUSTER"
DASHBOARD_PORT = 8265
MAX_NODES = 32
_GCS_PORT = 6379
# Below the kernel's ephemeral ports, so that no process started meanwhile gets one of them.
_QUIET_PORTS = range(20000, 32000)
_TOKEN_BYTES = 32
_OBJECT_STORE_BYTES = 512 << 20
_GRACE_SECONDS = 5.0
_KILLS = 20
_VARIABLES = {
    # How long the head keeps an uploaded folder that no job uses, so that a stopped job can be
    # resumed; Ray's default is ten minutes.
    "RAY_RUNTIME_ENV_TEMPORARY_REFERENCE_EXPIRATION_S": str(7 * 86_400),
    # Ray sets process titles, which by default overwrite the environment that others can read.
    "SPT_NOENV": "1",
}


@dataclass(frozen=True)
class LocalCluster:
    """The record of the cluster: how to reach it, and the mark of its processes."""

    job_address: str  # http://127.0.0.1:8265
    ray_address: str  # 127.0.0.2:6379
    token_path: str
    root: str  # the base for a recipe's relative `root`
    scratch: str  # of Ray's nodes; not in the folder: sockets below it need a short path
    ready: bool = False  # every node runs


def cluster_folder() -> Path:
    home = os.environ.get(HOME_VARIABLE)
    return (Path(home) if home else Path.home() / ".rungwise") / "clusters" / "local"


def find_cluster() -> LocalCluster | None:
    """The cluster that was started here, whose processes may have ended since, or None."""
    record = cluster_folder() / "cluster.json"
    if not record.exists():
        return None
    try:
        return LocalCluster(**json.loads(record.read_text("utf-8")))
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{record} is not a cluster record ({error}); end its processes by hand and remove it"
        ) from error


def save_cluster(cluster: LocalCluster) -> None:
    folder = cluster_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = json.dumps(dataclasses.asdict(cluster), indent=2) + "\n"
    Folder.at(folder).write_bytes("cluster.json", text.encode())


def start_cluster(nodes: int, root: str, console: Console) -> LocalCluster:
    """Return the running cluster, or start one. Raises UserError if it cannot, or is not ready."""
    if cluster := find_cluster():
        if list_processes(cluster):
            if not cluster.ready:
                raise UserError("the cluster was never ready; end it with: rungwise down")
            console.print("the cluster runs already")
            return cluster
        end_cluster(cluster)
        console.print("the last cluster had ended by itself; its record is gone")
    if not 1 <= nodes <= MAX_NODES:
        raise UserError(f"--nodes is {nodes}; expected 1 to {MAX_NODES}")
    folder = cluster_folder().absolute()
    cluster = LocalCluster(
        job_address=f"http://127.0.0.1:{find_port(DASHBOARD_PORT)}",
        ray_address=f"{node_address(0)}:{find_port(_GCS_PORT)}",
        token_path=str(folder / "token"),
        root=str(_make_root(root).parent),
        scratch=tempfile.mkdtemp(prefix="rungwise-", dir="/tmp"),  # short: it holds sockets
    )
    # Saved before anything is started, so that `down` finds whatever was started.
    save_cluster(cluster)
    try:
        write_token(Path(cluster.token_path))
        with console.status("starting"):
            _start_nodes(cluster, divide_cores(nodes, count_cores()), folder)
    except BaseException:
        end_cluster(cluster)
        raise
    cluster = dataclasses.replace(cluster, ready=True)
    save_cluster(cluster)
    return cluster


def _start_nodes(cluster: LocalCluster, cpus: list[int], logs: Path) -> None:
    """Start the nodes, one after the other. Raises UserError if one does not start."""
    ports = (port for port in random.sample(_QUIET_PORTS, 1000) if can_bind(port))
    environment = node_environment(
        Path(cluster.token_path),
        **{ROOT_VARIABLE: cluster.root, MARK: cluster.scratch},
        # By default these are the same for every cluster on the machine.
        AUTOSCALER_METRIC_PORT=str(next(ports)),
        DASHBOARD_METRIC_PORT=str(next(ports)),
    )
    for number, count in enumerate(cpus):
        name = f"node-{number + 1}" if number else "head"
        options: dict[str, object] = {
            "num-cpus": count,
            "object-store-memory": _OBJECT_STORE_BYTES,
            "metrics-export-port": next(ports),
            # Ports that Ray would choose equal on every node; it picks free ones for all others.
            "dashboard-agent-listen-port": next(ports),
            "min-worker-port": 0,
            "max-worker-port": 0,
        }
        if number:
            options["num-gpus"] = 0  # the head has the machine's: each node would count them all
        else:
            options["port"] = cluster.ray_address.rpartition(":")[2]
            options["include-dashboard"] = True  # a fault if it does not start
            options["dashboard-port"] = cluster.job_address.rpartition(":")[2]
            options["ray-client-server-port"] = next(ports)
        head = cluster.ray_address if number else None
        command = start_command(node_address(number), Path(cluster.scratch, name), head, options)
        log = logs / f"{name}.log"
        # In a session of its own, which the signals of this terminal do not reach.
        with log.open("w") as stream:
            started = subprocess.run(
                command,
                env=environment,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                check=False,
            )
        if started.returncode:
            raise UserError(f"{name} does not start; see {log}")


def start_command(
    address: str, temp_dir: Path, head: str | None, options: Mapping[str, object]
) -> list[str]:
    """`ray start` for a node that joins `head`, or for the head, which listens on loopback."""
    role = ["--address", head] if head else ["--head", "--dashboard-host", "127.0.0.1"]
    command = [str(Path(sys.executable).with_name("ray")), "start", "--disable-usage-stats"]
    command += ["--node-ip-address", address, "--temp-dir", str(temp_dir)]
    return [*command, *role, *(f"--{name}={value}" for name, value in options.items())]


def node_environment(token_path: Path, **more: str) -> dict[str, str]:
    """The environment of nodes: our settings unless the user has set them, token auth, `more`."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        # The third says that the workers have this process's environment; those of a job may not.
        if not name.startswith(("RAY_ADDRESS", "RAY_AUTH", "RAY_ENABLE_UV_RUN", "MLFLOW_"))
    }
    binaries = str(Path(sys.executable).parent)  # a job's `python` is the first one on PATH
    path = os.pathsep.join([binaries, inherited.get("PATH", os.defpath)])
    auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_path)}
    return {**ENVIRONMENT, **_VARIABLES, **inherited, "PATH": path, **auth, **more}


def describe_cluster(cluster: LocalCluster) -> str:
    """All addresses and what to do next, in lines."""
    root = Folder.at(cluster.root) / "artifacts"
    rows = [
        ("job address", f"{cluster.job_address}  (also Ray's dashboard, which asks for the token)"),
        ("token", cluster.token_path),
        ("artifacts", f"a recipe's `root: artifacts` is {root.uri}"),
        ("runs", f"mlflow ui --backend-store-uri {default_uri(root, None)}"),
        ("logs", cluster.scratch),
        ("next", "rungwise submit pretrain quickstart"),
        ("", "rungwise down"),
    ]
    return "\n".join(f"{what:<14} {text}".rstrip() for what, text in rows)


def end_cluster(cluster: LocalCluster) -> int:
    """End the cluster; return the number of its processes. Raises UserError if one stays."""
    processes = list_processes(cluster)
    count, seconds = len(processes), _GRACE_SECONDS
    for number in range(_KILLS):
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill() if number else process.terminate()
        psutil.wait_procs(processes, seconds)
        if not (processes := list_processes(cluster)):
            break
        seconds = 1.0
    else:
        ids = ", ".join(str(process.pid) for process in processes)
        raise UserError(f"these processes do not end: {ids}; look at what holds them")
    shutil.rmtree(cluster.scratch, ignore_errors=True)
    Path(cluster.token_path).unlink(missing_ok=True)
    (cluster_folder() / "cluster.json").unlink(missing_ok=True)
    return count


def list_processes(cluster: LocalCluster) -> list[psutil.Process]:
    """Every live process of the cluster."""
    processes = []
    for process in psutil.process_iter():
        # Other users' processes hide their environment, and kernel threads have none.
        with contextlib.suppress(psutil.Error, OSError):
            is_marked = process.environ().get(MARK) == cluster.scratch
            if is_marked and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return [process for process in processes if process.pid != os.getpid()]


def count_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def divide_cores(nodes: int, cores: int) -> list[int]:
    """The CPUs of each node, at least one."""
    return [max(1, cores // nodes + (number < cores % nodes)) for number in range(nodes)]


def node_address(number: int) -> str:
    """The address of node 0 (the head), 1 and so on. Not 127.0.0.1, which Ray would replace."""
    return f"127.0.0.{number + 2}"


def find_port(port: int) -> int:
    """This port or the next that is free on every interface, as Ray listens on all of them."""
    for candidate in range(port, port + 100):
        if can_bind(candidate):
            return candidate
    raise UserError(f"no port is free from {port} to {port + 99} on this machine")


def can_bind(port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket() as probe:
        # Servers set this too: closing connections of an ended server do not block its port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("0.0.0.0", port))
        return True
    return False


def _make_root(root: str) -> Path:
    if is_remote(root):
        raise UserError(
            f"--root is {root}; expected a folder of this machine. A recipe may name a bucket as "
            "its own root"
        )
    path = local_path(root).absolute()
    Folder.at(path).check_writable("--root")
    return path


def write_token(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(secrets.token_hex(_TOKEN_BYTES))
