"""The tokenised text of one shard, and what is built from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rungwise.instances.shards import Shard, document_hash


@dataclass(frozen=True)
class TokenisedText:
    """The ids of a shard's documents; sentence s, not empty, is `ids[starts[s]:starts[s + 1]]`."""

    ids: NDArray[np.unsignedinteger]
    starts: NDArray[np.int64]  # sentences + 1
    first_sentence: NDArray[np.int64]  # documents + 1
    documents: Sequence[str]
    unit_starts: NDArray[np.bool_] | None = None  # parallel to ids: where a word or span begins

    @cached_property
    def document_hashes(self) -> NDArray[np.uint64]:
        """The hash that identifies each document in a shard."""
        return np.array([document_hash(name) for name in self.documents], dtype=np.uint64)


@dataclass(frozen=True)
class Built:
    """A shard and counts from building it, which add up over shards."""

    shard: Shard
    counts: dict[str, int]
