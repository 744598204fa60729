"""Claims stage: test claims from the history of pretraining on the rungs of a ladder.

    items of every rung ──────────┐
    scores of fine-tuned seeds ───┼──> comparisons with 95 % intervals ──> one verdict per claim
    claims.yaml ──────────────────┘

claims.yaml states each claim and what would contradict it, written before any run. A claim with
missing rungs can be contradicted but not supported; it is `not tested` if nothing can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

import yaml
from pydantic import Field

from rungwise.core.configuration.canonical import fingerprint
from rungwise.core.configuration.config import Config, validate
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.stages.stage import StageType
from rungwise.core.stages.summary import Part, Summary
from rungwise.core.stages.title import Title
from rungwise.core.storage.folder import Folder
from rungwise.core.tables import csv_bytes
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.evaluation.statistics import Estimate, estimate
from rungwise.evaluation.suites.items import METRICS, ItemKey, Items, contrast
from rungwise.evaluation.suites.measure import read_items

TASKS = "tasks"  # `Comparison.of`: the judged metric, averaged over all tasks
FEW = "few"  # the smallest label budget
LAST = "last"  # the highest layer of a rung

Verdict = Literal["supported", "contradicted", "unresolved", "not tested"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
RungItems = Mapping[ItemKey, Items]


class Comparison(Config):
    """A weighted sum of scores that is above `threshold` where the claim holds; see claims.yaml."""

    of: str
    metric: str | None = None
    terms: dict[str, float] = Field(min_length=2)
    scale: Literal["plain", "log"] = "plain"
    threshold: float = 0.0


class Claim(Config):
    """A claim, and what would contradict it."""

    says: str
    contradicted_by: str
    comparisons: list[Comparison] = Field(min_length=1)


class Claims(Config):
    """A file of claims by id."""

    claims: dict[str, Claim]


@cache
def registered_claims() -> Claims:
    text = (resources.files("rungwise.evaluation.comparison") / "claims.yaml").read_text("utf-8")
    return validate(Claims, yaml.safe_load(text), source="claims.yaml")


class ClaimsConfig(Config):
    """The rungs of the ladder by name, the first of each variant first."""

    rungs: tuple[str, ...]


class ComparisonResult(Part):
    """A comparison with its 95 % interval; `value` is None if rungs or parts are `missing`."""

    of: str
    metric: str | None
    terms: dict[str, float]
    scale: str
    threshold: float
    value: float | None = None
    low: float | None = None
    high: float | None = None
    count: int = 0
    missing: tuple[str, ...] = ()
    verdict: Verdict


class ClaimResult(Part):
    id: str
    says: str
    contradicted_by: str
    comparisons: tuple[ComparisonResult, ...]
    verdict: Verdict


class ClaimsSummary(Summary):
    claims: tuple[ClaimResult, ...]


def judge_claims(
    config: ClaimsConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> ClaimsSummary:
    """Judge every claim and write `claims.csv`.

    Inputs: the measurement of each rung (`measure_name`) and every evaluation on a task.
    """
    rungs = {
        rung: read_items(artifact)
        for rung in config.rungs
        if (artifact := inputs.get(measure_name(rung))) is not None
    }
    evaluations = [EvaluateSummary.of(each) for each in inputs.values() if each.stage == "evaluate"]
    claims = []
    for number, (name, claim) in enumerate(registered_claims().claims.items()):
        results = tuple(_compare(each, rungs, evaluations) for each in claim.comparisons)
        claims.append(
            ClaimResult(
                id=name,
                says=claim.says,
                contradicted_by=claim.contradicted_by,
                comparisons=results,
                verdict=join_verdicts([each.verdict for each in results]),
            )
        )
        context.report.progress(number + 1, len(registered_claims().claims))
    output.write_bytes("claims.csv", csv_bytes(claim_rows(claims)))
    counts = [(verdict, [c.verdict for c in claims].count(verdict)) for verdict in VERDICTS]
    return ClaimsSummary(
        claims=tuple(claims),
        show=("claims.csv",),
        headline="claims: " + ", ".join(f"{count} {verdict}" for verdict, count in counts),
    )


CLAIMS = StageType(
    "claims",
    1,
    judge_claims,
    ClaimsSummary,
    outside=lambda _: {"claims": fingerprint(registered_claims().model_dump(mode="json"))},
)


def claim_rows(claims: Iterable[ClaimResult]) -> list[dict[str, Any]]:
    """The rows of `claims.csv`, one per comparison."""
    return [
        {"claim": claim.id, "claim_verdict": claim.verdict, **each.model_dump(mode="json")}
        for claim in claims
        for each in claim.comparisons
    ]


def measure_name(rung: str) -> str:
    return str(Title("measure", variant=rung))


def interval_verdict(value: Estimate, threshold: float) -> Verdict:
    """The verdict of an interval; unresolved if it straddles the threshold or is NaN."""
    if value.low > threshold:
        return "supported"
    return "contradicted" if value.high < threshold else "unresolved"


def join_verdicts(verdicts: Sequence[Verdict]) -> Verdict:
    distinct = set(verdicts)
    if distinct == {"not tested"}:
        return "not tested"
    if "contradicted" in distinct:
        return "contradicted"
    return "supported" if distinct == {"supported"} else "unresolved"


def _compare(
    comparison: Comparison,
    rungs: Mapping[str, RungItems],
    evaluations: Sequence[EvaluateSummary],
) -> ComparisonResult:
    if comparison.of == TASKS:
        result = _compare_tasks(comparison.terms, evaluations)
    else:
        result = _compare_suite(comparison, rungs)
    fields: dict[str, Any] = comparison.model_dump()
    if isinstance(result, tuple):
        return ComparisonResult(**fields, missing=result, verdict="not tested")
    low, high = (None if math.isnan(bound) else bound for bound in (result.low, result.high))
    return ComparisonResult(
        **fields,
        value=result.mean,
        low=low,
        high=high,
        count=result.count,
        verdict=interval_verdict(result, comparison.threshold),
    )


def _compare_suite(
    comparison: Comparison, rungs: Mapping[str, RungItems]
) -> Estimate | tuple[str, ...]:
    """The estimate, or the terms that are missing."""
    metric = comparison.metric or "accuracy"
    sign = 1.0 if METRICS[metric].higher_is_better else -1.0
    terms, missing = [], []
    for term, weight in comparison.terms.items():
        rung, _, part = term.partition("/")
        results = rungs.get(rung, {})
        key = comparison.of, _resolve_part(part, comparison.of, metric, results), metric
        if key in results:
            terms.append((sign * weight, [results[key]]))
        else:
            missing.append(term)
    return tuple(missing) or contrast(terms, log=comparison.scale == "log")


def _resolve_part(part: str, suite: str, metric: str, results: RungItems) -> str:
    """The part that a term names, with a trailing `last` replaced by the highest number."""
    words, _, place = part.rpartition(" ")
    if place != LAST:
        return part
    numbers = [
        int(number)
        for item_suite, name, item_metric in results
        for before, _, number in [name.rpartition(" ")]
        if (item_suite, before, item_metric) == (suite, words, metric) and number.isdecimal()
    ]
    return f"{words} {max(numbers)}" if numbers else part


def _compare_tasks(
    terms: Mapping[str, float], evaluations: Sequence[EvaluateSummary]
) -> Estimate | tuple[str, ...]:
    """The estimate over seeds, averaged over tasks that have all terms; else the missing terms."""
    few = min((each.budget for each in evaluations if each.budget is not None), default=None)
    sums: list[list[float]] = []
    missing: dict[str, None] = {}
    for task in dict.fromkeys(each.task for each in evaluations):
        task_terms: list[list[float]] = []
        for term, weight in terms.items():
            rung, name = (*term.split("@"), "")[:2]
            budget = few if name == FEW else int(name) if name else None
            scores = [
                each.scores(rung)
                for each in evaluations
                if (each.task, each.budget) == (task, budget) and rung in each.variants
            ]
            if not scores or (name and budget is None):
                missing[term] = None
            else:
                task_terms.append([weight * score for score in scores[0]])
        if len(task_terms) == len(terms):
            sums.append([sum(scores) for scores in zip(*task_terms, strict=True)])
    if not sums:
        return tuple(missing) or tuple(terms)
    return estimate([sum(scores) / len(sums) for scores in zip(*sums, strict=True)])
