"""Queries about devices, in one place so that tests without a GPU can replace them."""

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# glibc's malloc.h: sizes from which a block is mapped separately, from which free memory is
# returned, and by which memory grows at least.
_MMAP_THRESHOLD, _TRIM_THRESHOLD, _TOP_PAD = -3, -1, -2
_DRAWS = {"normal_", "uniform_"}


def list_devices() -> list[torch.device]:
    """Return the GPUs visible to this process, or the CPU."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.device("cuda", number) for number in range(gpus)] or [torch.device("cpu")]


def seed_generators(number: int, devices: Sequence[torch.device]) -> None:
    """Seed PyTorch; further GPUs get other seeds, so that parts of a batch differ in dropout."""
    torch.manual_seed(number)
    for place, device in enumerate(devices[1:], start=1):
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(number + place)


def is_gpu(tensor: Tensor) -> bool:
    """Whether GPU kernels can be used for `tensor`."""
    return tensor.is_cuda


def _find_libc_function(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def keep_freed_memory() -> None:
    """Let the process keep freed CPU memory for later tensors. glibc returns large blocks to the
    system at once, and every step then waits for zeroed pages."""
    if (mallopt := _find_libc_function("mallopt")) is not None:
        mallopt(_MMAP_THRESHOLD, 1 << 30)
        mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
        # Any thread but the first, such as those in which Ray trains, allocates from pieces of 64
        # MiB. It keeps an empty piece only if the one before has less room than this.
        mallopt(_TOP_PAD, 1 << 28)


def use_threads(cpus: float) -> None:
    """Compute with as many threads as there are whole CPUs, or OMP_NUM_THREADS. PyTorch itself
    reads that variable when it is imported, in a process that Ray keeps for an earlier task."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or max(1, int(cpus))))


def return_freed_memory() -> None:
    """Return memory that `keep_freed_memory` kept, at the end of a task."""
    gc.collect()
    if (trim := _find_libc_function("malloc_trim")) is not None:
        trim(0)


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether `device` has instructions for matrix products in bfloat16."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # Without them oneDNN emulates the products, several times slower than float32.
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


class _DrawsNothing(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if getattr(func, "__name__", "") in _DRAWS:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def shapes_only() -> Iterator[None]:
    """Make modules on the meta device without drawing: PyTorch would import its compiler."""
    with torch.device("meta"), _DrawsNothing():
        yield
