"""The states of streams: what a model carries from the end of a block to the next one.

A state belongs to a stream of text, not to a worker, so a checkpoint holds one tensor of all B
streams, cut along them, and each worker of a resumed run reads its own. Gradients stop at the start
of a block.

A step skipped for a non-finite gradient leaves the states unchanged, because the new ones may not
be finite either. The text still moves on by a block.

B streams of the run, L streams of this worker, S the model's `state_shape`
"""

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from rungwise.instances.batch import Batch, CausalBatch
from rungwise.training.state import STREAMS, TensorPiece, SavedTensors


class StreamStates:
    """The states of this worker's streams, initially zero."""

    def __init__(
        self, state_shape: tuple[int, ...], streams: range, total: int, device: torch.device
    ):
        """`streams` are this worker's, of `total`."""
        self._streams = streams
        self._total = total
        self._now_LS = torch.zeros(len(streams), *state_shape, device=device)
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
