"""Read masked batches: the rows of a masked kind, with the masks of their epochs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rungwise.core.artifact import Artifact
from rungwise.instances.kinds import masked_config_of
from rungwise.instances.masked import MaskedBatch, masked_batch, vocabulary_of
from rungwise.instances.reader import CACHE_BYTES, InstanceReader


class MaskedReader:
    """Reads one split of masked pairs, masked blocks or sentence-order pairs."""

    def __init__(self, artifact: Artifact, split: str, cache_bytes: int = CACHE_BYTES) -> None:
        self.reader = InstanceReader(artifact, split, cache_bytes)
        self.config = masked_config_of(artifact)
        self.vocabulary = vocabulary_of(self.reader.vocab_size, self.reader.special)

    def __len__(self) -> int:
        return len(self.reader)

    def prefetch(self, shards: list[int]) -> None:
        """Start fetching these shards if they are on an object store."""
        self.reader.store.prefetch(shards)

    def batch(
        self, instances: NDArray[np.int64], epochs: NDArray[np.int64], seed: int
    ) -> MaskedBatch:
        """The rows with these indices (B,), masked for these epochs (B,)."""
        rows = self.reader.rows(instances)
        return masked_batch(rows, epochs, seed, self.vocabulary, self.config.masking)
