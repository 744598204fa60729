"""Items as tensors: rows padded to the longest row of their batch.

Shapes: R rows, B items, T sequence, W words.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from rungwise.finetune.heads import Rows
from rungwise.tasks.kinds.examples import Kind
from rungwise.tasks.kinds.items import Item


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


def collate(items: Sequence[Item], kind: Kind) -> ItemBatch:
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
        if kind in ("tagging", "generation"):
            values = [tag for tags in values for tag in tags]
        numbers = kind in ("multilabel", "regression")
        targets = torch.tensor(values, dtype=torch.float32 if numbers else torch.int64)
    if kind in ("tagging", "generation"):
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
