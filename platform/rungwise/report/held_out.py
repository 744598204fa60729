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
from rungwise.instances.masked import MaskedBatch
from rungwise.instances.masked_reader import MaskedReader

MOST_INSTANCES = 2048  # that a page looks at
_ROWS_AT_ONCE = 512


def first_held_out(instances: Artifact, count: int) -> MaskedReader:
    """A reader of the fewest validation shards that hold `count` instances."""
    kept, held = [], 0
    for row in instances.summary["files"]:
        if row["split"] == "validation" and held < count:
            kept.append(row)
            held += row["instances"]
    record = {**instances.record, "summary": {**instances.summary, "files": kept}}
    return MaskedReader(dataclasses.replace(instances, record=record), "validation")


def rows(reader: MaskedReader, instances: NDArray[np.int64], seed: int) -> MaskedBatch:
    """These instances with the masks of epoch 0, which validation uses."""
    return reader.batch(instances, np.zeros_like(instances), seed)


def originals(batch: MaskedBatch) -> NDArray[np.int64]:
    """The ids (B, T) as they were before masking."""
    ids = batch.masked.ids.copy()
    row, column = np.nonzero(batch.masked.weights)
    ids[row, batch.masked.positions[row, column]] = batch.masked.targets[row, column]
    return ids


def most_frequent_share(reader: MaskedReader, count: int, seed: int) -> tuple[int, float]:
    """The token that is masked most often in the first `count` instances, and its share.

    That is the accuracy of always guessing this one token.
    """
    vocab_size = reader.vocabulary.size
    total = np.zeros(vocab_size, dtype=np.int64)
    for begin in range(0, count, _ROWS_AT_ONCE):
        batch = rows(reader, np.arange(begin, min(begin + _ROWS_AT_ONCE, count)), seed)
        used = batch.masked.targets[batch.masked.weights > 0]
        total += np.bincount(used, minlength=vocab_size)
    return int(total.argmax()), float(total.max() / total.sum())
