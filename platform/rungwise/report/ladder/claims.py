"""The claims section: verdict marks, sentences about luck, and comparisons as bars.

The ranking of a ladder: its rungs by one score, and how far each is behind the best.

The score is the first of these that two rungs have: perplexity (bits per byte if tokenizers
differ), the mean of tasks, any other. Pseudo-likelihoods are not ranked.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rungwise.core.stages.artifact import Artifact
from rungwise.core.wording import format_count, list_first
from rungwise.evaluation.comparison.claims import (
    TASKS,
    VERDICTS,
    ClaimResult,
    ClaimsSummary,
    ComparisonResult,
    Verdict,
)
from rungwise.evaluation.comparison.table import TaskMean
from rungwise.evaluation.statistics import Estimate
from rungwise.evaluation.suites.items import METRICS, contrast
from rungwise.evaluation.suites.section import Column, MeasuredRung
from rungwise.report.formats import (
    format_signed,
    interval,
    metric_name,
    number,
    p_value,
    points,
    points_interval,
    score,
)
from rungwise.report.ladder.rungs import TASKS_MEAN

_NAMED = 2  # at most besides the best two, in a sentence


@dataclass(frozen=True)
class Ranked:
    """A rung with its score. `behind` is how much worse it is than the best, above 0 if worse: a
    difference of scores, or of logarithms for those compared by their ratio. None for the best."""

    name: str
    value: Estimate
    behind: Estimate | None


@dataclass(frozen=True)
class Ranking:
    """Rungs by one score, the best first."""

    column: Column
    rungs: tuple[Ranked, ...]

    def sentence(self) -> str:
        """`gpt has the lowest perplexity, 41.2 [40.0, 42.3]; lstm has 45.3, 1.10 times [1.05,
        1.15], ngram3 60.1.`"""
        best, *others = self.rungs
        metric, name = self.column.metric, self.column.name
        if not others:
            return f"{best.name} has a {name} of {self._value(best)}{self._floor()}."
        second, *rest = others
        extreme = "highest" if METRICS[metric].higher_is_better else "lowest"
        parts = [f"{second.name} has {score(second.value.mean, metric)}, {self._gap(second)}"]
        parts += [f"{each.name} {score(each.value.mean, metric)}" for each in rest]
        beside = list_first(parts, _NAMED + 1)
        return (
            f"{best.name} has the {extreme} {name}, {self._value(best)}; {beside}{self._floor()}."
        )

    def _floor(self) -> str:
        """How many rungs pass the highest value that takes no pretraining; "" without one."""
        floors = self.column.floors
        if not floors:
            return ""
        name = max(floors, key=lambda each: floors[each])
        above = sum(each.value.mean > floors[name] for each in self.rungs)
        value = score(floors[name], self.column.metric)
        return f"; above {name} ({value}): {above} of {len(self.rungs)}"

    def headline(self) -> str:
        """`perplexity: gpt 41.2 [40.0, 42.3], lstm 45.3 [44.1, 46.6]; lstm 1.1 times [1.0, 1.2]`"""
        names = list_first([f"{each.name} {self._value(each)}" for each in self.rungs], _NAMED + 2)
        if len(self.rungs) == 1:
            return f"{self.column.name}: {names}"
        second = self.rungs[1]
        gap = f"{second.name} {self._gap(second)}"
        return f"{self.column.name}: {names}; {gap}{self._floor()}"

    def _value(self, each: Ranked) -> str:
        metric = self.column.metric
        mark = " (settings chosen on this text)" if each.name in self.column.chosen else ""
        return f"{score(each.value.mean, metric)} {interval(each.value, metric)}{mark}"

    def _gap(self, each: Ranked) -> str:
        """How far behind the best, in words."""
        gap, metric = each.behind, self.column.metric
        assert gap is not None, "the best is behind nothing"
        if METRICS[metric].is_ratio:
            value, low, high = (number(math.exp(b), 2) for b in (gap.mean, gap.low, gap.high))
            size = f"{value} times [{low}, {high}]"
        elif metric == "bits_per_byte":
            size = (
                f"{format_signed(gap.mean)} [{format_signed(gap.low)}, {format_signed(gap.high)}]"
            )
        else:
            ahead = Estimate(-gap.mean, -gap.high, -gap.low, gap.count)
            size = f"{points(ahead.mean)} points {points_interval(ahead)}"
        return size if gap.low > 0 else f"{size}, which may be luck"


def rank_rungs(
    rungs: Sequence[MeasuredRung], columns: Sequence[Column], averages: Mapping[str, TaskMean]
) -> Ranking | None:
    """The ranking by the first score that compares rungs; None if there is no score at all."""
    by_name = {rung.name: rung for rung in rungs}

    def preference(column: Column) -> tuple[bool, bool, bool, bool]:
        exact = sum(cell.exact for cell in column.cells.values())
        return (
            exact < 2,
            not (column.metric == "perplexity" and column.best),
            column.metric != "bits_per_byte",
            column.name != TASKS_MEAN,
        )

    column = min(columns, key=preference, default=None)
    if column is None:
        return None
    if column.name == TASKS_MEAN:
        ranked = [Ranked(name, each.mean, each.behind) for name, each in averages.items()]
        return Ranking(column, tuple(ranked))
    sign = 1 if METRICS[column.metric].higher_is_better else -1
    cells = {name: cell.value for name, cell in column.cells.items() if cell.exact}
    order = sorted(cells, key=lambda name: -sign * cells[name].mean)
    if not order:
        return None
    key = column.suite, column.under, column.metric
    best = by_name[order[0]].items(key)
    ranked = [Ranked(order[0], cells[order[0]], None)]
    for name in order[1:]:
        gap = contrast(
            [(sign, best), (-sign, by_name[name].items(key))], log=METRICS[column.metric].is_ratio
        )
        ranked.append(Ranked(name, cells[name], gap.estimate()))
    return Ranking(column, tuple(ranked))


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


def list_verdicts_at(
    inputs: Mapping[str, Artifact], claims_at: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """The verdicts of each claim at the shares of the budget at which it was tested."""
    verdicts: dict[str, dict[str, str]] = {}
    for budget, title in claims_at.items():
        for claim in ClaimsSummary.of(inputs[title]).claims:
            if claim.verdict != "not tested":
                verdicts.setdefault(claim.id, {})[budget] = claim.verdict
    return verdicts


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
