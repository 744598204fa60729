"""Held-out instances, evenly spread over the split, because shards keep the order of the corpus.

The number read does not grow with the corpus. Indices and masks are those of validation in
training.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rungwise.core.randomness import bits
from rungwise.instances.order import evenly
from rungwise.instances.reader import InstanceReader

MOST_INSTANCES = 2048  # per page
_ROWS_AT_ONCE = 512


def read_as_validated(reader: InstanceReader, instances: NDArray[np.int64], seed: int = 0) -> Any:
    """These instances as validation reads them, with the masks of epoch 0: a batch of the class
    that their kind has."""
    return reader.batch(instances, np.zeros_like(instances), seed)


def draw_instances(seed: int, stream: int, count: int) -> list[int]:
    """At most MOST_INSTANCES of `count` instances, in random order by the seed."""
    instances = evenly(count, MOST_INSTANCES)
    key = bits(seed, stream, np.arange(len(instances)))
    return instances[np.argsort(key, kind="stable")].tolist()


def most_frequent_share(reader: InstanceReader, count: int, seed: int) -> tuple[int, float] | None:
    """The most frequent target in `count` instances and its share, the accuracy of always guessing
    it; None for kinds that predict no tokens."""
    total = np.zeros(reader.vocabulary.size, dtype=np.int64)
    sample = evenly(len(reader), count)
    for begin in range(0, len(sample), _ROWS_AT_ONCE):
        batch = read_as_validated(reader, sample[begin : begin + _ROWS_AT_ONCE], seed)
        total += np.bincount(batch.predicted_ids(), minlength=len(total))
    return (int(total.argmax()), float(total.max() / total.sum())) if total.any() else None
