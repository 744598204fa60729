"""The states of lanes: what a model carries from the end of a block to the next one.

A state belongs to a lane, not to a worker, so a checkpoint holds one tensor of all B lanes, cut
along lanes, and each worker of a resumed run reads its own. Gradients stop at the start of a block.

A step skipped for a non-finite gradient leaves the states unchanged, because the new ones may not
be finite either. The text still moves on by a block.

B lanes of the run, L lanes of this worker, S the model's `state_shape`
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from rungwise.models.losses.objectives import Batch, CausalBatch
from rungwise.training.state import Piece, SavedTensors

STATE = "lanes/state"


class LaneStates:
    """The states of this worker's lanes, initially zero."""

    def __init__(
        self, state_shape: tuple[int, ...], lanes: range, whole: int, device: torch.device
    ):
        """`lanes` are this worker's, of `whole` in all."""
        self._lanes = lanes
        self._whole = whole
        self._held_LS = torch.zeros(len(lanes), *state_shape, device=device)
        self._next_LS = torch.zeros_like(self._held_LS)

    def enter(self, batch: Batch) -> Batch:
        """Add to `batch` the states of its rows: zeros where a lane restarts."""
        assert isinstance(batch, CausalBatch)
        assert batch.lanes is not None
        assert batch.continues is not None
        held_BS = self._held_LS[batch.lanes]
        return replace(batch, state=_where(batch.continues, held_BS))

    def leave(self, batch: Batch, state_BS: Tensor | None) -> None:
        """Store the states that the model returned for `batch`."""
        assert isinstance(batch, CausalBatch)
        assert state_BS is not None
        # Text that ends within a block passes on no state.
        full = batch.weights[:, -1] > 0
        self._next_LS[batch.lanes] = _where(full, state_BS.detach().to(self._next_LS.dtype))

    def settle(self, good: Tensor) -> None:
        """End a step: the next begins with the new states, or with the old if not `good`, ()."""
        self._held_LS = torch.where(good, self._next_LS, self._held_LS)

    def piece(self) -> Piece:
        """The rows that this worker writes into a checkpoint."""
        shape = (self._whole, *self._held_LS.shape[1:])
        return Piece(self._held_LS, self._lanes.start, shape)

    def restore(self, saved: SavedTensors) -> None:
        """Take this worker's lanes from a checkpoint of any number of workers."""
        self._held_LS.copy_(saved.read(STATE, self._lanes.start, self._lanes.stop))


def _where(kept_B: Tensor, state_BS: Tensor) -> Tensor:
    """Zeros for rows that are not kept, even if their states are not finite."""
    kept = kept_B.view(-1, *[1] * (state_BS.ndim - 1))  # (B,) -> (B, 1, ...)
    return torch.where(kept, state_BS, torch.zeros_like(state_BS))
