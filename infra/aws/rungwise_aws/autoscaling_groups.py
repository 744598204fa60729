"""Ray's node provider for AWS: the autoscaler decides, this sets autoscaling groups' capacity.

Ray 2.60's autoscaler v2 uses a v1 node provider through NodeProviderAdapter
(ray/autoscaler/v2/instance_manager/node_provider.py). From several threads it calls: a listing in
each round, a launch of a number of machines of a type, and the end of machines by id. AWS starts
the machines; docs/explanations/scaling.md says why, and which rights the head needs.

Ray requests machines, whereas AWS takes a capacity. Each request adds an order. Each machine that
appears in a group is subtracted from the group's oldest order, because Ray matches machines to
requests only by type. A group's target is its live machines plus its orders, at most the smaller of
our maximum and the group's current MaxSize. So:

- Batches of one request and concurrent launches add up: a lock is held from reading a group to
  setting its capacity.
- Ray repeats a request that AWS did not fill after its timeout
  (RAY_AUTOSCALER_RECONCILE_REQUEST_STATUS_TIMEOUT_S, 600 s). A launch replaces the group's orders
  that are older than nine tenths of it, so repetitions add nothing. An order that nothing replaced
  ends a tenth after the timeout.
- Capacity above the target for a tenth is lowered, so that no machine starts for nothing; the tenth
  is longer than AWS's readings lag. It is never lowered below the number of live machines, because
  AWS would choose which one to end.
- What does not fit waits as an order, and is refused only when Ray asks again. Refused at once, Ray
  2.60 would ask for the same type again in every round, all night, and keep a record of each failed
  launch for the head's lifetime (nothing calls InstanceStorage.batch_delete_instances).

An error of AWS is raised after botocore's own retries. In a listing it makes the autoscaler skip
the round (Autoscaler.update_autoscaling_state logs it and returns None). In a launch or an end the
adapter turns it into a LaunchNodeError or TerminateNodeError, and Ray tries again.
"""

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from rungwise.ray_private import (
    NODE_KIND_HEAD,
    NODE_KIND_WORKER,
    TAG_RAY_LAUNCH_REQUEST,
    TAG_RAY_NODE_KIND,
    TAG_RAY_USER_NODE_TYPE,
    InstanceReconcileConfig,
    NodeProvider,
)

logger = logging.getLogger(__name__)

REQUEST_SECONDS = InstanceReconcileConfig().request_status_timeout_s
_TENTH = REQUEST_SECONDS / 10
_PAGE = 100  # groups per call, AWS's limit
_RETRIES = {"mode": "standard", "total_max_attempts": 5}


@dataclass(frozen=True)
class _Group:
    """An autoscaling group as AWS reports it; `machines` are the live ones, True if in service."""

    name: str
    minimum: int
    maximum: int
    desired: int
    machines: Mapping[str, bool]


@dataclass(eq=False)
class _Order:
    """Machines that Ray has requested and that have not appeared yet."""

    group: str
    count: int
    since: float


