"""Where a run is, as plain data, and what is done about steps that go wrong. All of it is stated.

not finite   A step whose gradient holds a NaN or an infinity changes nothing: neither weights nor
             moments. It is counted and named, and more than `max_skipped_steps` of them end the
             run. (Of cross entropy the loss is not finite exactly if its gradient is not.)
spike        Each gradient is cut to `optimizer.clip_norm`, which bounds what one batch can do. A
             step whose loss is above `spike_factor` times the median of the hundred before it is
             counted and named; nothing else is done, unless `skip_outliers` says so (outliers.py).
plateau      With `early_stop` a run ends when the validation loss has not become better for so many
             validations in a row.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import Field

from rungwise.core.config import Config
from rungwise.core.errors import UserError

T = TypeVar("T")
WINDOW = 100
ENOUGH = 20  # losses, before one can stand out


@dataclass
class Progress:
    """Where a run is. The fields hold plain data."""

    step: int = 0  # updates done; the next one reads positions from step x global batch size
    tokens: int = 0  # real tokens read
    flops: float = 0.0  # operations that they take by the counting rule; 0 where none is known
    skipped: list[int] = field(default_factory=list)  # steps whose gradient was not finite
    spikes: list[int] = field(default_factory=list)  # steps whose loss stood out
    recent: list[float] = field(default_factory=list)  # losses that the next is compared with
    outliers: list[int] = field(default_factory=list)  # steps left out because they stood out
    compared: list[list[float]] = field(default_factory=list)  # [loss, norm] for the next of those
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
    prolonged: list[dict[str, Any]] = field(default_factory=list, compare=False)  # earlier runs


class EarlyStopConfig(Config):
    """When the validation loss counts as no longer falling."""

    patience: int = Field(default=3, ge=1)  # validations in a row without an improvement
    # fall of the loss that counts as an improvement, in nats
    minimum_improvement: float = Field(default=0.001, ge=0.0)


def is_spike(loss: float, recent: Sequence[float], factor: float) -> bool:
    """Whether `loss` stands out of the recent ones."""
    return len(recent) >= ENOUGH and loss > factor * statistics.median(recent)


def remember(value: T, recent: list[T]) -> None:
    """Add `value` to what the next one is compared with."""
    recent.append(value)
    del recent[:-WINDOW]


def check_skipped(skipped: Sequence[int], most: int) -> None:
    """Raise UserError if more than `most` steps had to be skipped."""
    if len(skipped) > most:
        named = ", ".join(str(step) for step in skipped[-5:])
        raise UserError(
            f"the loss is not finite at step {skipped[-1]}; lower "
            "pretrain.optimizer.learning_rate or raise its schedule.warmup_fraction "
            f"({len(skipped)} steps were skipped, the last ones {named}; "
            f"pretrain.max_skipped_steps is {most})"
        )


def has_stalled(losses: Sequence[float], config: EarlyStopConfig | None) -> bool:
    """Whether the last `patience` validation losses are no better than the best before them."""
    if config is None or len(losses) <= config.patience:
        return False
    before, last = losses[: -config.patience], losses[-config.patience :]
    return min(last) > min(before) - config.minimum_improvement
