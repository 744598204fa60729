"""Where tensors are and belong, asked in one place, so that a test without a GPU can answer."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

# Of glibc's malloc.h: from how many bytes on a block is mapped alone, free space given back.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1


def own_devices() -> list[torch.device]:
    """The GPUs that Ray or the user left to this process, or the CPU."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.device("cuda", number) for number in range(gpus)] or [torch.device("cpu")]


def seed_generators(number: int, devices: Sequence[torch.device]) -> None:
    """Seed the generators: PyTorch's, and those of GPUs from the second on differently, so that
    parts of a batch side by side have different dropout."""
    torch.manual_seed(number)
    for place, device in enumerate(devices[1:], start=1):
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(number + place)


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
