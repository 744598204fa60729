"""The claims section: verdict marks, comparisons as bars, and the summary sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rungwise.evaluation.comparison.claims import (
    TASKS,
    VERDICTS,
    ClaimResult,
    ComparisonResult,
    Verdict,
)
from rungwise.evaluation.suites.items import METRICS
from rungwise.report.formats import metric_name, number, points, signed

MARKS: dict[Verdict, str] = {
    "supported": "\N{CHECK MARK}",
    "contradicted": "\N{BALLOT X}",
    "unresolved": "?",
    "not tested": "\N{EN DASH}",
}
_WIDER = 1.15  # half a bar, relative to the farthest end of an interval


def sentence(claims: Sequence[ClaimResult]) -> str:
    """`7 of 13 claims tested: 4 supported, 1 contradicted, 2 unresolved`."""
    *tested, _ = VERDICTS
    counts = {each: sum(claim.verdict == each for claim in claims) for each in tested}
    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    count = sum(counts.values())
    return f"{count} of {len(claims)} claims tested" + (f": {words}" if count else "")


@dataclass(frozen=True)
class Effect:
    """A comparison in words, and its value and interval on a bar from 0 to 100 with the threshold
    at 50; right of it is as claimed."""

    value: str
    interval: str
    threshold: str
    at: float
    low: float
    high: float


def effect(result: ComparisonResult) -> Effect:
    """The bar of a comparison that was made."""
    assert result.value is not None
    low = result.value if result.low is None else result.low
    high = result.value if result.high is None else result.high
    farthest = max(abs(each - result.threshold) for each in (result.value, low, high))
    half = _WIDER * farthest or 1.0
    place = [50 + 50 * (each - result.threshold) / half for each in (result.value, low, high)]
    interval = (
        f"[{_number(result, low)}, {_number(result, high)}]" if result.low is not None else ""
    )
    return Effect(_words(result, result.value), interval, _words(result, result.threshold), *place)


def _words(result: ComparisonResult, value: float) -> str:
    text = _number(result, value)
    if result.scale == "log":
        return f"factor {text}"
    return f"{text} points" if _in_points(result) else text


def _number(result: ComparisonResult, value: float) -> str:
    if result.scale == "log":
        return number(math.exp(value), 2)
    return points(value) if _in_points(result) else signed(value)


def _in_points(result: ComparisonResult) -> bool:
    return result.of == TASKS or METRICS[result.metric or "accuracy"].higher_is_better


def describe_comparison(result: ComparisonResult) -> str:
    """`perplexity: gpt - lstm`."""
    metric = metric_name(result.metric or "accuracy")
    subject = result.of if result.of in (TASKS, metric) else f"{result.of}, {metric}"
    terms = sorted(result.terms.items(), key=lambda term: -term[1])  # positive terms first
    words = []
    for name, weight in terms:
        sign = "\N{MINUS SIGN} " if weight <= 0 else "+ " if words else ""
        times = "" if abs(weight) == 1 else f"{abs(weight):g} \N{MULTIPLICATION SIGN} "
        words.append(f"{sign}{times}{name}")
    return f"{subject}: {' '.join(words)}"


def missing_rungs(claim: ClaimResult) -> list[str]:
    """List the rungs that the untested comparisons of a claim lack, each once."""
    return list(dict.fromkeys(name for result in claim.comparisons for name in result.missing))
