"""Pack work into tasks of about equal size."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TypeVar

ItemT = TypeVar("ItemT")


def packed(items: Sequence[ItemT], work: Sequence[float], most: int) -> list[list[ItemT]]:
    """Pack `items` into at most `most` packs: the largest first, each to the pack with the least so
    far. The items of a pack keep their order."""
    packs: list[list[int]] = [[] for _ in range(min(most, len(items)))]
    least = [(0.0, number) for number in range(len(packs))]
    for at in sorted(range(len(items)), key=lambda at: -work[at]):
        so_far, number = heapq.heappop(least)
        packs[number].append(at)
        heapq.heappush(least, (so_far + work[at], number))
    return [[items[at] for at in sorted(pack)] for pack in packs]
