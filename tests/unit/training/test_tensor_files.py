"""Arrays in files: others' readers and writers agree, and a file that is mapped stays as it is."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rungwise.training import tensor_files

ARRAYS = {
    "floats": np.arange(6, dtype=np.float64).reshape(2, 3) / 7,
    "whole": np.array([[-1], [1 << 40]]),
    "half": np.array([0.5, -2], np.float16),
    "ids": np.array([1, 65535, 3], np.uint16),
    "none": np.empty((0, 4), np.float32),
    "bytes": np.array([255, 0, 7], np.uint8),
}


def test_files_are_those_of_safetensors(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    shapes = {name: (array.dtype, array.shape) for name, array in ARRAYS.items()}
    created = tensor_files.create_arrays(ours, shapes)
    for name, array in ARRAYS.items():
        created[name][...] = array
    save_file(ARRAYS, theirs, {"made": "elsewhere"})
    for arrays in (load_file(ours), tensor_files.map_arrays(ours), tensor_files.map_arrays(theirs)):
        assert arrays.keys() == ARRAYS.keys()
        for name, array in ARRAYS.items():
            assert arrays[name].dtype == array.dtype
            assert arrays[name].tolist() == array.tolist()


def test_a_full_disk_is_said_before_anything_is_written() -> None:
    with pytest.raises(OSError, match="No space left"):
        tensor_files.create_arrays(Path("/dev/full"), {"a": (np.float64, (3,))})
