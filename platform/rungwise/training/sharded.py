"""Which rows of a tensor this worker holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether other workers hold other rows of it. Importing the class takes a second."""
    return hasattr(tensor, "device_mesh")


def local_rows(tensor: Tensor) -> tuple[Tensor, int]:
    """The rows of `tensor` that are here, and the number of the first."""
    if not is_sharded(tensor):
        return tensor.detach(), 0
    mesh = tensor.device_mesh
    (dimension,) = (n for n, placed in enumerate(tensor.placements) if placed.is_shard())
    rows = -(-tensor.shape[0] // mesh.size(dimension))
    start = min(mesh.get_local_rank(dimension) * rows, tensor.shape[0])
    return tensor.to_local().detach(), start
