"""The description of a cluster machine, /etc/rungwise/machine.json.

infra/terraform writes the file into a machine's user data, so it holds no secrets: it gives their
ARNs, and a machine fetches them with the rights of its own role.

The nodes that a run may count on: those alive, and those that the autoscaler may add.

Only the head knows the latter (machine.json). A job's driver runs there and passes them in an
environment variable to its tasks, which may run anywhere.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from rungwise.core.configuration.config import Config
from rungwise.core.configuration.yaml_file import load

MACHINE_FILE = Path("/etc/rungwise/machine.json")


class WorkerGroup(Config):
    """Machines of one kind, and the autoscaling group that holds them."""

    autoscaling_group: str
    minimum: int = Field(default=0, ge=0)
    maximum: int = Field(ge=1)
    resources: dict[str, float]  # that a machine offers Ray: CPU, GPU, and names of your own
    labels: dict[str, str] = Field(default_factory=dict)
    price_per_hour: float | None = Field(default=None, ge=0)  # of one machine, in US dollars


class Scaling(Config):
    """The worker groups that Ray's autoscaler may start, in the head's description only."""

    groups: dict[str, WorkerGroup]
    idle_timeout_minutes: float = Field(default=10.0, gt=0)


class Database(Config):
    """PostgreSQL for MLflow. The secret holds JSON with the keys `username` and `password`."""

    host: str
    port: int = 5432
    name: str = "mlflow"
    secret: str  # the ARN in Secrets Manager


class Machine(Config):
    """One machine: the head, a worker of a group, or the host of the MLflow server."""

    role: Literal["head", "worker", "tracking"]
    cluster: str
    region: str
    head_address: str | None = None  # the head's name or address; the port is ray_start.GCS_PORT
    group: str = "head"  # Ray's node type
    resources: dict[str, float] = Field(default_factory=dict)  # {} is what Ray finds by itself
    labels: dict[str, str] = Field(default_factory=dict)
    spot: bool = False
    headless_minutes: float = Field(default=30.0, gt=0)  # a worker without a head ends after these
    token_secret: str | None = None  # the ARN in Secrets Manager; the head fills it at first boot
    scaling: Scaling | None = None
    price_per_hour: float | None = Field(default=None, ge=0)  # of this machine, in US dollars
    tracking_uri: str | None = None
    artifact_uri: str | None = None  # where a relative `root` of a recipe lies, and MLflow's files
    database: Database | None = None
    allowed_hosts: list[str] = Field(default_factory=list)  # names the MLflow server answers to
    environment: dict[str, str] = Field(default_factory=dict)  # of every service of ours

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needed = {
            "head": ("token_secret", "scaling"),
            "worker": ("token_secret", "head_address"),
            "tracking": ("database", "artifact_uri"),
        }[self.role]
        if missing := [name for name in needed if getattr(self, name) is None]:
            raise ValueError(f"a machine of role {self.role} needs {', '.join(missing)}")
        return self


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
