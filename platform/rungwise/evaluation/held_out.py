"""The first held-out instances, without touching more shards than hold them.

Every shard is a fair sample of the corpus, so the first ones serve, and a page about terabytes
needs no more reading than a page about megabytes. Indices and masks are those of training's own
validation.

B batch, T sequence
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rungwise.core.artifact import Artifact
from rungwise.core.randomness import bits
from rungwise.instances import causal
from rungwise.instances.causal import CausalBlocks
from rungwise.instances.masked_batch import MaskedBatch
from rungwise.instances.reader import InstanceReader, MaskedReader
from rungwise.instances.summary import InstancesSummary

MOST_INSTANCES = 2048  # that a page looks at
_ROWS_AT_ONCE = 512


def first_held_out(instances: Artifact, count: int) -> MaskedReader:
    """A reader of the fewest validation shards that hold `count` masked instances."""
    return MaskedReader(_first_files(instances, count), "validation")


def first_blocks(instances: Artifact, count: int) -> InstanceReader:
    """The same of packed blocks."""
    return InstanceReader(_first_files(instances, count), "validation")


def rows(reader: MaskedReader, instances: NDArray[np.int64], seed: int) -> MaskedBatch:
    """These instances with the masks of epoch 0, which validation uses."""
    return reader.batch(instances, np.zeros_like(instances), seed)


def blocks(reader: InstanceReader, instances: NDArray[np.int64]) -> CausalBlocks:
    """These blocks."""
    return causal.batch(reader.rows(instances), end_of(reader))


def end_of(reader: InstanceReader) -> int:
    """The id that ends a document."""
    (end,) = reader.special.require("end")
    return end


def originals(batch: MaskedBatch) -> NDArray[np.int64]:
    """The ids (B, T) as they were before masking."""
    ids = batch.masked.ids.copy()
    row, column = np.nonzero(batch.masked.weights)
    ids[row, batch.masked.positions[row, column]] = batch.masked.targets[row, column]
    return ids


def drawn(seed: int, stream: int, count: int) -> list[int]:
    """The first instances, at most `count` and MOST_INSTANCES, in an order that the seed draws."""
    order = bits(seed, stream, np.arange(min(MOST_INSTANCES, count)))
    return np.argsort(order, kind="stable").tolist()


def most_frequent_share(
    reader: MaskedReader | InstanceReader, count: int, seed: int
) -> tuple[int, float]:
    """The token that is asked for most often in the first `count` instances, and its share.

    That is the accuracy of always guessing this one token.
    """
    vocab_size = (reader.reader if isinstance(reader, MaskedReader) else reader).vocab_size
    total = np.zeros(vocab_size, dtype=np.int64)
    for begin in range(0, count, _ROWS_AT_ONCE):
        here = np.arange(begin, min(begin + _ROWS_AT_ONCE, count))
        if isinstance(reader, MaskedReader):
            asked = rows(reader, here, seed).masked
        else:
            asked = blocks(reader, here)
        used = asked.targets[asked.weights > 0]
        total += np.bincount(used, minlength=vocab_size)
    return int(total.argmax()), float(total.max() / total.sum())


def _first_files(instances: Artifact, count: int) -> Artifact:
    summary = InstancesSummary.of(instances)
    kept, held = [], 0
    for row in summary.files_of("validation"):
        if held < count:
            kept.append(row)
            held += row.instances
    return summary.model_copy(update={"files": tuple(kept)}).replacing_that_of(instances)
