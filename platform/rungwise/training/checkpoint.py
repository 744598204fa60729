"""Checkpoints: everything a run needs to go on, as data and not as code.

    checkpoints/step-000000400/
        model.safetensors
        optimizer.safetensors      AdamW's moments, by the names of their parameters
        checkpoint.json            written last: step, tokens, history, identity, the others' sha256

Without `checkpoint.json` there is no checkpoint, so a save that was killed costs the previous one
nothing. Digests are checked before anything is loaded; a damaged checkpoint is passed over for the
one before it. The position in the data is the step (instances/order.py), the learning rate follows
from it, and dropout is seeded by it (loop.py), so no generator has a state to keep.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, field
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from rungwise.errors import DataError
from rungwise.storage import Folder

logger = logging.getLogger(__name__)

RECORD = "checkpoint.json"
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"


@dataclass
class Progress:
    """Where a run is: what the loop carries from step to step besides tensors."""

    step: int = 0  # updates done; the next one reads positions from step x global batch size
    tokens: int = 0  # real tokens read
    history: list[dict[str, float]] = field(default_factory=list)  # a row a logged step
    validation: list[dict[str, float]] = field(default_factory=list)
    pending: list[list[float]] = field(default_factory=list)  # loss sums since the last logged step
    # How long it took is no part of where a run is: two runs with the same state have other times.
    timings: list[dict[str, float]] = field(default_factory=list, compare=False)


class Checkpoints:
    """The checkpoints of one run, in one folder. `identity` says which run they belong to."""

    def __init__(self, folder: Folder, identity: str, keep: int) -> None:
        self._folder = folder
        self._identity = identity
        self._keep = keep

    def steps(self) -> list[int]:
        """Steps of the finished checkpoints, ascending."""
        return [
            int(name.removeprefix("step-"))
            for name in self._folder.subfolders()
            if name.startswith("step-") and (self._folder / name).exists(RECORD)
        ]

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
        """Write the checkpoint of this step, then drop the oldest beyond `keep`."""
        folder = self._at(progress.step)
        folder.remove()
        save_tensors(folder, MODEL, model.state_dict())
        save_tensors(folder, OPTIMIZER, _moments(model, optimizer))
        record = {
            "identity": self._identity,
            "sha256": {name: folder.sha256(name) for name in (MODEL, OPTIMIZER)},
            "progress": asdict(progress),
        }
        folder.write_bytes(RECORD, json.dumps(record).encode())
        for step in self.steps()[: -self._keep]:
            # The record goes first: a half-deleted checkpoint must not look like one.
            self._at(step).remove(RECORD)
            self._at(step).remove()

    def refuse_foreign(self) -> None:
        """Raise DataError if the folder holds a checkpoint of another configuration."""
        for step in self.steps():
            folder = self._at(step)
            found = json.loads(folder.read_bytes(RECORD))["identity"]
            if found != self._identity:
                raise DataError(
                    f"{folder.uri} is a checkpoint of another configuration: expected "
                    f"{self._identity}, found {found}; remove it, or go back to the config it was "
                    "made with"
                )

    def newest_sound(self) -> int | None:
        """The step of the newest checkpoint whose files are what was written, or None."""
        for step in reversed(self.steps()):
            folder = self._at(step)
            record = json.loads(folder.read_bytes(RECORD))
            if all(folder.sha256(name) == digest for name, digest in record["sha256"].items()):
                return step
            logger.warning("%s is damaged, using the checkpoint before it", folder.uri)
        return None

    def load(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
        """Put the state of that step into `model` and `optimizer`."""
        folder = self._at(step)
        model.load_state_dict(load_tensors(folder, MODEL))
        _set_moments(model, optimizer, load_tensors(folder, OPTIMIZER))
        return Progress(**json.loads(folder.read_bytes(RECORD))["progress"])

    def _at(self, step: int) -> Folder:
        return self._folder / f"step-{step:09d}"


def save_tensors(folder: Folder, name: str, tensors: dict[str, Tensor]) -> None:
    """Write named tensors as safetensors. Tensors that share memory are written once each."""
    plain = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
    with folder.staged(name) as path:
        safetensors.torch.save_file(plain, path)


def load_tensors(folder: Folder, name: str) -> dict[str, Tensor]:
    """Read what `save_tensors` wrote."""
    return safetensors.torch.load_file(folder.local(name))


def _moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": torch.as_tensor(value)
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _set_moments(
    model: nn.Module, optimizer: torch.optim.Optimizer, saved: dict[str, Tensor]
) -> None:
    parameters = dict(model.named_parameters())
    for key, tensor in saved.items():
        name, _, moment = key.rpartition("/")
        parameter = parameters[name]
        # The step counter stays where fused AdamW keeps it: beside the parameter.
        optimizer.state[parameter][moment] = tensor.to(parameter.device)


def as_data(progress: Progress) -> dict[str, Any]:
    """A progress as plain data; `Progress(**data)` is the way back."""
    return asdict(progress)


def summary_of(progress: Progress) -> dict[str, Any]:
    """The part of a progress that belongs into a record."""
    return {
        "steps": progress.step,
        "tokens": progress.tokens,
        "history": progress.history,
        "validation": progress.validation,
        "timings": progress.timings,
    }
