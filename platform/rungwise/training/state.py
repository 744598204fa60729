"""The tensors of a run by name, whole or in rows, as checkpoints write and read them.

    model/NAME                 parameters and buffers
    optimizer/PARAMETER/KEY    moments and counters, by the names of their parameters
    average/PARAMETER          the average of a parameter
    lanes/state                the states of streams, a row for each

A sharded tensor is cut along its first dimension. Readers ask for the rows they hold, so a
checkpoint fits any number of workers. A state belongs to a stream of text, not to a worker.

B streams of the run, L streams of this worker, S the model's `state_shape`
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import torch
from torch import Tensor, nn

from rungwise.instances.batch import Batch, CausalBatch

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


STREAMS = "lanes/state"


@dataclass(frozen=True)
class TensorPiece:
    """Rows of one tensor on this worker; `shape` is that of the whole tensor."""

    local: Tensor
    start: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class RunState:
    """Everything that the steps of a run change, besides its progress."""

    model: nn.Module
    optimizers: Sequence[torch.optim.Optimizer]
    average: Mapping[str, Tensor] = field(default_factory=dict)  # by name, if there is one
    streams: StreamStates | None = None  # if the model carries a state

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor but the states of streams, as it is stored; sharded ones are DTensors."""
        tensors = {f"model/{name}": tensor for name, tensor in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for optimizer in self.optimizers:
                for key, value in optimizer.state.get(parameter, {}).items():
                    tensors[f"optimizer/{name}/{key}"] = torch.as_tensor(value)
        return {**tensors, **self.average}

    def pieces(self, rank: int, world_size: int) -> dict[str, TensorPiece]:
        """This worker's part of a checkpoint; together the workers write everything once."""
        tensors = self.tensors()
        whole = [tensor for tensor in tensors.values() if not is_sharded(tensor)]
        total = sum(tensor.numel() for tensor in whole) or 1
        before = 0
        pieces: dict[str, TensorPiece] = {}
        for name, tensor in tensors.items():
            if is_sharded(tensor):
                local, start = local_rows(tensor)
                if local.numel():
                    pieces[name] = TensorPiece(local, start, tuple(tensor.shape))
                continue
            # Every worker has it: each writes about the same number of elements.
            if before * world_size // total == rank:
                pieces[name] = TensorPiece(tensor.detach(), 0, tuple(tensor.shape))
            before += tensor.numel()
        if self.streams is not None:
            pieces[STREAMS] = self.streams.piece()
        return pieces

    @torch.no_grad()
    def restore(self, saved: SavedTensors) -> None:
        """Load what was saved, of each tensor the rows of this worker."""
        weights = {f"model/{name}": tensor for name, tensor in self.model.state_dict().items()}
        for name, tensor in {**weights, **self.average}.items():
            local_rows(tensor)[0].copy_(saved.read_like(tensor, name))
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        moments: defaultdict[str, list[str]] = defaultdict(list)
        for key in saved.tensors:
            owner, _, moment = key.rpartition("/")
            moments[owner].append(moment)
        for optimizer in self.optimizers:
            for parameter in [each for group in optimizer.param_groups for each in group["params"]]:
                owner = f"optimizer/{names[id(parameter)]}"
                for moment in moments[owner]:
                    value = _load_moment(parameter, f"{owner}/{moment}", saved)
                    optimizer.state[parameter][moment] = value
        if self.streams is not None:
            self.streams.restore(saved)


class SavedTensors:
    """Reads rows of the tensors in the files of one checkpoint. `tensors` is from its record:
    {name: {"shape": [...], "pieces": [[file, start, rows], ...]}}. `local_path` returns a local
    path; it is called only for files whose rows are read."""

    def __init__(self, local_path: Callable[[str], Path], tensors: dict[str, Any]) -> None:
        self._local_path = local_path
        self.tensors = tensors
        self.paths: dict[str, Path] = {}  # of the files that were read
        self._open: dict[str, Any] = {}

    def read_like(self, tensor: Tensor, name: str) -> Tensor:
        """Return the rows of `tensor`, called `name`, that this worker has."""
        local, start = local_rows(tensor)
        return self.read(name, start, start + len(local) if local.ndim else None)

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
        if not pieces:  # more workers than rows: this one has none
            file, _, _ = saved["pieces"][0]
            return self._file(file).get_slice(name)[0:0]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _file(self, name: str) -> Any:
        import safetensors  # which a bare machine with PyTorch lacks

        if name not in self._open:
            self.paths[name] = self._local_path(name)
            self._open[name] = safetensors.safe_open(self.paths[name], framework="pt")
        return self._open[name]


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether other workers have other rows of `tensor`. Importing DTensor would take a second."""
    return hasattr(tensor, "device_mesh")


def local_rows(tensor: Tensor) -> tuple[Tensor, int]:
    """This worker's rows of `tensor`, and the index of the first."""
    if not is_sharded(tensor):
        return tensor.detach(), 0
    mesh = tensor.device_mesh
    rows = -(-tensor.shape[0] // mesh.size())
    start = min(mesh.get_local_rank() * rows, tensor.shape[0])
    return tensor.to_local().detach(), start


def _load_moment(parameter: Tensor, key: str, saved: SavedTensors) -> Tensor:
    """An optimizer tensor, sharded like its parameter."""
    if not is_sharded(parameter) or not saved.tensors[key]["shape"]:
        # The step counter stays on the parameter's device, as in fused AdamW.
        return saved.read(key).to(parameter.device)
    return shard_like(parameter, saved.read_like(parameter, key).to(parameter.to_local().device))


def shard_like(parameter: DTensor, rows: Tensor) -> DTensor:
    """The tensor of which `rows` are those of this worker, cut as `parameter` is."""
    from torch.distributed.tensor import DTensor  # a second to import, and most runs do not need it

    mesh, placements, stride = parameter.device_mesh, parameter.placements, parameter.stride()
    return DTensor.from_local(rows, mesh, placements, shape=parameter.shape, stride=stride)


class StreamStates:
    """The states of this worker's streams, initially zero."""

    def __init__(self, shape: tuple[int, ...], streams: range, total: int, device: torch.device):
        """`shape` is that of a state; `streams` are this worker's, of `total`."""
        self._streams = streams
        self._total = total
        self._now_LS = torch.zeros(len(streams), *shape, device=device)
        self._next_LS = torch.zeros_like(self._now_LS)

    def enter(self, batch: Batch[Tensor]) -> Batch[Tensor]:
        """Add to `batch` the states of its rows: zeros where a stream restarts."""
        rows, streams_B, continues_B = _in_streams(batch)
        return replace(rows, state=_where(continues_B, self._now_LS[streams_B]))

    def leave(self, batch: Batch[Tensor], state_BS: Tensor | None) -> None:
        """Store the states that the model returned for `batch`."""
        assert state_BS is not None
        rows, streams_B, _ = _in_streams(batch)
        # Text that ends within a block passes on no state.
        full_B = rows.weights[:, -1] > 0
        self._next_LS[streams_B] = _where(full_B, state_BS.detach().to(self._next_LS.dtype))

    def settle(self, good: Tensor) -> None:
        """End a step: the next begins with the new states, or with the old if not `good`, ()."""
        self._now_LS = torch.where(good, self._next_LS, self._now_LS)

    def piece(self) -> TensorPiece:
        """The rows that this worker writes into a checkpoint."""
        shape = (self._total, *self._now_LS.shape[1:])
        return TensorPiece(self._now_LS, self._streams.start, shape)

    def restore(self, saved: SavedTensors) -> None:
        """Take this worker's streams from a checkpoint of any number of workers."""
        self._now_LS.copy_(saved.read(STREAMS, self._streams.start, self._streams.stop))


def _in_streams(batch: Batch[Tensor]) -> tuple[CausalBatch[Tensor], Tensor, Tensor]:
    """The batch as blocks that stateful models read, each row's stream, whether it goes on."""
    rows: CausalBatch[Tensor] = cast(Any, batch)
    assert rows.streams is not None
    assert rows.continues is not None
    return rows, rows.streams, rows.continues


def _where(keep_B: Tensor, state_BS: Tensor) -> Tensor:
    """Zeros where not `keep_B`, even if their states are not finite."""
    keep = keep_B.view(-1, *[1] * (state_BS.ndim - 1))  # (B,) -> (B, 1, ...)
    return torch.where(keep, state_BS, torch.zeros_like(state_BS))
