"""The claims section: verdict marks, sentences about luck, and comparisons as bars."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rungwise.core.plural import format_count
from rungwise.evaluation.comparison.claim_comparisons import (
    TASKS,
    VERDICTS,
    ComparisonResult,
    Verdict,
)
from rungwise.evaluation.comparison.claims import ClaimResult
from rungwise.evaluation.suites.items import METRICS
from rungwise.report.formats import metric_name, number, p_value, points, format_signed

MARKS: dict[Verdict, str] = {
    "confirmed": "\N{CHECK MARK}",
    "contradicted": "\N{BALLOT X}",
    "undecided": "?",
    "not tested": "\N{EN DASH}",
}
_WIDER = 1.15  # half a bar, relative to the farthest end of an interval


def select_tested(claims: Sequence[ClaimResult]) -> list[ClaimResult]:
    """The claims of which anything was compared, by verdict: decided ones first."""
    tested = [claim for claim in claims if claim.verdict != "not tested"]
    return sorted(tested, key=lambda claim: VERDICTS.index(claim.verdict))


def count_verdicts(claims: Sequence[ClaimResult]) -> str:
    """`of 7 claims 4 are confirmed, 1 contradicted, 2 undecided`."""
    tested = select_tested(claims)
    *verdicts, _ = VERDICTS
    counts = {each: sum(claim.verdict == each for claim in tested) for each in verdicts}
    (first, count), *others = counts.items()
    words = [f"{count} {'is' if count == 1 else 'are'} {first}"]
    words += [f"{count} {verdict}" for verdict, count in others]
    return f"of {format_count(len(tested), 'claim')} tested, {', '.join(words)}"


def describe_luck(claim: ClaimResult) -> str:
    """Over how many pretrainings a claim was judged, in a line of its own."""
    count = claim.pretrainings
    if count is None:
        return "Counted, not trained: luck has no part in these models."
    if count == 1:
        return "Each model was trained once: another training might come out differently."
    return f"Every model was trained {count} times or more; the verdict allows for their luck."


def chance(claim: ClaimResult) -> str:
    """The corrected p of a claim, and why an interval off the line may still decide nothing."""
    assert claim.p_holm is not None
    text = f"{p_value(claim.p_holm)} after correction for all claims tested"
    off = any(each.verdict in ("confirmed", "contradicted") for each in claim.comparisons)
    if claim.verdict == "undecided" and off:
        text += "; an interval beside the line is not enough among so many"
    return text


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
    return points(value) if _in_points(result) else format_signed(value)


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
