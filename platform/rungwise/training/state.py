"""The tensors of a run by name, whole or in rows, as checkpoints write and read them.

    model/NAME                 parameters and buffers
    optimizer/PARAMETER/KEY    moments and counters, by the names of their parameters
    lanes/state                the state carried from step to step, one row per lane (lanes.py)

A sharded tensor is cut along its first dimension, so each part is a range of rows of a named
tensor. Readers ask for the rows they hold, whichever workers wrote them; so a checkpoint fits any
number of workers, sharded or not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
import torch
from torch import Tensor, nn

from rungwise.training.sharded import is_sharded, local_rows

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

    from rungwise.training.optimizer import Optimizers


@dataclass(frozen=True)
class Piece:
    """Rows of one tensor that this worker writes; `shape` is that of the whole tensor."""

    local: Tensor
    start: int
    shape: tuple[int, ...]


def named_state(model: nn.Module, optimizers: Optimizers) -> dict[str, Tensor]:
    """Every tensor of a run, as it is held; sharded ones are DTensors."""
    state = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for optimizer in optimizers:
            for key, value in optimizer.state.get(parameter, {}).items():
                state[f"optimizer/{name}/{key}"] = torch.as_tensor(value)
    return state


def pieces_to_write(
    state: dict[str, Tensor], rank: int, world_size: int
) -> Iterator[tuple[str, Piece]]:
    """This worker's part of `state`; together the workers write everything once."""
    whole = [tensor for tensor in state.values() if not is_sharded(tensor)]
    total = sum(tensor.numel() for tensor in whole) or 1
    before = 0
    for name, tensor in state.items():
        if is_sharded(tensor):
            local, start = local_rows(tensor)
            if _writes(tensor) and local.numel():
                yield name, Piece(local, start, tuple(tensor.shape))
            continue
        # Every worker holds it: each writes about the same number of elements.
        if before * world_size // total == rank:
            yield name, Piece(tensor.detach(), 0, tuple(tensor.shape))
        before += tensor.numel()


def _writes(tensor: DTensor) -> bool:
    """True on the first of the workers that hold the same rows."""
    mesh = tensor.device_mesh
    copies = [n for n, placed in enumerate(tensor.placements) if not placed.is_shard()]
    return all(mesh.get_local_rank(n) == 0 for n in copies)


class SavedTensors:
    """Reads rows of the tensors in the files of one checkpoint.

    `tensors` is from its record: {name: {"shape": [...], "pieces": [[file, start, rows], ...]}}.
    `path_of` returns a local path; it is called only for files whose rows are read.
    """

    def __init__(self, path_of: Callable[[str], Path], tensors: dict[str, Any]) -> None:
        self._path_of = path_of
        self.tensors = tensors
        self._paths: dict[str, Path] = {}
        self._open: dict[str, Any] = {}

    def opened(self) -> list[Path]:
        """The files that were read."""
        return list(self._paths.values())

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Rows [start, stop) of a tensor; the whole tensor by default."""
        saved = self.tensors[name]
        if not saved["shape"]:
            return self._file(saved["pieces"][0][0]).get_tensor(name)
        stop = saved["shape"][0] if stop is None else stop
        pieces = [
            self._file(file).get_slice(name)[max(start - first, 0) : stop - first]
            for file, first, rows in sorted(saved["pieces"], key=lambda piece: piece[1])
            if first < stop and start < first + rows
        ]
        if not pieces:  # more workers than rows: this one holds none
            file, _, _ = saved["pieces"][0]
            return self._file(file).get_slice(name)[0:0]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _file(self, name: str) -> Any:
        if name not in self._open:
            self._paths[name] = self._path_of(name)
            self._open[name] = safetensors.safe_open(self._paths[name], framework="pt")
        return self._open[name]


@torch.no_grad()
def restore(model: nn.Module, optimizers: Optimizers, saved: SavedTensors) -> None:
    """Load what was saved into `model` and `optimizers`, of each tensor the rows held here."""
    for name, tensor in model.state_dict().items():
        local, start = local_rows(tensor)
        stop = start + len(local) if local.ndim else None
        local.copy_(saved.read(f"model/{name}", start, stop))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    kept: defaultdict[str, list[str]] = defaultdict(list)
    for key in saved.tensors:
        owner, _, moment = key.rpartition("/")
        kept[owner].append(moment)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                owner = f"optimizer/{names[id(parameter)]}"
                for moment in kept[owner]:
                    value = _like(parameter, f"{owner}/{moment}", saved)
                    optimizer.state[parameter][moment] = value


def _like(parameter: Tensor, key: str, saved: SavedTensors) -> Tensor:
    """An optimizer tensor, sharded like its parameter."""
    if not is_sharded(parameter) or not saved.tensors[key]["shape"]:
        # The step counter stays on the parameter's device, as in fused AdamW.
        return saved.read(key).to(parameter.device)
    from torch.distributed.tensor import DTensor

    local, start = local_rows(parameter)
    return DTensor.from_local(
        saved.read(key, start, start + len(local)).to(local.device),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
