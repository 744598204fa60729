"""The first held-out instances, without touching more shards than hold them.

Every shard is a fair sample of the corpus, so the first ones serve, and a page about terabytes
needs no more reading than a page about megabytes. Indices and masks are those of training's own
validation.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from rungwise.artifact import Artifact
from rungwise.instances.masking import MaskingConfig
from rungwise.instances.reader import Batch, InstanceReader

MOST_INSTANCES = 2048  # that a page looks at
_ROWS_AT_ONCE = 512


def first_held_out(instances: Artifact, count: int) -> InstanceReader:
    """A reader of the fewest validation shards that hold `count` instances."""
    kept, held = [], 0
    for row in instances.summary["files"]:
        if row["split"] == "validation" and held < count:
            kept.append(row)
            held += row["instances"]
    record = {**instances.record, "summary": {**instances.summary, "files": kept}}
    return InstanceReader(dataclasses.replace(instances, record=record), "validation")


def rows(
    reader: InstanceReader, instances: NDArray[np.int64], seed: int, masking: MaskingConfig
) -> Batch:
    """These instances with the masks of epoch 0, which validation uses."""
    return reader.rows(instances, np.zeros_like(instances), seed, masking)


def originals(batch: Batch) -> NDArray[np.int64]:
    """The ids (B, T) as they were before masking."""
    ids = batch.masked.ids.copy()
    row, column = np.nonzero(batch.masked.weights)
    ids[row, batch.masked.positions[row, column]] = batch.masked.targets[row, column]
    return ids


def most_frequent_share(
    reader: InstanceReader, count: int, seed: int, masking: MaskingConfig
) -> tuple[int, float]:
    """The token that is masked most often in the first `count` instances, and its share.

    That is the accuracy of always guessing this one token.
    """
    total = np.zeros(reader.vocab_size, dtype=np.int64)
    for begin in range(0, count, _ROWS_AT_ONCE):
        batch = rows(reader, np.arange(begin, min(begin + _ROWS_AT_ONCE, count)), seed, masking)
        used = batch.masked.targets[batch.masked.weights > 0]
        total += np.bincount(used, minlength=reader.vocab_size)
    return int(total.argmax()), float(total.max() / total.sum())
