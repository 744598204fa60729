"""Crossings and backtests in words."""

import math
from collections.abc import Mapping
from types import MappingProxyType

from rungwise.forecast.backtest import Backtest
from rungwise.forecast.crossings import Crossing

_UNITS = (("core-hours", 3600.0), ("core-minutes", 60.0), ("core-seconds", 1.0))
_ROUND = 2.0  # of a unit, from which on it is used


def describe_crossing(crossing: Crossing, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """`GPT passes 3-gram at 9 [6, 15] core-minutes`."""
    passing = names.get(crossing.passing, crossing.passing)
    passed = names.get(crossing.passed, crossing.passed)
    unit, seconds = next(
        (unit for unit in _UNITS if crossing.seconds.median >= _ROUND * unit[1]), _UNITS[-1]
    )
    median, low, high = (
        "never"
        if math.isinf(value)
        else f"{value / seconds:.2g}"
        if value < 10 * seconds
        else f"{value / seconds:,.0f}"
        for value in (crossing.seconds.median, crossing.seconds.low, crossing.seconds.high)
    )
    return f"{passing} passes {passed} at {median} [{low}, {high}] {unit}"


def describe_backtest(tested: Backtest) -> str:
    """How well the larger budgets of this ladder were foretold from its smaller ones."""
    if not tested.cells:
        return "Too few budgets to try such forecasts on this ladder; three are needed."
    text = (
        f"Tried on this ladder: {len(tested.cells)} larger budgets foretold from smaller ones, "
        f"median error {tested.error:.3f} bits, {tested.coverage:.0%} inside their 95 % intervals. "
        f"The last point alone is off by {tested.last_error:.3f}, a line through the last two by "
        f"{tested.line_error:.3f}."
    )
    if not math.isnan(tested.order):
        text += (
            f" {tested.order:.0%} of pairs are in the order foretold, {tested.last_order:.0%} in "
            "that of the smaller runs."
        )
    return text
