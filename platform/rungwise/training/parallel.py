"""The workers of one training run: who this one is, and sums over all of them.

One `Group` serves a single process, DDP with gloo on CPUs and with nccl on GPUs; whoever starts the
workers (trainer.py on Ray, torchrun, a test) has set `torch.distributed` up, or has not for one.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Group:
    """This worker's place among the workers, and its device."""

    rank: int
    world_size: int
    device: torch.device

    @classmethod
    def current(cls, device: torch.device) -> Group:
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size(), device)
        return cls(0, 1, device)

    @property
    def leads(self) -> bool:
        """True on the one worker that writes and reports."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """`tensor` summed over the workers, in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def from_leader(self, value: int) -> int:
        """The leader's `value`, on every worker."""
        if self.world_size == 1:
            return value
        tensor = torch.tensor([value], dtype=torch.int64, device=self.device)
        dist.broadcast(tensor, src=0)
        return int(tensor.item())

    def wrap(self, model: nn.Module) -> nn.Module:
        """`model` with gradients exchanged in backward. DDP takes their mean over the workers."""
        if self.world_size == 1:
            return model
        return DistributedDataParallel(
            model,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
        )

    def exchange(self, model: nn.Module, last: bool) -> contextlib.AbstractContextManager[None]:
        """Gradients are exchanged once a step, in the backward of the last micro-batch."""
        if isinstance(model, DistributedDataParallel) and not last:
            return model.no_sync()
        return contextlib.nullcontext()
