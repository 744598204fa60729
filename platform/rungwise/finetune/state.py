"""The state of a fine-tuning that can be saved after an epoch, with its best epoch so far.

A state is safetensors with the names of a pretraining checkpoint: `model/NAME`,
`optimizer/PARAMETER/KEY`, and `epoch`, the number done; with `best_epoch` also the best weights.
It has no generator state: the order depends on seed and epoch, dropout on seed and step. It has no
learning rate: whoever resumes may bring another.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import safetensors.torch
import torch
from torch import Tensor, nn

from rungwise.core.errors import UserError
from rungwise.finetune.model import TaskModel
from rungwise.training.state import RunState

_EPOCH = "epoch"
_PREFIX, _SCORES = "kept/", "kept_scores"


@dataclass(frozen=True)
class Best:
    """The best epoch so far, counted from 1: its score and loss on validation, its weights."""

    epoch: int
    score: float
    loss: float
    weights: Mapping[str, Tensor]

    @classmethod
    def better(
        cls, best: Self | None, epoch: int, score: float, loss: float, model: nn.Module
    ) -> Self:
        """Return the better of `best` and `model`: higher score, then lower loss, then earlier."""
        if best is not None and (best.score, -best.loss) >= (score, -loss):
            return best
        return cls(epoch, score, loss, {n: t.clone() for n, t in model.state_dict().items()})

    @property
    def metrics(self) -> dict[str, float]:
        """The numbers as metrics of an epoch."""
        return {
            f"{_PREFIX}epoch": self.epoch,
            f"{_PREFIX}score": self.score,
            f"{_PREFIX}loss": self.loss,
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return everything under names that no weights have; `from_tensors` reads it."""
        numbers = torch.tensor([self.epoch, self.score, self.loss], dtype=torch.float64)
        return {_SCORES: numbers} | {f"{_PREFIX}{n}": t for n, t in self.weights.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self | None:
        """Read what `tensors` wrote; None if it is absent."""
        if _SCORES not in tensors:
            return None
        epoch, score, loss = tensors[_SCORES].tolist()
        weights = {n.removeprefix(_PREFIX): t for n, t in tensors.items() if n.startswith(_PREFIX)}
        return cls(int(epoch), score, loss, weights)


def save_state(
    model: TaskModel, optimizer: torch.optim.Optimizer, epoch: int, best: Best | None = None
) -> bytes:
    """Return everything needed to resume after `epoch` epochs."""
    tensors = RunState(model, (optimizer,)).tensors() | {_EPOCH: torch.tensor(epoch)}
    tensors |= {} if best is None else best.tensors()
    return safetensors.torch.save({name: t.detach().clone() for name, t in tensors.items()})


@torch.no_grad()
def load_state(
    model: TaskModel, optimizer: torch.optim.Optimizer, state: bytes
) -> tuple[int, Best | None]:
    """Load `state`. Returns the number of epochs done, and the best epoch if there is one.

    Raises UserError for the state of another model.
    """
    tensors = safetensors.torch.load(state)
    parameters = dict(model.named_parameters())
    for name, tensor in model.state_dict().items():
        saved = tensors.get(f"model/{name}")
        if saved is None or saved.shape != tensor.shape:
            raise UserError(
                f"the saved state is of another model: expected {name} with the shape "
                f"{list(tensor.shape)}, found {None if saved is None else list(saved.shape)}; what "
                "goes on from a state must keep finetune.top, finetune.adaptation and the encoder"
            )
        tensor.copy_(saved)
    for key, value in tensors.items():
        kind, _, rest = key.partition("/")
        if kind == "optimizer":
            name, _, moment = rest.rpartition("/")
            parameter = parameters[name]
            optimizer.state[parameter][moment] = value.to(parameter.device)
    return int(tensors[_EPOCH]), Best.from_tensors(tensors)
