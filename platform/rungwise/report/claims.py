"""The claims section: verdicts, how far luck may explain them, and comparisons as bars."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rungwise.core.stages.artifact import Artifact
from rungwise.core.wording import format_count
from rungwise.evaluation.comparison.claims import (
    TASKS,
    VERDICTS,
    ClaimResult,
    ClaimsSummary,
    ComparisonResult,
)
from rungwise.evaluation.suites.items import METRICS
from rungwise.report.findings import describe_luck
from rungwise.report.formats import format_signed, metric_name, number, p_value, points
from rungwise.report.page import Section

_WIDER = 1.15  # half a bar, relative to the farthest end of an interval


def write_claims(
    judged: ClaimsSummary,
    untuned: Mapping[str, Sequence[str]],
    verdicts_at: Mapping[str, Mapping[str, str]],
    chances: Mapping[str, float],
) -> Section:
    """The section. By claim: its verdicts at shares of the budget, the rungs in it that were not
    tuned, and the chance that it holds with more time."""
    tested = select_tested(judged.claims)
    once = any(claim.pretrainings == 1 for claim in judged.claims)
    fields = {
        "tested": tested,
        "untested": [each for each in judged.claims if each.verdict == "not tested"],
        "effect": make_effect,
        "luck_of": _describe_pretrainings,
        "chance": _describe_chance,
        "comparison": describe_comparison,
        "luck": describe_luck(judged.seeds) if judged.seeds and once else "",
        "untuned_in": untuned,
        "verdicts_at": verdicts_at,
        "chances": chances,
    }
    title = "What was found" if tested else "Claims"
    return Section("claims", title, fields)


def select_tested(claims: Sequence[ClaimResult]) -> list[ClaimResult]:
    """The claims of which anything was compared, by verdict: decided ones first."""
    tested = [claim for claim in claims if claim.verdict != "not tested"]
    return sorted(tested, key=lambda claim: VERDICTS.index(claim.verdict))


def gather_verdicts(
    inputs: Mapping[str, Artifact], titles: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """The verdicts of each claim that was tested, by the parts of the ladder with these titles."""
    verdicts: dict[str, dict[str, str]] = {}
    for part, title in titles.items():
        for claim in select_tested(ClaimsSummary.of(inputs[title]).claims):
            verdicts.setdefault(claim.id, {})[part] = claim.verdict
    return verdicts


def count_verdicts(claims: Sequence[ClaimResult]) -> str:
    """`Of 7 claims tested, 4 are confirmed, 1 contradicted, 2 undecided.`"""
    tested = select_tested(claims)
    first, *others = VERDICTS[:-1]
    counts = {each: sum(claim.verdict == each for claim in tested) for each in VERDICTS}
    words = [f"{counts[first]} {'is' if counts[first] == 1 else 'are'} {first}"]
    words += [f"{counts[verdict]} {verdict}" for verdict in others]
    return f"Of {format_count(len(tested), 'claim')} tested, {', '.join(words)}."


def _describe_pretrainings(claim: ClaimResult) -> str:
    """Over how many pretrainings a claim was judged."""
    count = claim.pretrainings
    if count is None:
        return "Counted, not trained: luck has no part in these models."
    if count == 1:
        return "Each model was trained once: another training might come out differently."
    return f"Every model was trained {count} times or more; the verdict allows for their luck."


def _describe_chance(claim: ClaimResult) -> str:
    """The corrected p of a claim, and why an interval off the line may still decide nothing."""
    assert claim.p_holm is not None
    text = f"{p_value(claim.p_holm)} after correction for all claims tested"
    off = any(each.verdict in ("confirmed", "contradicted") for each in claim.comparisons)
    if claim.verdict == "undecided" and off:
        text += "; an interval beside the line is not enough among so many"
    return text


@dataclass(frozen=True)
class Effect:
    """A comparison in words, and as a bar from 0 to 100; right of the threshold, 50, is claimed."""

    value: str
    interval: str
    threshold: str
    at: float
    low: float
    high: float


def make_effect(result: ComparisonResult) -> Effect:
    """The bar of a comparison that was made."""
    assert result.value is not None
    low, high = (result.value if each is None else each for each in (result.low, result.high))
    farthest = max(abs(each - result.threshold) for each in (result.value, low, high))
    half = _WIDER * farthest or 1.0
    place = [50 + 50 * (each - result.threshold) / half for each in (result.value, low, high)]
    ends = f"[{_number(result, low)}, {_number(result, high)}]" if result.low is not None else ""
    return Effect(_words(result, result.value), ends, _words(result, result.threshold), *place)


def _words(result: ComparisonResult, value: float) -> str:
    text = _number(result, value)
    if result.scale == "log":
        return f"factor {text}"
    return f"{text} points" if _is_in_points(result) else text


def _number(result: ComparisonResult, value: float) -> str:
    if result.scale == "log":
        return number(math.exp(value), 2)
    return points(value) if _is_in_points(result) else format_signed(value)


def _is_in_points(result: ComparisonResult) -> bool:
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
