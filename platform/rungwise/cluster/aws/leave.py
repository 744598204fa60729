"""End a worker whose head has been gone for long, so that nobody pays for a machine without work.

Ray's autoscaler, which ends idle machines, is on the head. The capacity of the group goes down with
the machine, or the group would start another one in its place.
https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_TerminateInstanceInAutoScalingGroup.html
"""

from __future__ import annotations

import logging
import socket
import time
from typing import Any

import botocore.session
from botocore.exceptions import BotoCoreError, ClientError

from rungwise.cluster.aws.instance import InstanceMetadata
from rungwise.cluster.description import Machine
from rungwise.cluster.ray_start import GCS_PORT

_LOGGER = logging.getLogger(__name__)
_CONNECT_SECONDS = 5.0


def leave_without_head(
    machine: Machine, port: int = GCS_PORT, poll_seconds: float = 30.0, groups: Any = None
) -> None:
    """Return when the head has been unreachable for `machine.headless_minutes` without a break, and
    AWS was asked to end this machine; the unit then powers it off, whatever AWS said.

    `groups` is botocore's client of autoscaling groups.
    """
    assert machine.head_address is not None
    seen = time.monotonic()
    while time.monotonic() - seen < machine.headless_minutes * 60:
        time.sleep(poll_seconds)
        try:
            socket.create_connection((machine.head_address, port), _CONNECT_SECONDS).close()
            seen = time.monotonic()
        except OSError as error:
            gone = time.monotonic() - seen
            _LOGGER.info(f"the head has not answered for {gone:.0f} s: {error}")
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
