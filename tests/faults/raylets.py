"""A cluster whose nodes have addresses of their own: one `ray start` a node, all on loopback.

Ray replaces 127.0.0.1 by the machine's outer address; 127.0.0.2 and the others it takes as they
are. A node ends as a machine that loses its power: SIGKILL to all its processes, each by its id.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from rungwise.training.ray.resume_proof import kill_with_children
from tests.commands import environment
from tests.conftest import find_port
from tests.waiting import wait_until

RAY = str(Path(sys.executable).with_name("ray"))
_FREE_PORTS = ("--dashboard-agent-listen-port", "--metrics-export-port")
_FREE_PORTS += ("--dashboard-agent-grpc-port",)


class Raylets:
    """The nodes by their addresses; the first one started is the head. `environment` joins them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder  # short: Ray puts Unix sockets below it
        self._nodes: dict[str, psutil.Popen] = {}
        self._started = 0
        self.address = ""
        path = os.pathsep.join(filter(None, sys.path))
        self.environment = environment(RAY_AUTH_MODE="disabled", PYTHONPATH=path)

    def start(self, address: str) -> None:
        """Start a node with one CPU and return when it has joined."""
        place = self._folder / str(self._started)
        self._started += 1
        command = [RAY, "start", "--block", "--num-cpus", "1", "--node-ip-address", address]
        command += ["--object-store-memory", "100000000", "--temp-dir", str(place)]
        command += ["--disable-usage-stats"]
        for option in _FREE_PORTS:
            command += [option, str(find_port())]
        if self.address:
            command += ["--address", self.address]
        else:
            self.address = f"{address}:{find_port()}"
            command += ["--head", "--port", self.address.rpartition(":")[2]]
            command += ["--include-dashboard", "false"]
            command += ["--ray-client-server-port", str(find_port())]
            self.environment["RAY_ADDRESS"] = self.address
        # Without the address: this one makes the cluster that it names.
        variables = {k: v for k, v in self.environment.items() if k != "RAY_ADDRESS"}
        log = place.with_suffix(".log")
        with log.open("w") as stream:
            node = psutil.Popen(
                command, env=variables, start_new_session=True, stdout=stream, stderr=stream
            )
        self._nodes[address] = node
        wait_until(log.read_text, lambda: "Ray runtime started" in log.read_text(), code=node.poll)

    def kill(self, address: str) -> None:
        """Take a node away with everything that runs on it."""
        node = self._nodes.pop(address)
        kill_with_children(node.pid)
        node.wait()

    def drain(self, node_id: str, seconds: int) -> None:
        """Give notice of a preemption, as a cloud's node provider does."""
        command = [RAY, "drain-node", "--address", self.address, "--node-id", node_id]
        command += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "preempted"]
        command += ["--deadline-remaining-seconds", str(seconds)]
        subprocess.run(command, env=self.environment, check=True, capture_output=True)

    def close(self) -> None:
        for address in reversed(list(self._nodes)):
            self.kill(address)


@contextlib.contextmanager
def raylets(*addresses: str) -> Iterator[Raylets]:
    """A cluster of one node an address for the time of the block."""
    folder = Path(tempfile.mkdtemp(prefix="rw", dir="/tmp"))
    cluster = Raylets(folder)
    try:
        for address in addresses:
            cluster.start(address)
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def own_interfaces(*addresses: str) -> Iterator[bool]:
    """Each address as an interface `lo:N` of its own; False if this user may not make them."""
    made: list[str] = []
    try:
        for number, address in enumerate(addresses):
            done = _ip("add", address, "label", f"lo:rw{number}")
            if done.returncode:
                break
            made.append(address)
        yield len(made) == len(addresses)
    finally:
        for address in made:
            _ip("del", address)


def _ip(does: str, address: str, *more: str) -> subprocess.CompletedProcess[bytes]:
    if shutil.which("ip") is None:
        return subprocess.CompletedProcess([], 1)
    command = ["ip", "address", does, f"{address}/8", "dev", "lo", *more]
    return subprocess.run(command, capture_output=True, check=False)
