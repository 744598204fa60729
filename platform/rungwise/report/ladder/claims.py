"""The claims section: verdict marks, comparisons as bars, and the summary sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rungwise.evaluation.comparison import claims
from rungwise.evaluation.comparison.claims import VERDICTS, Compared, Judged, Verdict
from rungwise.evaluation.suites.items import METRICS
from rungwise.report.formats import metric_name, number, points, signed

MARKS: dict[Verdict, str] = {
    "supported": "\N{CHECK MARK}",
    "contradicted": "\N{BALLOT X}",
    "unresolved": "?",
    "not tested": "\N{EN DASH}",
}
_WIDER = 1.15  # half a bar, relative to the farthest end of an interval


def sentence(judged: Sequence[Judged]) -> str:
    """`7 of 13 claims tested: 4 supported, 1 contradicted, 2 unresolved`."""
    *tested, untested = VERDICTS
    counts = {each: sum(claim.verdict == each for claim in judged) for each in tested}
    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    done = sum(claim.verdict != untested for claim in judged)
    return f"{done} of {len(judged)} claims tested" + (f": {words}" if done else "")


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


def effect(row: Compared) -> Effect:
    """The bar of a comparison that was made."""
    assert row.value is not None
    low = row.value if row.low is None else row.low
    high = row.value if row.high is None else row.high
    farthest = max(abs(each - row.threshold) for each in (row.value, low, high))
    half = _WIDER * farthest or 1.0
    place = [50 + 50 * (each - row.threshold) / half for each in (row.value, low, high)]
    interval = f"[{_number(row, low)}, {_number(row, high)}]" if row.low is not None else ""
    return Effect(_words(row, row.value), interval, _words(row, row.threshold), *place)


def _words(row: Compared, value: float) -> str:
    said = _number(row, value)
    if row.scale == "log":
        return f"factor {said}"
    return f"{said} points" if _in_points(row) else said


def _number(row: Compared, value: float) -> str:
    if row.scale == "log":
        return number(math.exp(value), 2)
    return points(value) if _in_points(row) else signed(value)


def _in_points(row: Compared) -> bool:
    return row.of == claims.TASKS or METRICS[row.metric or "accuracy"].higher_is_better


def asked(row: Compared) -> str:
    """`perplexity: gpt - lstm`."""
    metric = metric_name(row.metric or "accuracy")
    what = row.of if row.of in (claims.TASKS, metric) else f"{row.of}, {metric}"
    terms = sorted(row.terms.items(), key=lambda term: -term[1])  # positive terms first
    words = [_term(name, weight, first=not place) for place, (name, weight) in enumerate(terms)]
    return f"{what}: {' '.join(words)}"


def _term(name: str, weight: float, first: bool) -> str:
    sign = "" if first and weight > 0 else "+ " if weight > 0 else "\N{MINUS SIGN} "
    times = "" if abs(weight) == 1 else f"{abs(weight):g} \N{MULTIPLICATION SIGN} "
    return f"{sign}{times}{name}"


def missing(claim: Judged) -> list[str]:
    """List the rungs that the untested comparisons of a claim lack, each once."""
    return list(dict.fromkeys(name for row in claim.comparisons for name in row.missing))
