"""The nodes that a run may count on: those alive, and those that the autoscaler may add.

Only the head knows the latter (machine.json). A job's driver runs there and passes them in an
environment variable to its tasks, which may run anywhere.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from rungwise.cluster.description import MACHINE_FILE, Machine
from rungwise.core.configuration.yaml_file import load

# Replaces /etc/rungwise/machine.json in tests.
MACHINE_VARIABLE = "RUNGWISE_MACHINE"
_GROUPS_VARIABLE = "RUNGWISE_GROUPS"
_GROUP_LABEL = "ray.io/node-group"  # Ray sets it from RAY_NODE_TYPE_NAME


def scaling_variables() -> dict[str, str]:
    """The variables that a driver passes to its tasks; none if no machine can be added."""
    file = Path(os.environ.get(MACHINE_VARIABLE, MACHINE_FILE))
    if not file.is_file():
        return {}
    scaling = load(Machine, file).scaling
    if scaling is None:
        return {}
    groups = {
        name: {"maximum": group.maximum, "resources": group.resources}
        for name, group in scaling.groups.items()
    }
    return {_GROUPS_VARIABLE: json.dumps(groups)}


def list_nodes() -> list[dict[str, float]]:
    """The resources of each node, alive or still to come. Call in a task of a run."""
    import ray

    groups: dict[str, Any] = json.loads(os.environ.get(_GROUPS_VARIABLE, "{}"))
    alive = [node for node in ray.nodes() if node["Alive"]]
    counts = Counter(node["Labels"].get(_GROUP_LABEL) for node in alive)
    future = [
        group["resources"]
        for name, group in groups.items()
        for _ in range(group["maximum"] - counts[name])
    ]
    return [node["Resources"] for node in alive] + future
