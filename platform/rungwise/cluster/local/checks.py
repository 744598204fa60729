"""Checks before a local cluster is started: the options, and the room on this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import psutil

from rungwise.cluster.local import services
from rungwise.cluster.local.ports import can_bind
from rungwise.cluster.registry import clusters_folder
from rungwise.core.errors import UserError
from rungwise.core.storage import is_remote

MAX_NODES = 32
# Memory of the processes before there is work: measured with 2 nodes, rounded up.
_MEMORY_GIB, _MEMORY_GIB_PER_NODE = 1.0, 0.5
_DISK_GIB = 1.0


def check_nodes(nodes: int, cpus: int | None) -> None:
    """Raise UserError for impossible numbers, and if this machine lacks the loopback addresses."""
    if not 1 <= nodes <= MAX_NODES:
        raise UserError(f"--nodes is {nodes}; expected 1 to {MAX_NODES}")
    if cpus is not None and cpus < 1:
        raise UserError(f"--cpus is {cpus}; expected 1 or more, or leave it out")
    for number in range(nodes):
        address = services.address_of(number)
        if not can_bind(address):
            raise UserError(
                f"{address} is no address of this machine, and each node needs one; add it to the "
                f"loopback interface (macOS: sudo ifconfig lo0 alias {address}), or use fewer "
                "--nodes"
            )


def local_root(root: str) -> Path:
    """The folder `root`, made if it does not exist. Raises UserError if it cannot be used."""
    if is_remote(root):
        raise UserError(
            f"--root is {root}; expected a folder of this machine, where MLflow's store lies too. "
            "A recipe may name a bucket as its own root"
        )
    path = Path(root).expanduser().absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--root {path} cannot be made ({error.strerror}); choose another"
        ) from error
    if not os.access(path, os.W_OK):
        raise UserError(f"--root {path} is not writable; choose another")
    return path


def check_room(nodes: int, root: Path) -> None:
    """Raise UserError if there is too little memory or disk to start at all."""
    needed = _MEMORY_GIB + _MEMORY_GIB_PER_NODE * nodes
    available = psutil.virtual_memory().available / 2**30
    if available < needed:
        raise UserError(
            f"{nodes} nodes need about {needed:.1f} GiB of memory before any work, "
            f"{available:.1f} are available; use fewer --nodes or end something"
        )
    for place in (clusters_folder(), root, Path(tempfile.gettempdir())):
        free = shutil.disk_usage(place).free / 2**30
        if free < _DISK_GIB:
            raise UserError(
                f"{place} has {free:.1f} GiB free; expected {_DISK_GIB:.0f} or "
                "more; free some space"
            )
