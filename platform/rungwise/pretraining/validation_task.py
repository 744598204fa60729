"""A validation in a Ray task beside training, with the resources of one more worker.

Ray Train's own (`ValidationConfig`) reads checkpoints that were reported to its controller and
returns results through its snapshot, neither of which is used here (gradient.py). So this is a
plain task. Its placement group is made or refused at once: the task never queues for resources that
the run which waits for it may hold.
"""

import contextlib
from typing import Any

import ray
import torch
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rungwise.core.configuration.compute import ComputeConfig
from rungwise.training.parallel import WorkerTask, Work

# What is free on all machines together need not be free on one.
_PLACING_SECONDS = 2.0


class ValidationTask(WorkerTask):
    """A task in a placement group of its own."""

    def __init__(self, result: Any, group: PlacementGroup) -> None:
        self._result, self._group = result, group

    def is_done(self) -> bool:
        return bool(ray.wait([self._result], timeout=0)[0])

    def result(self) -> dict[str, float]:
        try:
            return ray.get(self._result)
        finally:
            self.close()

    def close(self) -> None:
        remove_placement_group(self._group)


def submit(name: str, compute: ComputeConfig, work: Work) -> ValidationTask | None:
    """Start `work` for the run `name`; None if no machine has the resources of a worker free."""
    with contextlib.suppress(ValueError):  # there is none, unless a process of the run was killed
        remove_placement_group(get_placement_group(name))
    worker = {"CPU": compute.cpus_per_worker, "GPU": compute.gpus_per_worker}
    resources = {name: amount for name, amount in worker.items() if amount}
    free = ray.available_resources()
    if any(free.get(each, 0.0) < amount for each, amount in resources.items()):
        return None
    group = placement_group([resources], name=name)
    if not group.wait(_PLACING_SECONDS):
        remove_placement_group(group)
        return None
    remote: Any = ray.remote
    task = remote(lambda work, device: work(device)).options(
        name="validation",
        num_cpus=compute.cpus_per_worker,
        num_gpus=compute.gpus_per_worker,
        max_retries=0,
        scheduling_strategy=PlacementGroupSchedulingStrategy(group),
    )
    device = torch.device("cuda" if compute.gpus_per_worker else "cpu")
    return ValidationTask(task.remote(work, device), group)
