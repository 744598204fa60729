"""The comparisons of a claim: weighted sums of scores of rungs, each with its interval and its p.

items of a suite, per rung and seed ────> contrast ────────┐
runs of tasks, per variant and budget ──> contrast_tasks ──┴──> ComparisonResult
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import Field

from rungwise.core.configuration.config import Config
from rungwise.core.stages.summary import SummaryPart
from rungwise.evaluation.comparison.task_contrast import Runs, Term, contrast_tasks
from rungwise.evaluation.statistics import Contrast
from rungwise.evaluation.suites.items import METRICS, ItemKey, Items, contrast

TASKS = "tasks"  # `Comparison.of`: the judged metric, averaged over all tasks
FEW = "few"  # the smallest label budget
_AT = "@"  # between a rung and a label budget
_ENDS = {"first": min, "last": max}  # of the numbers of a part: layers of a rung, lengths of texts

Verdict = Literal["confirmed", "contradicted", "undecided", "not tested"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
RungItems = Mapping[ItemKey, Sequence[Items]]  # one for each seed of pretraining
TaskRuns = Mapping[int | None, Mapping[str, Mapping[str, Runs]]]  # by budget, task and variant


class ClaimComparison(Config):
    """A weighted sum of scores that is above `threshold` where the claim holds; see claims.yaml."""

    of: str
    metric: str | None = None
    terms: dict[str, float] = Field(min_length=2)
    scale: Literal["plain", "log"] = "plain"
    threshold: float = 0.0


class ComparisonResult(SummaryPart):
    """A comparison with its 95 % interval and the one-sided p of a value above and below its
    threshold; `value` is None if rungs or parts are `missing`. `pretrainings` is the smallest
    number of pretrainings of a rung in it, None if all are counted."""

    of: str
    metric: str | None
    terms: dict[str, float]
    scale: str
    threshold: float
    value: float | None = None
    low: float | None = None
    high: float | None = None
    p_above: float = 1.0
    p_below: float = 1.0
    count: int = 0
    pretrainings: int | None = None
    missing: tuple[str, ...] = ()
    verdict: Verdict


def interval_verdict(low: float, high: float, threshold: float) -> Verdict:
    """The verdict of one interval by itself; undecided if it has the threshold or is NaN."""
    if low > threshold:
        return "confirmed"
    return "contradicted" if high < threshold else "undecided"


def compare(
    comparison: ClaimComparison,
    rungs: Mapping[str, RungItems],
    runs: TaskRuns,
    counted: Collection[str],
) -> ComparisonResult:
    """Make a comparison, or name what it lacks. `counted` rungs have no luck of training."""
    if comparison.of == TASKS:
        result = _compare_tasks(comparison.terms, runs)
    else:
        result = _compare_suite(comparison, rungs, counted)
    fields: dict[str, Any] = comparison.model_dump()
    if not isinstance(result, _Compared):
        return ComparisonResult(**fields, missing=result, verdict="not tested")
    value = result.contrast
    low, high = (None if math.isnan(bound) else bound for bound in (value.low, value.high))
    return ComparisonResult(
        **fields,
        value=value.mean,
        low=low,
        high=high,
        p_above=value.p_above(comparison.threshold),
        p_below=value.p_below(comparison.threshold),
        count=value.count,
        pretrainings=result.pretrainings,
        verdict=interval_verdict(value.low, value.high, comparison.threshold),
    )


@dataclass(frozen=True)
class _Compared:
    """A contrast, and the smallest number of pretrainings in it, None if all rungs are counted."""

    contrast: Contrast
    pretrainings: int | None


_Missing = tuple[str, ...]  # the terms of a comparison that a ladder lacks


def _compare_suite(
    comparison: ClaimComparison, rungs: Mapping[str, RungItems], counted: Collection[str]
) -> _Compared | _Missing:
    metric = comparison.metric or "accuracy"
    sign = 1.0 if METRICS[metric].higher_is_better else -1.0
    terms: list[tuple[float, Sequence[Items]]] = []
    names, missing = [], []
    for term, weight in comparison.terms.items():
        rung, _, part = term.partition("/")
        results = rungs.get(rung, {})
        key = comparison.of, _resolve_part(part, comparison.of, metric, results), metric
        if key in results:
            terms.append((sign * weight, results[key]))
            names.append(rung)
        else:
            missing.append(term)
    if missing:
        return tuple(missing)
    value = contrast(terms, log=comparison.scale == "log", models=names)
    pretrainings = [
        len(seeds) for name, (_, seeds) in zip(names, terms, strict=True) if name not in counted
    ]
    return _Compared(value, min(pretrainings, default=None))


def _resolve_part(part: str, suite: str, metric: str, results: RungItems) -> str:
    """The part that a term names, with a trailing `first` or `last` replaced by the lowest or the
    highest number."""
    words, _, place = part.rpartition(" ")
    if place not in _ENDS:
        return part
    numbers = [
        int(number)
        for item_suite, name, item_metric in results
        for before, _, number in [name.rpartition(" ")]
        if (item_suite, before, item_metric) == (suite, words, metric) and number.isdecimal()
    ]
    return f"{words} {_ENDS[place](numbers)}" if numbers else part


def _compare_tasks(terms: Mapping[str, float], runs: TaskRuns) -> _Compared | _Missing:
    """Over all tasks that have every term."""
    few = min((budget for budget in runs if budget is not None), default=None)
    tasks: list[list[Term]] = []
    missing: dict[str, None] = {}
    for task in runs.get(None, {}):
        task_terms: list[Term] = []
        for term, weight in terms.items():
            rung, _, name = term.partition(_AT)
            budget = few if name == FEW else int(name) if name else None
            variants = runs.get(budget, {}).get(task, {})
            if rung in variants and not (name and budget is None):
                task_terms.append((weight, variants[rung]))
            else:
                missing[term] = None
        if len(task_terms) == len(terms):
            tasks.append(task_terms)
    if not tasks:
        return tuple(missing) or tuple(terms)
    pretrainings = min(
        (
            own.pretrainings
            for task_terms in tasks
            for _, own in task_terms
            if own.pretrained is not None
        ),
        default=None,
    )
    return _Compared(contrast_tasks(tasks), pretrainings)
