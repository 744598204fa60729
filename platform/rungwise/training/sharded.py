"""The rows of a tensor that this worker holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether other workers hold other rows of `tensor`. Importing DTensor would take a second."""
    return hasattr(tensor, "device_mesh")


def local_rows(tensor: Tensor) -> tuple[Tensor, int]:
    """This worker's rows of `tensor`, and the index of the first."""
    if not is_sharded(tensor):
        return tensor.detach(), 0
    mesh = tensor.device_mesh
    (dimension,) = (n for n, placed in enumerate(tensor.placements) if placed.is_shard())
    rows = -(-tensor.shape[0] // mesh.size(dimension))
    start = min(mesh.get_local_rank(dimension) * rows, tensor.shape[0])
    return tensor.to_local().detach(), start
