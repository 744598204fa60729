"""Tell Ray that this node goes away in so many seconds: the `preStop` of a spot pod on Kubernetes.

    python -m rungwise.cluster.drain 100

It waits, because Kubernetes ends the pod when `preStop` returns.
"""

import os
import socket
import sys
import time

from rungwise.ray_private import DrainNodeReason, GcsClient, GcsNodeInfo

ADDRESS_VARIABLE = "RAY_ADDRESS"  # of the head; KubeRay sets it
POD_VARIABLE = "POD_IP"
_CALL_SECONDS = 10.0
_POLL_SECONDS = 1.0


def drain(head: str, address: str, seconds: float) -> None:
    """Drain the nodes at `address` and wait for their end. Raises RuntimeError if Ray refuses."""
    # Ray 2.60 does not resolve every name that the machine resolves.
    host, _, port = head.rpartition(":")
    client = GcsClient(address=f"{socket.gethostbyname(host)}:{port}")
    deadline = time.time() + seconds

    def list_nodes() -> list[str]:
        nodes = client.get_all_node_info(
            timeout=_CALL_SECONDS, state_filter=GcsNodeInfo.GcsNodeState.ALIVE
        )
        return [node.hex() for node, row in nodes.items() if row.node_manager_address == address]

    reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    for node in list_nodes():
        accepted, answer = client.drain_node(
            node, reason, "Kubernetes ends the pod", round(deadline * 1000), timeout=_CALL_SECONDS
        )
        if not accepted:
            raise RuntimeError(f"Ray refused to drain node {node}: {answer}")
    while time.time() < deadline and list_nodes():
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    drain(os.environ[ADDRESS_VARIABLE], os.environ[POD_VARIABLE], float(sys.argv[1]))
