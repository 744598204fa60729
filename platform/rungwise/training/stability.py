"""What is done about steps that go wrong, and when a run need not go on. All of it is stated.

not finite   A step whose gradient holds a NaN or an infinity changes nothing: neither weights nor
             moments. It is counted and named, and more than `max_skipped_steps` of them end the
             run. (Of cross entropy the loss is not finite exactly if its gradient is not.)
spike        Each gradient is cut to `optimizer.clip_norm`, which bounds what one batch can do. A
             step whose loss is above `spike_factor` times the median of the hundred before it is
             counted and named; nothing else is done.
plateau      With `early_stop` a run ends when the validation loss has not become better for so many
             validations in a row.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pydantic import Field

from rungwise.core.config import Config
from rungwise.core.errors import UserError

_WINDOW = 100
_ENOUGH = 20  # losses, before one can stand out


class EarlyStopConfig(Config):
    """When the validation loss counts as no longer falling."""

    patience: int = Field(default=3, ge=1)  # validations
    minimum_improvement: float = Field(default=0.001, ge=0.0)  # nats


def is_spike(loss: float, recent: Sequence[float], factor: float) -> bool:
    """Whether `loss` stands out of the recent ones."""
    return len(recent) >= _ENOUGH and loss > factor * statistics.median(recent)


def remember(loss: float, recent: list[float]) -> None:
    """Add `loss` to what the next one is compared with."""
    recent.append(loss)
    del recent[:-_WINDOW]


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
