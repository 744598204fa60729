"""Keep the weights of the epoch that is best on the validation split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

_PREFIX, _SCORES = "kept/", "kept_scores"


@dataclass(frozen=True)
class Kept:
    """An epoch, counted from 1, its score and loss on validation, and its weights."""

    epoch: int
    score: float
    loss: float
    weights: Mapping[str, Tensor]

    @classmethod
    def better(
        cls, kept: Self | None, epoch: int, score: float, loss: float, model: nn.Module
    ) -> Self:
        """Return the better of `kept` and `model`: higher score, then lower loss, then earlier."""
        if kept is not None and (kept.score, -kept.loss) >= (score, -loss):
            return kept
        return cls(epoch, score, loss, {n: t.clone() for n, t in model.state_dict().items()})

    def told(self) -> dict[str, float]:
        """Return the numbers as metrics of an epoch."""
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
