"""Divide this machine's cores and GPUs among the nodes of a local cluster."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """CPUs and GPUs of one node. `devices` is None on a machine without GPUs."""

    cpus: int
    devices: tuple[str, ...] | None = None

    @property
    def resources(self) -> dict[str, float]:
        """The resources of the node, for `ray start`."""
        gpus = {} if self.devices is None else {"GPU": float(len(self.devices))}
        return {"CPU": float(self.cpus), **gpus}

    @property
    def environment(self) -> dict[str, str]:
        """The variable that keeps a node from counting, and giving away, another node's GPUs."""
        return {} if self.devices is None else {"CUDA_VISIBLE_DEVICES": ",".join(self.devices)}


def divide(nodes: int, cores: int, devices: list[str], cpus: int | None = None) -> list[Share]:
    """A share for each node: `cpus`, or the cores divided, at least one each; every GPU once."""
    return [
        Share(
            cpus or max(1, cores // nodes + (number < cores % nodes)),
            tuple(devices[number::nodes]) if devices else None,
        )
        for number in range(nodes)
    ]


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def devices() -> list[str]:
    """The GPUs that this process sees, named as in CUDA_VISIBLE_DEVICES."""
    import torch

    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[:count] if visible else [str(index) for index in range(count)]
