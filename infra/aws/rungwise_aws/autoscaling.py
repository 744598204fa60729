"""Write the config of Ray's autoscaler on the head: machine.json's groups as Ray's node types.

Ray rereads the file in every round (autoscaler/v2/instance_manager/config.py), so it is replaced
atomically. Ray constructs AutoScalingGroups from the provider block.
"""

from pathlib import Path
from typing import Any

import yaml

from rungwise.cluster.description import Machine, Scaling
from rungwise.core.errors import ConfigError
from rungwise.core.storage.folder import Folder

PROVIDER = "rungwise_aws.autoscaling_groups.AutoScalingGroups"
# Keys that Ray requires but uses only for machines that it reaches by SSH.
_COMMANDS = ("setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
_UNUSED: dict[str, Any] = {
    "auth": {},
    "file_mounts": {},
    "cluster_synced_files": [],
    "initialization_commands": [],
    **{f"{name}_commands": [] for name in _COMMANDS},
}


def write_config(machine: Machine, head_instance_id: str, path: Path) -> None:
    """Write the file for `ray start --head --autoscaling-config` atomically. `machine` is the
    head's description; `head_instance_id` is its RAY_CLOUD_INSTANCE_ID. Raises ConfigError for
    resources that are not whole numbers and for a group named like the head's."""
    assert machine.role == "head"
    assert machine.scaling is not None
    text = yaml.safe_dump(_config(machine, machine.scaling, head_instance_id), sort_keys=False)
    Folder.at(path.parent).write_bytes(path.name, text.encode())


def _config(machine: Machine, scaling: Scaling, head_instance_id: str) -> dict[str, Any]:
    if machine.group in scaling.groups:
        raise ConfigError(
            f"scaling.groups: {machine.group!r} is the name of the head's own group; "
            "give the worker group another"
        )
    most = sum(group.maximum for group in scaling.groups.values())
    types = {machine.group: _node_type("", machine.resources, machine.labels, 0, 0)}
    for name, group in scaling.groups.items():
        key = f"scaling.groups.{name}."
        types[name] = _node_type(key, group.resources, group.labels, group.minimum, group.maximum)
    return {
        "cluster_name": machine.cluster,
        "max_workers": most,
        # Ray requests at most this many times the running machines of a type at once. A gang needs
        # all its machines at once; the groups' maxima are the real limit.
        "upscaling_speed": most,
        "idle_timeout_minutes": scaling.idle_timeout_minutes,
        "head_node_type": machine.group,
        "available_node_types": types,
        "provider": {
            "type": "external",
            "module": PROVIDER,
            "region": machine.region,
            "head": {"instance_id": head_instance_id, "group": machine.group},
            "groups": {
                name: {"autoscaling_group": group.autoscaling_group, "maximum": group.maximum}
                for name, group in scaling.groups.items()
            },
            # Machines start Ray themselves, and Terraform configures them.
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        **_UNUSED,
    }


def _node_type(
    key: str, resources: dict[str, float], labels: dict[str, str], minimum: int, maximum: int
) -> dict[str, Any]:
    for name, amount in resources.items():
        if amount < 0 or not float(amount).is_integer():
            raise ConfigError(
                f"{key}resources.{name}: Ray's autoscaler takes whole numbers, found {amount:g}"
            )
    return {
        "resources": {name: int(amount) for name, amount in resources.items()},
        "labels": dict(labels),
        "min_workers": minimum,
        "max_workers": maximum,
        "node_config": {},
    }
