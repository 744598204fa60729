"""The claims section: verdict marks, comparisons as bars, and the summary sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rungwise.evaluation import claims
from rungwise.evaluation.claims import VERDICTS, Compared, Judged, Verdict
from rungwise.evaluation.items import METRICS
from rungwise.evaluation.statistics import Estimate
from rungwise.report.formats import metric_name, number, points, points_interval, signed

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
    value, interval = _words(row, Estimate(row.value, low, high, row.count))
    return Effect(value, interval if row.low is not None else "", *place)


def _words(row: Compared, value: Estimate) -> tuple[str, str]:
    if row.scale == "log":
        mean, *bounds = (number(math.exp(each), 2) for each in (value.mean, value.low, value.high))
        return f"factor {mean}", f"[{', '.join(bounds)}]"
    if row.of == claims.TASKS or METRICS[row.metric or "accuracy"].higher_is_better:
        return f"{points(value.mean)} points", points_interval(value)
    return signed(value.mean), f"[{signed(value.low)}, {signed(value.high)}]"


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
    """What the untested comparisons of a claim lack, each once."""
    return list(dict.fromkeys(name for row in claim.comparisons for name in row.missing))
