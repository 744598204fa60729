"""Exact curves for tests, and priors that say next to nothing."""

from collections.abc import Callable, Sequence

from rungwise.forecast.curves import Fitted, Measure, Point, Priors

BUDGETS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
LARGEST = 8e6  # tokens of budget 1
_WIDE = {"slope": (-2.0, 2.0), "bend": (-2.0, 3.0), "worth": (2.0, 2.0)}
_MORE = {"onset": (-4.0, 2.0), "rise": (-4.0, 2.0)}
_LAWS = {"floor": _WIDE, "onset": _WIDE | _MORE, "rising": _WIDE | _MORE, "line": _WIDE}


def vague_priors(noise: float = 1e-4) -> Priors:
    factors: dict[Measure, float] = {"bits_per_byte": 1.0, "bits_per_masked_token": 1.0}
    return Priors(noise, 0.0, factors, {"gradient": _LAWS, "counts": _LAWS})


def list_points(
    law: Callable[[float, float], float],
    rung: str = "gpt",
    budgets: Sequence[float] = BUDGETS,
    distinct: float = 1e12,
    seconds: float = 600.0,
    fitted: Fitted = "gradient",
) -> list[Point]:
    """Points on the curve law(tokens, distinct)."""
    return [
        Point(
            rung=rung,
            budget=budget,
            seed=0,
            tokens=budget * LARGEST,
            distinct=distinct,
            seconds=budget * seconds,
            bits=law(budget * LARGEST, distinct),
            fitted=fitted,
        )
        for budget in budgets
    ]
