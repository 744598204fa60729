"""Read instances by index: the same rows on any worker, at any step, for any world size.

Step s takes positions [s B, (s + 1) B) of the order (order.py), and each rank its part of them. So
one integer, the step, resumes the data. Each kind turns rows into batches in its own file.

B batch
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rungwise.core.stages.artifact import Artifact
from rungwise.instances.batch import Batch
from rungwise.instances.cache import ShardStore
from rungwise.instances.kinds import read_kind
from rungwise.instances.masking import Vocabulary
from rungwise.instances.shards import PaddedRows, join_rows, pad_rows
from rungwise.instances.summary import InstancesSummary

CACHE_BYTES = 8 << 30


class InstanceReader:
    """Reads one split of an instances artifact; opens shards when first needed. `cache_bytes`
    bounds the copies of remote shards on this machine's disk, in `cache_folder`."""

    def __init__(
        self,
        artifact: Artifact,
        split: str,
        cache_bytes: int = CACHE_BYTES,
        cache_folder: Path | None = None,
    ) -> None:
        summary = InstancesSummary.of(artifact)
        files = summary.split_files(split)
        self.config = read_kind(artifact)
        self.vocabulary = Vocabulary(summary.vocab_size, summary.special, summary.labels)
        self.rows_per_shard = np.array([row.instances for row in files], dtype=np.int64)
        self._begin = np.concatenate([[0], np.cumsum(self.rows_per_shard)])
        self.store = ShardStore(
            artifact.folder,
            [row.file for row in files],
            [row.sha256 for row in files],
            [row.bytes for row in files],
            cache_bytes=cache_bytes,
            cache_folder=cache_folder,
        )

    def __len__(self) -> int:
        return int(self._begin[-1])

    def batch(
        self, instances: NDArray[np.int64], epochs: NDArray[np.int64], seed: int
    ) -> Batch[NDArray[Any]]:
        """The rows of these indices (B,), read in these epochs (B,)."""
        return self.config.batch(self.rows(instances), epochs, seed, self.vocabulary)

    def rows(self, instances: NDArray[np.int64]) -> PaddedRows:
        """The rows with these indices (B,), padded to the width of the kind. Raises DataError if a
        shard is damaged."""
        parts, places = [], []
        pad_id = self.vocabulary.special.pad or 0
        for number, here in self._by_shard(instances):
            local = instances[here] - self._begin[number]
            shard = self.store.get(number)
            parts.append(pad_rows(shard, local, instances[here], self.config.width, pad_id))
            places.append(here)
        return join_rows(parts, places)

    def _by_shard(self, instances: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
        """The number of each shard that holds some of the instances, and which ones."""
        shard_of = np.searchsorted(self._begin, instances, side="right") - 1
        numbers = np.unique(shard_of)
        if len(numbers) == 1:
            return [(int(numbers[0]), np.arange(len(instances)))]
        by_shard = np.argsort(shard_of, kind="stable")
        ends = np.searchsorted(shard_of[by_shard], numbers, side="right")
        return list(zip(numbers.tolist(), np.split(by_shard, ends[:-1]), strict=True))
