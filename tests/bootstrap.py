"""The bootstrap of two variants alone, of which an evaluation draws all together."""

from typing import Any

from rungwise.evaluation.statistics import Difference, draw_values, paired_draws


def paired_bootstrap(
    first: Any, second: Any, value: Any, seed: int, resamples: int, *more: Any, **named: Any
) -> Difference:
    """The difference of two variants, with its interval, from the sums (S, N, k) of their runs."""
    ours, others = draw_values([first, second], value, seed, resamples)
    return paired_draws(ours, others, seed, *more, **named)
