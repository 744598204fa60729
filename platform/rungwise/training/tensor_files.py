"""Named tensors in files, as safetensors."""

import errno
import json
import math
import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors
import safetensors.torch
from torch import Tensor

from rungwise.core.storage.folder import Folder
from rungwise.models.fitting import Shapes, Weights

MODEL = "model.safetensors"
_KINDS = {"f": "F", "i": "I", "u": "U"}


def save_tensors(folder: Folder, name: str, tensors: dict[str, Tensor]) -> None:
    """Write named tensors as safetensors; tensors that share memory are each written in full."""
    plain = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
    with folder.staged(name) as path:
        write_file(plain, path)


def load_tensors(folder: Folder, name: str) -> dict[str, Tensor]:
    return safetensors.torch.load_file(folder.local(name))


def write_file(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors to a file. Raises OSError if the disk is full."""
    try:
        safetensors.torch.save_file(tensors, path)
    except safetensors.SafetensorError as error:
        # The operating system's error number is only in the text.
        if f"os error {errno.ENOSPC}" in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise


def create_arrays(path: Path, shapes: Shapes) -> Weights:
    """Create a file of arrays, mapped into memory. Raises OSError if the disk is full."""
    header: dict[str, Any] = {}
    end = 0
    for name, (kind, shape) in shapes.items():
        dtype = np.dtype(kind)
        start, end = end, end + dtype.itemsize * math.prod(shape)
        code = f"{_KINDS[dtype.kind]}{8 * dtype.itemsize}"
        header[name] = {"dtype": code, "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.flush()
        os.posix_fallocate(file.fileno(), 0, file.tell() + end)
    return map_arrays(path, "r+")


def map_arrays(path: Path, mode: Literal["c", "r+"] = "c") -> Weights:
    """Map a file's arrays into memory, at once; with `r+` changes go to the file."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    data = np.asarray(np.memmap(path, np.uint8, mode, 8 + size))
    arrays: Weights = {}
    for name, row in header.items():
        start, end = row["data_offsets"]
        kind, bits = row["dtype"][0].lower(), row["dtype"][1:]
        arrays[name] = data[start:end].view(f"{kind}{int(bits) // 8}").reshape(row["shape"])
    return arrays
