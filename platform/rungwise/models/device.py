"""Where tensors are and belong, asked in one place, so that a test without a GPU can answer."""

from __future__ import annotations

import torch
from torch import Tensor


def own_device() -> torch.device:
    """The GPU of this process, the first where Ray or the user left several, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def is_gpu(tensor: Tensor) -> bool:
    """Whether the kernels of a GPU can be taken for `tensor`."""
    return tensor.is_cuda
