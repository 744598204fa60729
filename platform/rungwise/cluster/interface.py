"""Make gloo listen on the address by which Ray knows a node.

Gloo listens on the address of the host's name, often 127.0.0.1 or 127.0.1.1, which other nodes
cannot reach. The name of an interface differs between nodes, so each worker looks it up.
"""

import ipaddress
import os
import socket
from dataclasses import dataclass
from typing import Any

import psutil
import ray
from ray.train.torch import TorchConfig

from rungwise.ray_private import TorchBackend

_VARIABLE = "GLOO_SOCKET_IFNAME"


@dataclass
class NodeAddressTorchConfig(TorchConfig):
    """Ray Train's TorchConfig, which chooses each worker's interface before they connect."""

    @property
    def backend_cls(self) -> type[TorchBackend]:
        return _Backend


class _Backend(TorchBackend):
    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        worker_group.execute(choose_interface)
        super().on_start(worker_group, backend_config)


def choose_interface() -> None:
    """Set this process's GLOO_SOCKET_IFNAME unless the user has set it."""
    if _VARIABLE not in os.environ and (name := find_interface(ray.util.get_node_ip_address())):
        os.environ[_VARIABLE] = name


def find_interface(address: str) -> str | None:
    """The network interface with this address; loopback owns 127.0.0.0/8 but lists one address."""
    by_address = {
        entry.address.partition("%")[0]: name
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6)
    }
    if address not in by_address and ipaddress.ip_address(address).is_loopback:
        return by_address.get("127.0.0.1")
    return by_address.get(address)