class AutoScalingGroups(NodeProvider):
    """Ray's node provider for the autoscaling groups in the config of autoscaling.py.
    Thread-safe. Node ids are EC2 instance ids, node types are worker groups."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self._head_id: str = provider_config["head"]["instance_id"]
        self._head_group: str = provider_config["head"]["group"]
        self._configs: dict[str, dict[str, Any]] = provider_config["groups"]
        self._client = botocore.session.get_session().create_client(
            "autoscaling",
            region_name=provider_config["region"],
            config=Config(retries=_RETRIES, connect_timeout=5, read_timeout=20),
        )
        self._lock = threading.Lock()
        self._orders: list[_Order] = []
        self._spare_since: dict[str, float] = {}  # groups with more capacity than their target
        # These grow for the head's lifetime, but ids are never reused, few and short.
        self._seen: set[str] = set()
        self._ended: set[str] = set()
        self._unfit: dict[str, float] = {}  # requests that did not fit: id -> first attempt
        self._listed: dict[str, tuple[str, bool]] = {}  # id: (group, in service)

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        """The ids of the live machines and the head; also brings the groups to their targets."""
        with self._lock:
            groups = self._read()
            for name, group in groups.items():
                self._settle(name, group)
            self._listed = {
                machine: (name, in_service)
                for name, group in groups.items()
                for machine, in_service in group.machines.items()
            } | {self._head_id: (self._head_group, True)}
            return [
                machine
                for machine in self._listed
                if tag_filters.items() <= self.node_tags(machine).items()
            ]

    def is_running(self, node_id: str) -> bool:
        """Whether the machine was in service at the last listing."""
        return self._listed[node_id][1]

    def node_tags(self, node_id: str) -> dict[str, str]:
        """Ray's tags: head or worker, and the group. AWS does not know the request."""
        kind = NODE_KIND_HEAD if node_id == self._head_id else NODE_KIND_WORKER
        return {TAG_RAY_NODE_KIND: kind, TAG_RAY_USER_NODE_TYPE: self._listed[node_id][0]}

    def create_node_with_resources_and_labels(
        self,
        node_config: dict[str, Any],
        tags: dict[str, str],
        count: int,
        resources: dict[str, float],
        labels: dict[str, str],
    ) -> None:
        """Order `count` machines of the group in `tags`; they appear in a later listing. Raises
        botocore's errors, after dropping the order, and RuntimeError if a repeated request still
        does not fit below the maximum."""
        name, request = tags[TAG_RAY_USER_NODE_TYPE], tags[TAG_RAY_LAUNCH_REQUEST]
        start = _now()  # before the lock and AWS take time, since Ray's timeout runs already
        with self._lock:
            group = self._read()[name]
            self._orders = [
                order
                for order in self._orders
                if order.group != name or start - order.since <= 9 * _TENTH
            ]
            excess = len(group.machines) + self._count_orders(name) + count - group.maximum
            if excess > 0:
                fault = (
                    f"{excess} of {count} machines do not fit: group {name} ({group.name}) may "
                    f"have {group.maximum}, of which {len(group.machines)} are there"
                )
                if start - self._unfit.setdefault(request, start) > 5 * _TENTH:
                    raise RuntimeError(fault)  # a repetition, not a batch of the first attempt
                logger.warning("%s; they wait", fault)
            order = _Order(name, count, start)
            self._orders.append(order)
            try:
                self._raise(name, group)
            except (ClientError, BotoCoreError):
                self._orders.remove(order)
                raise

    def terminate_nodes(self, node_ids: list[str]) -> None:
        """End each machine and lower its group's capacity; does nothing for one that has ended.

        At the group's minimum AWS refuses to lower the capacity. The machine is then ended anyway
        and the group replaces it, since Ray ends only machines without work and dead nodes. Raises
        RuntimeError naming those that could not be ended, after trying all.
        """
        faults = []
        with self._lock:
            groups = self._read()
            for machine in node_ids:
                try:
                    self._end(machine, groups)
                except (ClientError, BotoCoreError, RuntimeError) as error:
                    faults.append(f"{machine}: {error}")
        if faults:
            raise RuntimeError("; ".join(faults))

    def _end(self, machine: str, groups: Mapping[str, _Group]) -> None:
        if machine == self._head_id:
            raise RuntimeError("the head is in no autoscaling group; Terraform ends it")
        if _find_group(machine, groups) is None:
            return
        try:
            self._terminate(machine, lower=True)
        except ClientError:
            group = _find_group(machine, self._read())
            if group is None:  # it ended in the meantime
                return
            if group.desired > group.minimum:
                raise
            self._terminate(machine, lower=False)
        self._ended.add(machine)

    def _terminate(self, machine: str, lower: bool) -> None:
        self._client.terminate_instance_in_auto_scaling_group(
            InstanceId=machine, ShouldDecrementDesiredCapacity=lower
        )

    def _read(self) -> dict[str, _Group]:
        """Read all groups from AWS and subtract newly seen machines from the wants."""
        pages = self._client.get_paginator("describe_auto_scaling_groups").paginate(
            AutoScalingGroupNames=[
                config["autoscaling_group"] for config in self._configs.values()
            ],
            PaginationConfig={"PageSize": _PAGE},
        )
        records = {
            group["AutoScalingGroupName"]: group
            for page in pages
            for group in page["AutoScalingGroups"]
        }
        groups = {}
        for name, config in self._configs.items():
            record = records.get(config["autoscaling_group"])
            if record is None:
                raise RuntimeError(
                    f"AWS knows no autoscaling group {config['autoscaling_group']} (group {name})"
                )
            groups[name] = self._parse_group(record, config["maximum"])
            new = groups[name].machines.keys() - self._seen
            self._seen |= new
            self._fill_orders(name, len(new))
        return groups

    def _parse_group(self, record: dict[str, Any], maximum: int) -> _Group:
        # AWS may briefly list a machine as live after agreeing to end it.
        machines = {
            machine["InstanceId"]: machine["LifecycleState"] == "InService"
            for machine in record["Instances"]
            if machine["LifecycleState"].startswith(("Pending", "InService"))
            and machine["InstanceId"] not in self._ended
        }
        return _Group(
            name=record["AutoScalingGroupName"],
            minimum=record["MinSize"],
            maximum=min(maximum, record["MaxSize"]),
            desired=record["DesiredCapacity"],
            machines=machines,
        )

    def _fill_orders(self, name: str, arrived: int) -> None:
        for order in self._orders:
            if order.group == name:
                count = min(arrived, order.count)
                order.count -= count
                arrived -= count
        self._orders = [order for order in self._orders if order.count]

    def _count_orders(self, name: str) -> int:
        now = _now()
        self._orders = [order for order in self._orders if now - order.since < 11 * _TENTH]
        return sum(order.count for order in self._orders if order.group == name)

    def _raise(self, name: str, group: _Group) -> None:
        orders = self._count_orders(name)
        target = min(len(group.machines) + orders, group.maximum)
        if orders and target > group.desired:
            self._set(group, target)

    def _lower(self, name: str, group: _Group) -> None:
        """Lower capacity that has been spare for long enough."""
        target = max(group.minimum, len(group.machines) + self._count_orders(name))
        if target >= group.desired:
            self._spare_since.pop(name, None)
        elif _now() - self._spare_since.setdefault(name, _now()) >= _TENTH:
            self._set(group, target)

    def _settle(self, name: str, group: _Group) -> None:
        """Raise capacity to what the maximum now allows, or lower spare capacity."""
        try:
            self._raise(name, group)
            self._lower(name, group)
        except (ClientError, BotoCoreError) as error:  # the next round tries again
            logger.warning("the capacity of %s could not be set: %s", group.name, error)

    def _set(self, group: _Group, capacity: int) -> None:
        logger.info("capacity of %s: %d, was %d", group.name, capacity, group.desired)
        self._client.set_desired_capacity(
            AutoScalingGroupName=group.name, DesiredCapacity=capacity, HonorCooldown=False
        )


def _find_group(machine: str, groups: Mapping[str, _Group]) -> _Group | None:
    return next((group for group in groups.values() if machine in group.machines), None)


def _now() -> float:
    return time.monotonic()
