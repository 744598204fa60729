"""What learns how fast in which epoch, and the state that can be kept after one.

A state is tensors by name, as a checkpoint of pretraining has them: `model/NAME`,
`optimizer/PARAMETER/KEY`, and `epoch`, how many are done. There is no generator in it: the order
follows from seed and epoch, dropout from seed and step. The learning rate is not in it either, so
that whoever goes on with other settings (population based training) gets those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from rungwise.finetune.config import DiscriminativeUse, FinetuneConfig
from rungwise.finetune.model import TaskModel
from rungwise.training.state import named_state

State = dict[str, Tensor]
_EPOCH = "epoch"


class Keep(Protocol):
    """Where states come from and go to."""

    def load(self) -> Mapping[str, Tensor] | None:
        """The state to go on from, None to begin."""
        ...

    def save(self, epoch: int, take: Callable[[], State]) -> None:
        """Called when so many epochs are done and before `on_epoch`; `take()` copies the state."""
        ...


def learning_rate_shares(model: TaskModel, config: FinetuneConfig) -> dict[str, float]:
    """What each parameter has of `learning_rate`, by name.

    Of L layers, layer l has decay^(L - l), and the embeddings are layer 0.
    """
    decay = config.use.decay if isinstance(config.use, DiscriminativeUse) else 1.0
    of_head = (config.head_learning_rate or config.learning_rate) / config.learning_rate
    levels = model.encoder.depth()
    shares = {
        id(parameter): decay ** (len(levels) - 1 - number)
        for number, level in enumerate(levels)
        for parameter in level
    }
    return {name: shares.get(id(value), of_head) for name, value in model.named_parameters()}


def thaw(model: TaskModel, config: FinetuneConfig, epoch: int) -> None:
    """Let those layers learn whose turn it is in `epoch`, counted from 0, and no others."""
    every = config.use.unfreeze_every_epochs if isinstance(config.use, DiscriminativeUse) else None
    if every is None:
        return
    levels = model.encoder.depth()
    waiting = max(0, len(levels) - epoch // every)
    for number, level in enumerate(levels):
        for parameter in level:
            parameter.requires_grad_(number >= waiting)


def take_state(model: TaskModel, optimizer: torch.optim.Optimizer, epoch: int) -> State:
    """A copy of the state, of which nothing changes any more."""
    state = {
        name: tensor.detach().clone() for name, tensor in named_state(model, (optimizer,)).items()
    }
    state[_EPOCH] = torch.tensor(epoch)
    return state


@torch.no_grad()
def put_state(
    model: TaskModel, optimizer: torch.optim.Optimizer, state: Mapping[str, Tensor]
) -> int:
    """Go on from `state`: how many epochs are done."""
    for name, tensor in model.state_dict().items():
        tensor.copy_(state[f"model/{name}"])
    parameters = dict(model.named_parameters())
    for key, value in state.items():
        kind, _, rest = key.partition("/")
        if kind == "optimizer":
            name, _, moment = rest.rpartition("/")
            optimizer.state[parameters[name]][moment] = value.clone()
    return int(state[_EPOCH])
