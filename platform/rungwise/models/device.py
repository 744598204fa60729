"""Where tensors are and belong, asked in one place, so that a test without a GPU can answer."""

from __future__ import annotations

import ctypes
import sys

import torch
from torch import Tensor

# Of glibc's malloc.h: from how many bytes on a block is mapped alone, free space given back.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1


def own_device() -> torch.device:
    """The GPU of this process, the first where Ray or the user left several, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def is_gpu(tensor: Tensor) -> bool:
    """Whether the kernels of a GPU can be taken for `tensor`."""
    return tensor.is_cuda


def keep_freed_memory() -> None:
    """Let this process keep the memory that tensors on a CPU free, for the next ones.

    glibc gives large blocks back at once, and every step then waits for the system to clear new
    pages. Nothing happens where the C library is another.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 1 << 30)
        mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether `device` takes matrix products in bfloat16 by instructions of its own."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # Without these instructions oneDNN emulates the products, several times slower than float32.
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
