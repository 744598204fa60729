"""Whether what a job asks for fits on the machines there are, or that the autoscaler may add.

A worker lies on one machine, so what counts is how many workers each machine has room for, not the
sums. The tasks of stages ask for a tenth of a CPU, which Ray lends back while they wait, and Train
and Tune themselves for none; neither is counted. What other jobs use now is free again later.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rungwise.cluster.description import Scaling
from rungwise.core.context import ComputeConfig
from rungwise.core.errors import UserError

_GROUP_LABEL = "ray.io/node-group"
_TRAINING = ("pretrain",)
_TRIALS = ("sweep", "evaluate")


@dataclass(frozen=True)
class Demand:
    """`wanted` pieces of `each` at once; fewer than `fewest` and the job would wait for ever."""

    what: str  # a worker of the training
    wanted: int
    fewest: int
    each: Mapping[str, float]  # {"CPU": 1.0, "GPU": 8.0}
    count_keys: str  # of the recipe
    size_keys: str


@dataclass(frozen=True)
class Machines:
    """Machines that are alike: `there` now, and `more` that may come."""

    group: str
    resources: Mapping[str, float]
    there: int
    more: int = 0
    price_per_hour: float | None = None  # of one, in US dollars


@dataclass(frozen=True)
class Room:
    """How many pieces of a demand fit now, and how many once everything that may come is there."""

    now: int
    at_most: int


def demands(compute: ComputeConfig, stages: Collection[str]) -> list[Demand]:
    """What the stages of these names ask for."""
    found = []
    if any(name in _TRAINING for name in stages):
        found.append(
            Demand(
                "a worker of the training",
                compute.num_workers,
                compute.min_workers or compute.num_workers,
                _of(compute.cpus_per_worker, compute.gpus_per_worker),
                "compute.num_workers",
                "compute.cpus_per_worker or compute.gpus_per_worker",
            )
        )
    if any(name in _TRIALS for name in stages):
        found.append(
            Demand(
                "a trial",
                compute.max_concurrent_trials if "sweep" in stages else 1,
                1,
                _of(compute.cpus_per_trial, compute.gpus_per_trial),
                "compute.max_concurrent_trials",
                "compute.cpus_per_trial or compute.gpus_per_trial",
            )
        )
    # Everything else runs in tasks of one CPU, as many as there is room for.
    return found or [Demand("a task", 1, 1, {"CPU": 1.0}, "", "")]


def machines(nodes: Sequence[Mapping[str, Any]], scaling: Scaling | None) -> list[Machines]:
    """Of the rows of /api/v0/nodes, and of the groups that the autoscaler may start."""
    alive = [node for node in nodes if node["state"] == "ALIVE"]
    labels = [(node.get("labels") or {}).get(_GROUP_LABEL, "") for node in alive]
    groups = scaling.groups if scaling is not None else {}
    found = [
        Machines(
            label or "the cluster",
            node["resources_total"],
            1,
            price_per_hour=groups[label].price_per_hour if label in groups else None,
        )
        for node, label in zip(alive, labels, strict=True)
    ]
    for name, group in groups.items():
        more = max(0, group.maximum - labels.count(name))
        found.append(Machines(name, group.resources, 0, more, group.price_per_hour))
    return found


def room(demand: Demand, there: Sequence[Machines]) -> Room:
    """How many of `demand` the machines hold, each on one machine."""
    now = sum(each.there * _fit(each, demand) for each in there)
    return Room(now, now + sum(each.more * _fit(each, demand) for each in there))


def check(demand: Demand, there: Sequence[Machines]) -> Room:
    """The room for `demand`. UserError if the fewest it can do with will never fit."""
    found = room(demand, there)
    if found.at_most >= demand.fewest:
        return found
    if found.at_most == 0:
        raise UserError(
            f"{demand.what} asks for {shown(demand.each)} on one machine, and no machine has or "
            f"will have so many: {_kinds(there)}"
            + (f"; lower {demand.size_keys}" if demand.size_keys else "")
            + ", or add larger machines"
        )
    in_all = {name: value * demand.fewest for name, value in demand.each.items()}
    grown = sum(each.more for each in there)
    later = (
        f"room for {found.at_most} once all that may come ({grown}) are there"
        if grown
        else "no machine may be added"
    )
    raise UserError(
        f"the job asks for {demand.fewest} times {shown(demand.each)} ({shown(in_all)} in all); "
        f"there is room for {found.now}, and {later} ({_kinds(there)}); "
        f"lower {demand.count_keys} to {found.at_most}, or "
        + ("raise the maximum of a group" if grown else "add machines")
    )


def prices(demand: Demand, there: Sequence[Machines]) -> list[tuple[str, int, float]]:
    """(group, machines, US dollars an hour) for every group that could hold `demand` by itself."""
    found = []
    for name in dict.fromkeys(each.group for each in there):
        group = [each for each in there if each.group == name]
        fit = max((_fit(each, demand) for each in group), default=0)
        price = next((each.price_per_hour for each in group if each.price_per_hour), None)
        if fit and price is not None:
            count = math.ceil(demand.wanted / fit)
            if count <= sum(each.there + each.more for each in group):
                found.append((name, count, count * price))
    return found


def shown(resources: Mapping[str, float]) -> str:
    """`8 GPUs and 4 CPUs`."""
    order = ["GPU", "CPU", *sorted(set(resources) - {"GPU", "CPU"})]
    parts = [_count(resources[name], name) for name in order if resources.get(name)]
    return " and ".join(parts) or "0 CPUs"


def total(there: Sequence[Machines]) -> str:
    """What is there now, as a person reads it."""
    count = sum(each.there for each in there)
    sums = {
        name: sum(each.there * each.resources.get(name, 0.0) for each in there)
        for name in ("GPU", "CPU")
    }
    return f"{count} {'machine' if count == 1 else 'machines'}: {shown(sums)}"


def _of(cpus: float, gpus: float) -> dict[str, float]:
    return {"CPU": cpus, "GPU": gpus} if gpus else {"CPU": cpus}


def _fit(machine: Machines, demand: Demand) -> int:
    # The small addition is for fractions: 0.3 fits three times into 0.9.
    return int(
        min(machine.resources.get(name, 0.0) / value for name, value in demand.each.items()) + 1e-9
    )


def _kinds(there: Sequence[Machines]) -> str:
    rows = {}
    for each in there:
        if each.there or each.more:
            usable = {name: each.resources.get(name, 0.0) for name in ("GPU", "CPU")}
            now, more = rows.get((each.group, shown(usable)), (0, 0))
            rows[each.group, shown(usable)] = (now + each.there, more + each.more)
    return (
        "; ".join(
            f"{group} has {now} of {usable}" + (f", {more} more may come" if more else "")
            for (group, usable), (now, more) in rows.items()
        )
        or "it has no machine"
    )


def _count(value: float, name: str) -> str:
    plural = "" if value == 1 else "s"
    return f"{value:g} {name}{plural if name in ('CPU', 'GPU') else ''}"
