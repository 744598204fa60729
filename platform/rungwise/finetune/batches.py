"""Items as tensors, padded to the longest row of their batch; and one model on several devices:

    weights on cuda:0 ──┬────────────────────> part 0 of a batch ──> loss 0 ──┐
                        └──> copy on cuda:1 ──> part 1 of a batch ──> loss 1 ──┴──> backward

Autograd records the copying, so the gradients of all copies add up in the weights on the first
device, and the optimizer sees only these.

Shapes: R rows, B items, T sequence, W words.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rungwise.finetune.model import TaskModel
from rungwise.models.device import list_devices
from rungwise.tasks.kinds.heads import Rows
from rungwise.tasks.kinds.items import Item
from rungwise.tasks.kinds.kind import TaskKind


@dataclass(frozen=True)
class ItemBatch:
    """The rows of one forward pass, and their targets."""

    ids: Tensor  # (R, T) int64
    segments: Tensor  # (R, T) int64
    rows: Rows
    # (B,); multilabel (B, C), tagging and generation (W,), spans (B, 2). None if any is unknown.
    targets: Tensor | None

    def to(self, device: torch.device) -> Self:
        return type(self)(
            self.ids.to(device),
            self.segments.to(device),
            self.rows.to(device),
            None if self.targets is None else self.targets.to(device),
        )


def collate(items: Sequence[Item], kind: TaskKind | type[TaskKind]) -> ItemBatch:
    """Make one batch of items; lengths are None if no row is padded."""
    rows = [row for item in items for row in item.rows]
    lengths = [len(row.ids) for row in rows]
    ids_RT = torch.zeros((len(rows), max(lengths)), dtype=torch.int64)
    segments_RT = torch.zeros_like(ids_RT)
    for number, row in enumerate(rows):
        ids_RT[number, : len(row.ids)] = torch.tensor(row.ids)
        segments_RT[number, : len(row.segments)] = torch.tensor(row.segments)
    word_row, word_place, targets = None, None, None
    values: list[Any] = [item.target for item in items]
    if None not in values:
        if kind.target_per_place:
            values = [tag for tags in values for tag in tags]
        dtype = torch.float32 if kind.real_targets else torch.int64
        targets = torch.tensor(values, dtype=dtype)
    if kind.target_per_place:
        word_row = _integers(n for n, item in enumerate(items) for _ in item.places)
        word_place = _integers(place for item in items for place in item.places)
    return ItemBatch(
        ids_RT,
        segments_RT,
        Rows(
            lengths=torch.tensor(lengths) if min(lengths) < max(lengths) else None,
            item=_integers(n for n, item in enumerate(items) for _ in item.rows),
            count=len(items),
            word_row=word_row,
            word_place=word_place,
        ),
        targets,
    )


def _integers(values: Iterable[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int64)


def model_devices(model: TaskModel) -> list[torch.device]:
    """Return the devices of this process if `model` is on the first of them, else its own."""
    devices = list_devices()
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
