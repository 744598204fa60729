"""The machine under a local cluster: its cores and free ports, and the cluster's folder.
Ray listens on every interface, so a port must be free on all of them.

token         readable only by its owner; removed when the cluster ends
ray ->        scratch of Ray's nodes; elsewhere, since Unix sockets below it need a short path
ready         exists once everything has answered
logs/         one file per process, and each node's Ray logs after it has ended
prometheus/   configuration and measurements, kept for the next cluster
"""

import contextlib
import fcntl
import os
import random
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rungwise.cluster.ray_start import TOKEN_BYTES
from rungwise.cluster.registry import cluster_folder, forget
from rungwise.core.errors import UserError
from rungwise.core.storage.folder import local_path
from rungwise.core.storage.object_store import is_remote

MAX_NODES = 32
# Below the kernel's ephemeral ports (from 32768 on Linux), so that no process started meanwhile
# gets one of them.
_QUIET = range(20000, 32000)
_NEIGHBOURS = 100


def count_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def divide_cores(nodes: int, cores: int) -> list[int]:
    """The CPUs of each node, at least one."""
    return [max(1, cores // nodes + (number < cores % nodes)) for number in range(nodes)]


class Ports:
    """Chooses ports that nothing listens on, each once."""

    def __init__(self) -> None:
        self._used: set[int] = set()

    def near(self, port: int) -> int:
        """Take this port or the next free one. Raises UserError if none of 100 is free."""
        for candidate in range(port, port + _NEIGHBOURS):
            if candidate not in self._used and can_bind("0.0.0.0", candidate):
                self._used.add(candidate)
                return candidate
        raise UserError(f"no port is free from {port} to {port + _NEIGHBOURS - 1} on this machine")

    def any(self) -> int:
        """Take a free port in a range that no common server uses."""
        return self.near(random.choice(_QUIET))


def can_bind(address: str, port: int = 0) -> bool:
    """Whether a server can listen: the address is this machine's and the port is free."""
    with contextlib.suppress(OSError), socket.socket() as probe:
        # Servers set this too: closing connections of an ended server do not block its port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address, port))
        return True
    return False


def node_address(number: int) -> str:
    """The address of node 0 (the head), 1 and so on. Not 127.0.0.1, which Ray would replace."""
    return f"127.0.0.{number + 2}"


def check_nodes(nodes: int) -> None:
    """Raise UserError for an impossible number, or if this machine lacks the loopback addresses."""
    if not 1 <= nodes <= MAX_NODES:
        raise UserError(f"--nodes is {nodes}; expected 1 to {MAX_NODES}")
    for address in map(node_address, range(nodes)):
        if not can_bind(address):
            raise UserError(
                f"{address} is no address of this machine, and each node needs one; add it to the "
                f"loopback interface (macOS: sudo ifconfig lo0 alias {address}), or use fewer "
                "--nodes"
            )


def create_root(root: str) -> Path:
    """Return the folder `root`, created if necessary. Raises UserError if it is unusable."""
    if is_remote(root):
        raise UserError(
            f"--root is {root}; expected a folder of this machine, where MLflow's store lies too. "
            "A recipe may name a bucket as its own root"
        )
    path = local_path(root).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--root {path} cannot be made ({error.strerror}); choose another"
        ) from error
    if not os.access(path, os.W_OK):
        raise UserError(f"--root {path} is not writable; choose another")
    return path


class ClusterFolder:
    """The paths of the cluster."""

    def __init__(self) -> None:
        self.path = cluster_folder().absolute()
        self.token = self.path / "token"
        self.ready = self.path / "ready"
        self.logs = self.path / "logs"
        self.prometheus = self.path / "prometheus"
        self._link = self.path / "ray"

    @property
    def scratch(self) -> Path | None:
        return self._link.readlink() if self._link.is_symlink() else None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the cluster's lock, which the system releases when this process ends. Raises
        UserError if another command holds it."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.path / "lock").open("w") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UserError(
                    "another rungwise up or down is at work; wait for it, or end it with Ctrl-C"
                ) from error
            yield

    def create(self) -> Path:
        """Create a new token, empty logs and a new scratch folder; return the scratch folder."""
        shutil.rmtree(self.logs, ignore_errors=True)
        self.logs.mkdir(mode=0o700)
        self.prometheus.mkdir(mode=0o700, exist_ok=True)
        self.token.unlink(missing_ok=True)
        descriptor = os.open(self.token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w") as stream:
            stream.write(secrets.token_hex(TOKEN_BYTES))
        # The default temporary folder may have a path too long for a socket below it.
        short = "/tmp" if os.access("/tmp", os.W_OK) else None
        scratch = Path(tempfile.mkdtemp(prefix="rungwise-", dir=short))
        self._link.symlink_to(scratch)
        return scratch

    def clear(self) -> None:
        """Remove all but logs and measurements; the record goes last, so this can be repeated."""
        if scratch := self.scratch:
            for logs in sorted(scratch.glob("*/session_[0-9]*/logs")):
                copy = self.logs / "ray" / logs.parents[1].name
                shutil.rmtree(copy, ignore_errors=True)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(logs, copy)
            shutil.rmtree(scratch, ignore_errors=True)
            self._link.unlink()
        self.token.unlink(missing_ok=True)
        self.ready.unlink(missing_ok=True)
        forget()
