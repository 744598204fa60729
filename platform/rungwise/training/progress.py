"""Where a run is: what the loop carries from step to step besides tensors, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Progress:
    """Where a run is: what the loop carries from step to step besides tensors."""

    step: int = 0  # updates done; the next one reads positions from step x global batch size
    tokens: int = 0  # real tokens read
    flops: float = 0.0  # operations that they take by the counting rule; 0 where none is known
    skipped: list[int] = field(default_factory=list)  # steps whose gradient was not finite
    spikes: list[int] = field(default_factory=list)  # steps whose loss stood out
    recent: list[float] = field(default_factory=list)  # losses that the next is compared with
    data_hash: str = ""  # of the instances of all steps so far (feed.py)
    data: list[list[Any]] = field(default_factory=list)  # [step, the same] at logged steps
    history: list[dict[str, float]] = field(default_factory=list)  # a row a logged step
    validation: list[dict[str, float]] = field(default_factory=list)
    pending: list[list[float]] = field(default_factory=list)  # a row a step since the last logged
    # How long it took and who took part is no part of where a run is: two runs with the same state
    # have other times.
    seconds: float = field(default=0.0, compare=False)  # in the loop, over all attempts
    timings: list[dict[str, float]] = field(default_factory=list, compare=False)
    saves: list[dict[str, float]] = field(default_factory=list, compare=False)
    attempts: list[dict[str, int]] = field(default_factory=list, compare=False)
