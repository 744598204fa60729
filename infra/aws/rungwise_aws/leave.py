"""End a worker whose head has been gone for long, to stop paying for an idle machine.

Ray's autoscaler, which ends idle machines, runs on the head. Ending the machine also lowers the
group's capacity, otherwise the group would replace it.
https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_TerminateInstanceInAutoScalingGroup.html
"""

import logging
import socket
import time
from typing import Any

import botocore.session
from botocore.exceptions import BotoCoreError, ClientError

from rungwise.cluster.description import Machine
from rungwise.cluster.ray_start import GCS_PORT
from rungwise_aws.instance import InstanceMetadata

_LOGGER = logging.getLogger(__name__)
_CONNECT_SECONDS = 5.0


def leave_without_head(
    machine: Machine, port: int = GCS_PORT, poll_seconds: float = 30.0, groups: Any = None
) -> None:
    """Ask AWS to end this machine after the head has been unreachable for `headless_minutes`. When
    this returns, even if AWS refused, the unit powers the machine off. `groups` is a botocore
    client of autoscaling groups."""
    assert machine.head_address is not None
    last_answer = time.monotonic()
    while time.monotonic() - last_answer < machine.headless_minutes * 60:
        time.sleep(poll_seconds)
        try:
            socket.create_connection((machine.head_address, port), _CONNECT_SECONDS).close()
            last_answer = time.monotonic()
        except OSError as error:
            silence = time.monotonic() - last_answer
            _LOGGER.info(f"the head has not answered for {silence:.0f} s: {error}")
    _LOGGER.info(f"no head for {machine.headless_minutes:g} minutes: this machine ends")
    groups = groups or botocore.session.get_session().create_client(
        "autoscaling", region_name=machine.region
    )
    try:
        groups.terminate_instance_in_auto_scaling_group(
            InstanceId=InstanceMetadata().get("instance-id"), ShouldDecrementDesiredCapacity=True
        )
    except (OSError, BotoCoreError, ClientError) as error:
        _LOGGER.info(f"its group may start another one: {error}")
