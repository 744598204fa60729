"""Check that a job fits on the existing machines, or on those that the autoscaler may add.

A worker runs on one machine, so this counts how many workers fit on each machine; sums do not
matter. It ignores the tasks of stages, which take a tenth of a CPU and lend it back while they
wait, Train and Tune themselves, which take none, and other jobs, which will end. Stages that run
side by side (compute.max_concurrent_stages) need room for each, or wait for one another.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rungwise.cluster.description import Scaling
from rungwise.core.configuration.compute import ComputeConfig
from rungwise.core.errors import UserError
from rungwise.core.plural import counted
from rungwise.core.stages.stage import Stage

_GROUP_LABEL = "ray.io/node-group"


@dataclass(frozen=True)
class Demand:
    """`count` workers with these resources; with fewer than `fewest` the job would never start."""

    what: str  # a worker of the training
    count: int
    fewest: int
    resources: Mapping[str, float]  # {"CPU": 1.0, "GPU": 8.0}
    count_keys: str  # recipe keys to change
    size_keys: str


@dataclass(frozen=True)
class MachineGroup:
    """Machines of one kind: how many are `present`, and how many `more` may be added."""

    group: str
    resources: Mapping[str, float]
    present: int
    more: int = 0
    price_per_hour: float | None = None  # of one machine, in US dollars


@dataclass(frozen=True)
class Room:
    """How many workers of a demand fit now, and how many after all machines are added."""

    now: int
    at_most: int


def count_parallel(stages: Sequence[Stage]) -> dict[str, int]:
    """How many stages of each name may run at once: the most at one depth of the graph."""
    depths: dict[str, int] = {}
    for stage in stages:  # inputs come first
        inputs = [depths[source.fingerprint] for source in stage.inputs.values()]
        depths[stage.fingerprint] = 1 + max(inputs, default=0)
    counts = Counter((stage.name, depths[stage.fingerprint]) for stage in stages)
    return {
        stage.name: max(count for (name, _), count in counts.items() if name == stage.name)
        for stage in stages
    }


def list_demands(compute: ComputeConfig, stages: Mapping[str, int]) -> list[Demand]:
    """The resources that stages need; `stages` says how many of a name can run side by side."""

    def parallel(name: str) -> int:
        return min(compute.max_concurrent_stages, stages.get(name, 0))

    demands = []
    if training := parallel("pretrain"):
        demands.append(
            Demand(
                "a worker of the training",
                training * compute.num_workers,
                compute.min_workers or compute.num_workers,
                _resources(compute.cpus_per_worker, compute.gpus_per_worker),
                "compute.num_workers",
                "compute.cpus_per_worker or compute.gpus_per_worker",
            )
        )
    if trials := parallel("sweep") * compute.max_concurrent_trials or parallel("evaluate"):
        demands.append(
            Demand(
                "a trial",
                trials,
                1,
                _resources(compute.cpus_per_trial, compute.gpus_per_trial),
                "compute.max_concurrent_trials",
                "compute.cpus_per_trial or compute.gpus_per_trial",
            )
        )
    # Everything else runs in tasks of one CPU, as many as fit.
    return demands or [Demand("a task", 1, 1, {"CPU": 1.0}, "", "")]


def list_machines(
    nodes: Sequence[Mapping[str, Any]], scaling: Scaling | None
) -> list[MachineGroup]:
    """The machines in the rows of /api/v0/nodes, and those that the autoscaler may start."""
    alive = [node for node in nodes if node["state"] == "ALIVE"]
    labels = [(node.get("labels") or {}).get(_GROUP_LABEL, "") for node in alive]
    groups = scaling.groups if scaling is not None else {}
    machines = [
        MachineGroup(
            label or "the cluster",
            node["resources_total"],
            1,
            price_per_hour=groups[label].price_per_hour if label in groups else None,
        )
        for node, label in zip(alive, labels, strict=True)
    ]
    for name, group in groups.items():
        more = max(0, group.maximum - labels.count(name))
        machines.append(MachineGroup(name, group.resources, 0, more, group.price_per_hour))
    return machines


def count_room(demand: Demand, machines: Sequence[MachineGroup]) -> Room:
    """How many workers of `demand` fit on the machines, each worker on one machine."""
    now = sum(group.present * _fit(group, demand) for group in machines)
    return Room(now, now + sum(group.more * _fit(group, demand) for group in machines))


def check_room(demand: Demand, machines: Sequence[MachineGroup]) -> Room:
    """The room for `demand`. Raises UserError if its fewest workers will never fit."""
    room = count_room(demand, machines)
    if room.at_most >= demand.fewest:
        return room
    if room.at_most == 0:
        raise UserError(
            f"{demand.what} asks for {in_words(demand.resources)} on one machine, and no machine "
            f"has or will have so many: {_kinds(machines)}"
            + (f"; lower {demand.size_keys}" if demand.size_keys else "")
            + ", or add larger machines"
        )
    sums = {name: value * demand.fewest for name, value in demand.resources.items()}
    more = sum(group.more for group in machines)
    later = (
        f"room for {room.at_most} once all that may come ({more}) are there"
        if more
        else "no machine may be added"
    )
    raise UserError(
        f"the job asks for {demand.fewest} times {in_words(demand.resources)} ({in_words(sums)} in "
        f"all); there is room for {room.now}, and {later} ({_kinds(machines)}); "
        f"lower {demand.count_keys} to {room.at_most}, or "
        + ("raise the maximum of a group" if more else "add machines")
    )


def list_prices(demand: Demand, machines: Sequence[MachineGroup]) -> list[tuple[str, int, float]]:
    """(group, machines, US dollars per hour) for each group that could hold `demand` alone."""
    offers = []
    for name in dict.fromkeys(machine.group for machine in machines):
        group = [machine for machine in machines if machine.group == name]
        fit = max((_fit(machine, demand) for machine in group), default=0)
        price = next((machine.price_per_hour for machine in group if machine.price_per_hour), None)
        if fit and price is not None:
            count = math.ceil(demand.count / fit)
            if count <= sum(machine.present + machine.more for machine in group):
                offers.append((name, count, count * price))
    return offers


def in_words(resources: Mapping[str, float]) -> str:
    """Resources in words, such as `8 GPUs and 4 CPUs`."""
    order = ["GPU", "CPU", *sorted(set(resources) - {"GPU", "CPU"})]
    parts = [
        f"{resources[name]:g} {name}{'s' * (name in ('CPU', 'GPU') and resources[name] != 1)}"
        for name in order
        if resources.get(name)
    ]
    return " and ".join(parts) or "0 CPUs"


def total(machines: Sequence[MachineGroup]) -> str:
    """The number of machines present and their total resources, in words."""
    count = sum(group.present for group in machines)
    sums = {
        name: sum(group.present * group.resources.get(name, 0.0) for group in machines)
        for name in ("GPU", "CPU")
    }
    return f"{counted(count, 'machine')}: {in_words(sums)}"


def _resources(cpus: float, gpus: float) -> dict[str, float]:
    return {"CPU": cpus, "GPU": gpus} if gpus else {"CPU": cpus}


def _fit(machine: MachineGroup, demand: Demand) -> int:
    # The addition absorbs rounding errors: 0.3 fits three times into 0.9.
    return int(
        min(machine.resources.get(name, 0.0) / value for name, value in demand.resources.items())
        + 1e-9
    )


def _kinds(machines: Sequence[MachineGroup]) -> str:
    rows: dict[tuple[str, str], tuple[int, int]] = {}
    for kind in machines:
        if kind.present or kind.more:
            usable = {name: kind.resources.get(name, 0.0) for name in ("GPU", "CPU")}
            key = (kind.group, in_words(usable))
            now, more = rows.get(key, (0, 0))
            rows[key] = (now + kind.present, more + kind.more)
    texts = [
        f"{group} has {now} of {usable}" + (f", {more} more may come" if more else "")
        for (group, usable), (now, more) in rows.items()
    ]
    return "; ".join(texts) or "it has no machine"
