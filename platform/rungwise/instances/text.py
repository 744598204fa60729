"""The result of building instances."""

from __future__ import annotations

from dataclasses import dataclass

from rungwise.instances.shards import Shard


@dataclass(frozen=True)
class Built:
    """A shard, and counts from building it that add up over shards."""

    shard: Shard
    counts: dict[str, int]
