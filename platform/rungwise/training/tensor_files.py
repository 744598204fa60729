"""Named tensors in files, as safetensors."""

import errno
import os
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from rungwise.core.storage.folder import Folder

MODEL = "model.safetensors"


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
