"""Run a machine's Ray node: `ray start`, configured from its description and EC2's metadata."""

import logging
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from rungwise.cluster.description import Machine
from rungwise.cluster.ray_start import GCS_PORT, ROOT_VARIABLE, Node, environment, start_command
from rungwise.core.errors import UserError
from rungwise_aws.instance import InstanceMetadata
from rungwise_aws.prometheus import dashboard_variables
from rungwise_aws.scratch import scratch_folder
from rungwise_aws.token import TOKEN_FILE

_LOGGER = logging.getLogger(__name__)

# In RUNTIME_DIRECTORY, which systemd creates for the unit (RuntimeDirectory=).
_AUTOSCALING_FILE = "autoscaling.yaml"
_JOIN_SECONDS = 30 * 60  # to boot, install gigabytes of wheels, and start
_POLL_SECONDS = 2.0
_POLLS_A_MESSAGE = 30


@dataclass(frozen=True)
class Identity:
    instance_id: str
    address: str
    zone: str


def read_identity(metadata: InstanceMetadata) -> Identity:
    """Ask the metadata service. Raises UserError if it does not answer or an entry is missing."""
    entries = []
    for path in ("instance-id", "local-ipv4", "placement/availability-zone"):
        try:
            value = metadata.get(path)
        except OSError as error:
            raise UserError(f"the instance metadata service does not answer: {error}") from error
        if value is None:
            raise UserError(f"the instance metadata service has no {path}")
        entries.append(value)
    return Identity(*entries)


def describe_node(
    machine: Machine, identity: Identity, scratch: Path, head: str | None, autoscaling: Path | None
) -> Node:
    """This machine's Ray node; `head` is the address to join, `autoscaling` the head's file."""
    return Node(
        address=identity.address,
        temp_dir=scratch / "ray",
        head=head,
        resources=machine.resources,
        labels=machine.labels,
        autoscaling_config=autoscaling,
    )


def ray_variables(machine: Machine, identity: Identity) -> dict[str, str]:
    """The environment variables by which Ray's autoscaler knows the machine, and those for jobs."""
    variables = {
        "RAY_CLOUD_INSTANCE_ID": identity.instance_id,
        "RAY_NODE_TYPE_NAME": machine.group,  # also the label ray.io/node-group
        "RAY_NODE_MARKET_TYPE": "spot" if machine.spot else "on-demand",
        "RAY_NODE_REGION": machine.region,
        "RAY_NODE_ZONE": identity.zone,
        "AWS_DEFAULT_REGION": machine.region,
    }
    if machine.role == "head":
        variables["RAY_enable_autoscaler_v2"] = "1"
        # A machine that has not joined by then never will; Ray's default keeps it for an hour.
        variables["RAY_AUTOSCALER_RECONCILE_ALLOCATE_STATUS_TIMEOUT_S"] = str(_JOIN_SECONDS)
    if machine.tracking_uri is not None:
        variables["MLFLOW_TRACKING_URI"] = machine.tracking_uri
    if machine.artifact_uri is not None:
        variables[ROOT_VARIABLE] = machine.artifact_uri
    return variables


def become_node(machine: Machine) -> None:
    """Replace this process with `ray start --block`."""
    identity = read_identity(InstanceMetadata())
    head, autoscaling_config = None, None
    if machine.role == "head":
        from rungwise_aws import autoscaling

        autoscaling_config = Path(os.environ["RUNTIME_DIRECTORY"]) / _AUTOSCALING_FILE
        autoscaling.write_config(machine, identity.instance_id, autoscaling_config)
    else:
        assert machine.head_address is not None
        head = f"{_await_head(machine.head_address)}:{GCS_PORT}"
    node = describe_node(machine, identity, scratch_folder(), head, autoscaling_config)
    command = start_command(node)
    variables = ray_variables(machine, identity)
    if machine.role == "head":
        variables |= dashboard_variables()
    os.execve(command[0], command, environment(TOKEN_FILE, **machine.environment, **variables))


def _await_head(head: str) -> str:
    """Wait until the head, which may start later or be replaced, accepts connections. Returns its
    IP address, since Ray 2.60 does not resolve every name that the machine does."""
    polls = 0
    while True:
        try:
            with socket.create_connection((head, GCS_PORT), timeout=_POLL_SECONDS) as connection:
                return connection.getpeername()[0]
        except OSError as error:
            if polls % _POLLS_A_MESSAGE == 0:
                _LOGGER.info(f"waiting for the head at {head}:{GCS_PORT} ({error})")
        polls += 1
        time.sleep(_POLL_SECONDS)
