"""One model on several devices: its weights lie on the first, and copies of them on the others.

    weights on cuda:0 ──┬────────────────────> part 0 of a batch ──> loss 0 ──┐
                        └──> copy on cuda:1 ──> part 1 of a batch ──> loss 1 ──┴──> backward

Copying is an operation that autograd records, so gradients of all copies add up in the weights
themselves and the optimizer knows of one device alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rungwise.finetune.model import TaskModel
from rungwise.models.device import own_devices


def devices_of(model: TaskModel) -> list[torch.device]:
    """Where `model` works: on the devices of this process if it lies on the first of them."""
    devices = own_devices()
    return devices if devices[0] == model.device else [model.device]


class Copies:
    """The weights of `model` as they are now; a device has its copy from its first call on."""

    def __init__(self, model: TaskModel) -> None:
        self._model = model
        self._weights: dict[torch.device, dict[str, Tensor]] = {}

    def call(self, device: torch.device, function: Callable[..., Any], *arguments: Any) -> Any:
        """`function(model, *arguments)` with weights on `device`, where the arguments are too."""
        model = self._model
        if device == model.device:
            return function(model, *arguments)
        if device not in self._weights:
            own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            self._weights[device] = {f"model.{n}": t.to(device) for n, t in own.items()}
        return functional_call(_Called(model), self._weights[device], (function, *arguments))


class _Called(nn.Module):
    """A module whose forward pass is any function of a model: what `functional_call` takes."""

    def __init__(self, model: TaskModel) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(self.model, *arguments)
