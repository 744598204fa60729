"""One model on several devices: its weights are on the first, copies of them on the others.

    weights on cuda:0 ──┬────────────────────> part 0 of a batch ──> loss 0 ──┐
                        └──> copy on cuda:1 ──> part 1 of a batch ──> loss 1 ──┴──> backward

Autograd records the copying, so the gradients of all copies add up in the weights on the first
device, and the optimizer sees only these.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rungwise.finetune.model import TaskModel
from rungwise.models.device import own_devices


def model_devices(model: TaskModel) -> list[torch.device]:
    """Return the devices of this process if `model` is on the first of them, else its own."""
    devices = own_devices()
    return devices if devices[0] == model.device else [model.device]


class Copies:
    """The current weights of `model`, copied to a device at its first call."""

    def __init__(self, model: TaskModel) -> None:
        self._model = model
        self._weights: dict[torch.device, dict[str, Tensor]] = {}

    def call(self, device: torch.device, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call `function(model, *arguments)` with weights on `device`, where the arguments are."""
        model = self._model
        if device == model.device:
            return function(model, *arguments)
        if device not in self._weights:
            own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            self._weights[device] = {f"model.{n}": t.to(device) for n, t in own.items()}
        return functional_call(_Called(model), self._weights[device], (function, *arguments))


class _Called(nn.Module):
    """A module that runs any function of a model as its forward pass, for `functional_call`."""

    def __init__(self, model: TaskModel) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(self.model, *arguments)
