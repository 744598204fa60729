"""Held-out instances, evenly spread over the split, because shards keep the order of the corpus.

The number read does not grow with the corpus. Indices and masks are those of validation in
training. B batch, T sequence
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rungwise.core.randomness import bits
from rungwise.instances import causal
from rungwise.instances.causal import CausalBlocks
from rungwise.instances.masked_batch import MaskedBatch
from rungwise.instances.order import evenly
from rungwise.instances.reader import InstanceReader, MaskedReader

MOST_INSTANCES = 2048  # per page
_ROWS_AT_ONCE = 512


def read_masked(reader: MaskedReader, instances: NDArray[np.int64], seed: int) -> MaskedBatch:
    """Return these instances with the masks of epoch 0, as validation uses them."""
    return reader.batch(instances, np.zeros_like(instances), seed)


def read_blocks(reader: InstanceReader, instances: NDArray[np.int64]) -> CausalBlocks:
    return causal.batch(reader.rows(instances), end_id(reader))


def end_id(reader: InstanceReader) -> int:
    (end,) = reader.special.require("end")
    return end


def original_ids(batch: MaskedBatch) -> NDArray[np.int64]:
    """The ids (B, T) before masking."""
    ids = batch.masked.ids.copy()
    row, column = np.nonzero(batch.masked.weights)
    ids[row, batch.masked.positions[row, column]] = batch.masked.targets[row, column]
    return ids


def draw_instances(seed: int, stream: int, count: int) -> list[int]:
    """At most MOST_INSTANCES of `count` instances, in random order by the seed."""
    instances = evenly(count, MOST_INSTANCES)
    key = bits(seed, stream, np.arange(len(instances)))
    return instances[np.argsort(key, kind="stable")].tolist()


def most_frequent_share(
    reader: MaskedReader | InstanceReader, count: int, seed: int
) -> tuple[int, float]:
    """The most frequent target in `count` instances and its share: the accuracy of always
    guessing it."""
    vocab_size = (reader.reader if isinstance(reader, MaskedReader) else reader).vocab_size
    total = np.zeros(vocab_size, dtype=np.int64)
    instances = evenly(len(reader), count)
    for begin in range(0, len(instances), _ROWS_AT_ONCE):
        part = instances[begin : begin + _ROWS_AT_ONCE]
        if isinstance(reader, MaskedReader):
            batch = read_masked(reader, part, seed).masked
        else:
            batch = read_blocks(reader, part)
        total += np.bincount(batch.targets[batch.weights > 0], minlength=vocab_size)
    return int(total.argmax()), float(total.max() / total.sum())
