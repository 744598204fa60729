"""Averages of a run's weights, which are often better than its last weights.

    ema    after step t each average is d of itself and 1 - d of the weights, d = min(decay,
           (1 + t) / (10 + t)), so that the initial draw is forgotten (Polyak & Juditsky 1992)
    last   the mean of the weights after each of the last `steps` steps (Izmailov et al. 2018,
           arXiv:1803.05407, at every step)

Training continues with its own weights. Validation and the final model use the average as soon as
there is one; checkpoints hold both, so a resumed run has the same. The share of a step follows from
its number. A skipped step leaves the weights unchanged, and they count again.
"""

import contextlib
from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from rungwise.core.configuration.config import Config
from rungwise.training.state import local_rows

AVERAGE = "average/"  # before the name of a parameter, in checkpoints


class MovingAverageConfig(Config):
    """An exponential moving average of the weights, from the first step on."""

    kind: Literal["ema"] = "ema"
    # weight of the previous average; less in the first steps
    decay: float = Field(default=0.999, gt=0, lt=1)


class LastAverageConfig(Config):
    """The plain mean of the weights over the last steps."""

    kind: Literal["last"] = "last"
    steps: int = Field(ge=1)  # number of these steps


AverageConfig = Annotated[MovingAverageConfig | LastAverageConfig, Field(discriminator="kind")]


class WeightAverage:
    """The average of the parameters of one model, sharded as they are."""

    def __init__(
        self, model: nn.Module, config: MovingAverageConfig | LastAverageConfig, total_steps: int
    ) -> None:
        self._model = model
        self._config = config
        self._total_steps = total_steps
        copies = {id(each): each.detach().clone() for each in model.parameters()}
        # Both names of a parameter that is used twice, as in the model's state dict.
        names = model.named_parameters(remove_duplicate=False)
        # By their names in checkpoints; sharded ones are DTensors.
        self.tensors = {f"{AVERAGE}{name}": copies[id(each)] for name, each in names}

    def update(self, step: int) -> None:
        """Include the weights after update number `step`, counted from 1."""
        share = self._share(step)
        if share > 0:
            average, weights = self._pairs()
            get_ema_multi_avg_fn(1.0 - share)(average, weights, 0)

    @contextlib.contextmanager
    def swap_averages(self, step: int) -> Iterator[None]:
        """Swap the averages into the model inside the block, if they have begun by `step`."""
        if self._share(step) == 0:
            yield
            return
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _share(self, step: int) -> float:
        """The share of the weights after `step` in the average at that time."""
        match self._config:
            case MovingAverageConfig(decay=decay):
                return 1.0 - min(decay, (1 + step) / (10 + step)) if step > 0 else 0.0
            case LastAverageConfig(steps=steps):
                count = step - (self._total_steps - steps)
                return 1.0 / count if count > 0 else 0.0

    def _pairs(self) -> tuple[list[Tensor], list[Tensor]]:
        """The local rows of the averages, and of the weights in the same order."""
        names = [name for name, _ in self._model.named_parameters()]
        averages = [local_rows(self.tensors[f"{AVERAGE}{name}"])[0] for name in names]
        return averages, [local_rows(each)[0] for each in self._model.parameters()]

    @torch.no_grad()
    def _swap(self) -> None:
        # FSDP2 may still hold whole weights that it gathered before.
        if reshard := getattr(self._model, "reshard", None):
            reshard()
        for average, weights in zip(*self._pairs(), strict=True):
            copy = weights.clone()
            weights.copy_(average)
            average.copy_(copy)
