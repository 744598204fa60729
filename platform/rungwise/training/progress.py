"""Where a run is, as plain data, and how steps that go wrong are handled. All of it is reported.

not finite   A step whose gradient holds a NaN or an infinity changes neither weights nor moments.
             It is counted and named; more than `max_skipped_steps` of them end the run. (With cross
             entropy, the loss is not finite exactly if its gradient is not.)
spike        Each gradient is clipped to `optimizer.clip_norm`, which bounds the effect of one
             batch. A step whose loss exceeds `spike_factor` times the median of the hundred before
             it is counted and named, but kept, unless `skip_outliers` skips it (outliers.py).
plateau      With `early_stop`, a run ends when the validation loss has not improved for so many
             validations in a row.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import Field

from rungwise.core.configuration.config import Config
from rungwise.core.errors import UserError
from rungwise.core.plural import counted

T = TypeVar("T")
WINDOW = 100
ENOUGH = 20  # losses needed before one can stand out


@dataclass
class Progress:
    """Where a run is, as plain data."""

    step: int = 0  # updates done; the next one reads positions from step x global batch size
    tokens: int = 0  # without padding
    flops: float = 0.0  # operations for them by the counting rule; 0 if unknown
    skipped: list[int] = field(default_factory=list)  # steps whose gradient was not finite
    spikes: list[int] = field(default_factory=list)  # steps whose loss stood out
    recent: list[float] = field(default_factory=list)  # losses that the next is compared with
    outliers: list[int] = field(default_factory=list)  # steps skipped because they stood out
    compared: list[list[float]] = field(default_factory=list)  # [loss, norm], for outliers
    data_hash: str = ""  # of the instances of all steps so far (feed.py)
    data: list[list[Any]] = field(default_factory=list)  # [step, data_hash] at logged steps
    history: list[dict[str, float]] = field(default_factory=list)  # one row per logged step
    validation: list[dict[str, float]] = field(default_factory=list)
    pending: list[list[float]] = field(default_factory=list)  # a row per step since the last logged
    # Times and workers are excluded from comparison: two runs in the same state may differ in them.
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
    return len(recent) >= ENOUGH and loss > factor * statistics.median(recent)


def remember(value: T, recent: list[T]) -> None:
    """Append `value` to the window that the next one is compared with."""
    recent.append(value)
    del recent[:-WINDOW]


def check_skipped(skipped: Sequence[int], most: int) -> None:
    """Raise UserError if more than `most` steps had to be skipped."""
    if len(skipped) > most:
        named = ", ".join(str(step) for step in skipped[-5:])
        raise UserError(
            f"the loss is not finite at step {skipped[-1]}; lower "
            "pretrain.optimizer.learning_rate or raise its schedule.warmup_fraction "
            f"(skipped {counted(len(skipped), 'step')}, the last {named}; "
            f"pretrain.max_skipped_steps is {most})"
        )


def has_stalled(losses: Sequence[float], config: EarlyStopConfig | None) -> bool:
    """Whether the last `patience` validation losses did not improve on the best before them."""
    if config is None or len(losses) <= config.patience:
        return False
    before, last = losses[: -config.patience], losses[-config.patience :]
    return min(last) > min(before) - config.minimum_improvement
