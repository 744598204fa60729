"""Reads instances by position of the run: any worker, any step, any world size, the same rows.

Step s takes positions [s B, (s + 1) B) of the order (order.py); a rank takes its part of them. So
one integer, the step, resumes the data. Shards are mapped files, opened once.

B batch, T sequence, M masked positions
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rungwise.artifact import Artifact
from rungwise.instances import order, shards
from rungwise.instances.masking import Masked, MaskingConfig, mask
from rungwise.tokenizer import PAD_ID


@dataclass(frozen=True)
class Batch:
    """One micro-batch of masked pairs. Positions from `lengths` on are padding."""

    instances: NDArray[np.int64]  # (B,) index of each row in its split
    segments: NDArray[np.int64]  # (B, T) 0 for A, 1 for B, 0 for padding
    lengths: NDArray[np.int64]  # (B,)
    masked: Masked  # ids (B, T), positions, targets, weights (B, M)
    is_next: NDArray[np.int64]  # (B,)


class InstanceReader:
    """The instances of one split of an instances artifact."""

    def __init__(self, artifact: Artifact, split: str) -> None:
        rows = [row for row in artifact.summary["files"] if row["split"] == split]
        self._shards = [shards.read(artifact.folder.local(row["file"])) for row in rows]
        self._begin = np.concatenate([[0], np.cumsum([len(shard) for shard in self._shards])])
        self.vocab_size: int = artifact.summary["vocab_size"]
        self.sequence_length: int = artifact.summary["sequence_length"]

    def __len__(self) -> int:
        return int(self._begin[-1])

    def batch(self, positions: NDArray[np.int64], seed: int, masking: MaskingConfig) -> Batch:
        """The rows at these positions of the run with this seed, masked for their epochs."""
        instances = order.indices(positions, len(self), seed)
        epochs = order.epochs(positions, len(self))
        return self.rows(instances, epochs, seed, masking)

    def rows(
        self,
        instances: NDArray[np.int64],
        epochs: NDArray[np.int64],
        seed: int,
        masking: MaskingConfig,
    ) -> Batch:
        """The rows with these indices, padded to the sequence length and masked for `epochs`."""
        size, length = len(instances), self.sequence_length
        ids = np.full((size, length), PAD_ID, dtype=np.int64)
        lengths = np.empty(size, dtype=np.int64)
        a_length = np.empty(size, dtype=np.int64)
        is_next = np.empty(size, dtype=np.int64)
        shard_of = np.searchsorted(self._begin, instances, side="right") - 1
        column = np.arange(length)[None, :]
        for number in np.unique(shard_of):
            shard = self._shards[number]
            here = np.flatnonzero(shard_of == number)
            local = instances[here] - self._begin[number]
            begin = shard.offsets[local]
            lengths[here] = shard.offsets[local + 1] - begin
            a_length[here] = shard.a_length[local]
            is_next[here] = shard.is_next[local]
            real = column < lengths[here][:, None]
            gathered = shard.ids[np.minimum(begin[:, None] + column, len(shard.ids) - 1)]
            ids[here] = np.where(real, gathered, PAD_ID)
        segments = ((column >= a_length[:, None]) & (column < lengths[:, None])).astype(np.int64)
        masked = mask(ids, instances, epochs, seed, self.vocab_size, masking)
        return Batch(instances, segments, lengths, masked, is_next)


def positions_of(
    step: int, global_batch_size: int, rank: int, world_size: int
) -> NDArray[np.int64]:
    """The positions that one rank reads at one step: an even part of the step's, in order."""
    begin = step * global_batch_size + np.array([rank, rank + 1]) * global_batch_size // world_size
    return np.arange(begin[0], begin[1], dtype=np.int64)
