"""Tell Ray when AWS reclaims this spot instance, so that its work is saved and moved.

AWS announces an interruption about two minutes ahead and advises polling every five seconds. A
rebalance recommendation only says that one has become likely; it drains nothing.
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
"""

from __future__ import annotations

import json
import logging
import socket
import time
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Protocol

from ray.exceptions import RayError

from rungwise.cluster.description import Machine
from rungwise.cluster.ray_start import GCS_PORT
from rungwise.core.errors import UserError
from rungwise.ray_private import DrainNodeReason, GcsClient, GcsNodeInfo
from rungwise_aws.instance import InstanceMetadata

_LOGGER = logging.getLogger(__name__)

_INTERRUPTION = "spot/instance-action"
_REBALANCE = "events/recommendations/rebalance"
_POLL_SECONDS = 2.0
_CALL_SECONDS = 10.0


class Cluster(Protocol):
    """The part of the Ray cluster that Watch uses."""

    def list_nodes(self) -> list[str]: ...

    def drain(self, node: str, notice: Notice) -> None: ...


@dataclass(frozen=True)
class Notice:
    """AWS will `action` (terminate, stop, hibernate) at `deadline`, in seconds since the epoch."""

    action: str
    deadline: float


def parse_notice(text: str) -> Notice:
    """Parse AWS's `{"action": "terminate", "time": "2026-03-01T08:22:00Z"}`."""
    entry = json.loads(text)
    return Notice(entry["action"], datetime.fromisoformat(entry["time"]).timestamp())


class Watch:
    """Checks for a notice and drains each node of this machine once."""

    def __init__(self, metadata: InstanceMetadata, cluster: Cluster) -> None:
        self._metadata = metadata
        self._cluster = cluster
        self._drained: set[str] = set()
        self._rebalance: str | None = None

    def check(self) -> None:
        """Check once for a notice. Raises OSError if AWS does not answer, RayError or RuntimeError
        if Ray does not answer or refuses."""
        rebalance = self._metadata.get(_REBALANCE)
        if rebalance is not None and rebalance != self._rebalance:
            _LOGGER.info(
                "AWS sees a raised risk that it takes this machine back; nothing is drained yet"
            )
        self._rebalance = rebalance
        text = self._metadata.get(_INTERRUPTION)
        if text is None:
            return
        notice = parse_notice(text)
        # A restarted raylet is a new node.
        for node in self._cluster.list_nodes():
            if node not in self._drained:
                self._cluster.drain(node, notice)
                self._drained.add(node)
                seconds = notice.deadline - time.time()
                _LOGGER.info(
                    f"AWS will {notice.action} this machine in {seconds:.0f} s; node {node} drains"
                )


def watch_notices(machine: Machine) -> None:
    """Check every two seconds, for ever. Ray's token is in the unit's environment variables."""
    assert machine.head_address is not None
    address = InstanceMetadata().get("local-ipv4")
    if address is None:
        raise UserError("the instance metadata service has no local-ipv4")
    watch = Watch(InstanceMetadata(), RayCluster(machine.head_address, address))
    while True:
        try:
            watch.check()
        except (OSError, RuntimeError, RayError) as error:
            _LOGGER.info(f"the check for a notice failed and is repeated: {error}")
        time.sleep(_POLL_SECONDS)


class RayCluster:
    """The cluster at `head`. Drains as `ray drain-node` does, but that command takes seconds to
    start, too long after a short notice."""

    def __init__(self, head: str, address: str) -> None:
        self._head = head
        self._address = address

    @cached_property
    def _client(self) -> GcsClient:
        # Ray 2.60 does not resolve every name that the machine resolves.
        return GcsClient(address=f"{socket.gethostbyname(self._head)}:{GCS_PORT}")

    def list_nodes(self) -> list[str]:
        """The hexadecimal ids of the live nodes with this machine's address."""
        nodes = self._client.get_all_node_info(
            timeout=_CALL_SECONDS, state_filter=GcsNodeInfo.GcsNodeState.ALIVE
        )
        return [
            node.hex() for node, info in nodes.items() if info.node_manager_address == self._address
        ]

    def drain(self, node: str, notice: Notice) -> None:
        """Drain `node` until the deadline of `notice`. Raises RuntimeError if Ray refuses."""
        accepted, why = self._client.drain_node(
            node,
            DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"),
            f"AWS announced to {notice.action} the spot instance",
            round(notice.deadline * 1000),
            timeout=_CALL_SECONDS,
        )
        if not accepted:
            raise RuntimeError(f"Ray refused to drain node {node}: {why}")
