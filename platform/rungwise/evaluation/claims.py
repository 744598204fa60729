"""Claims stage: what the history of pretraining claims, put to the test on a ladder.

    items of every rung ──────────┐
    scores of fine-tuned seeds ───┼──> comparisons with 95 % intervals ──> a verdict a claim
    claims.yaml ──────────────────┘

The claims stand in claims.yaml with what would contradict them, written down before any run. A
verdict is one of `VERDICTS`; a claim whose rungs are not all on the ladder is judged by what could
be compared, and is `not tested` where nothing could.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

import yaml
from pydantic import Field

from rungwise.core.artifact import Artifact
from rungwise.core.config import Config, fingerprint, validate
from rungwise.core.context import Context
from rungwise.core.stage import StageType
from rungwise.core.storage import Folder
from rungwise.core.summary import Part, Summary
from rungwise.core.tables import csv_bytes
from rungwise.core.title import Title
from rungwise.evaluation.items import METRICS, Items, contrast
from rungwise.evaluation.measure import items_of_rung
from rungwise.evaluation.statistics import Estimate, estimate
from rungwise.evaluation.summary import EvaluateSummary

TASKS = "tasks"  # what a comparison is of: the judged metric of all tasks
FEW = "few"  # the smallest number of labelled examples
LAST = "last"  # the highest layer that a rung has

Verdict = Literal["supported", "contradicted", "unresolved", "not tested"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


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
def registered() -> Claims:
    """The claims of claims.yaml."""
    text = (resources.files("rungwise.evaluation") / "claims.yaml").read_text("utf-8")
    return validate(Claims, yaml.safe_load(text), source="claims.yaml")


class ClaimsConfig(Config):
    """The rungs of the ladder by name, the first of each variant first."""

    rungs: tuple[str, ...]


class Compared(Part):
    """A comparison with its 95 % interval; no value where `missing` rungs or parts keep it from
    being made."""

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


class Judged(Part):
    """A claim with its verdict."""

    id: str
    says: str
    contradicted_by: str
    comparisons: tuple[Compared, ...]
    verdict: Verdict


class ClaimsSummary(Summary):
    """Every claim with its verdict."""

    claims: tuple[Judged, ...]


def judge_claims(
    config: ClaimsConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> ClaimsSummary:
    """Put every claim to the test, and write `claims.csv`.

    Inputs: `measure` of each rung (`measured_name`), and every evaluation on a task.
    """
    measured = {
        rung: items_of_rung(artifact)
        for rung in config.rungs
        if (artifact := inputs.get(measured_name(rung))) is not None
    }
    evaluated = [EvaluateSummary.of(each) for each in inputs.values() if each.stage == "evaluate"]
    claims = []
    for number, (name, claim) in enumerate(registered().claims.items()):
        compared = [_compare(each, measured, evaluated) for each in claim.comparisons]
        claims.append(
            Judged(
                id=name,
                says=claim.says,
                contradicted_by=claim.contradicted_by,
                comparisons=tuple(compared),
                verdict=_together([each.verdict for each in compared]),
            )
        )
        context.report.progress(number + 1, len(registered().claims))
    rows = [
        {"claim": claim.id, "claim_verdict": claim.verdict, **each.model_dump(mode="json")}
        for claim in claims
        for each in claim.comparisons
    ]
    output.write_bytes("claims.csv", csv_bytes(rows))
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
    outside=lambda _: {"claims": fingerprint(registered().model_dump(mode="json"))},
)


def measured_name(rung: str) -> str:
    """The name of the input that holds what a rung was asked."""
    return str(Title("measure", variant=rung))


def verdict_of(value: Estimate, threshold: float) -> Verdict:
    """Supported above the threshold with the whole interval, contradicted below, else unresolved;
    unresolved too where there is no interval."""
    if value.low > threshold:
        return "supported"
    return "contradicted" if value.high < threshold else "unresolved"


def _together(verdicts: Sequence[Verdict]) -> Verdict:
    tested = [verdict for verdict in verdicts if verdict != "not tested"]
    if not tested:
        return "not tested"
    if "contradicted" in tested:
        return "contradicted"
    whole = len(tested) == len(verdicts) and set(tested) == {"supported"}
    return "supported" if whole else "unresolved"


def _compare(
    comparison: Comparison,
    measured: Mapping[str, Mapping[tuple[str, str, str], Items]],
    evaluated: Sequence[EvaluateSummary],
) -> Compared:
    if comparison.of == TASKS:
        result = _on_tasks(comparison.terms, evaluated)
    else:
        result = _on_suite(comparison, measured)
    plain: dict[str, Any] = comparison.model_dump()
    if isinstance(result, tuple):
        return Compared(**plain, missing=result, verdict="not tested")
    low, high = (None if math.isnan(bound) else bound for bound in (result.low, result.high))
    return Compared(
        **plain,
        value=result.mean,
        low=low,
        high=high,
        count=result.count,
        verdict=verdict_of(result, comparison.threshold),
    )


def _on_suite(
    comparison: Comparison, measured: Mapping[str, Mapping[tuple[str, str, str], Items]]
) -> Estimate | tuple[str, ...]:
    """The estimate, or the terms that were not measured."""
    metric = comparison.metric or "accuracy"
    sign = 1.0 if METRICS[metric].higher_is_better else -1.0
    terms, missing = [], []
    for term, weight in comparison.terms.items():
        rung, _, part = term.partition("/")
        of_rung = measured.get(rung, {})
        items = of_rung.get((comparison.of, _part(part, comparison.of, metric, of_rung), metric))
        if items is None:
            missing.append(term)
        else:
            terms.append((sign * weight, [items]))
    return tuple(missing) or contrast(terms, log=comparison.scale == "log")


def _part(part: str, suite: str, metric: str, of_rung: Mapping[tuple[str, str, str], Items]) -> str:
    """The part that a term names; `... last` is the one with the highest number."""
    words, _, place = part.rpartition(" ")
    if place != LAST:
        return part
    numbers = [
        int(number)
        for of_suite, name, of_metric in of_rung
        for before, _, number in [name.rpartition(" ")]
        if (of_suite, before, of_metric) == (suite, words, metric) and number.isdecimal()
    ]
    return f"{words} {max(numbers)}" if numbers else part


def _on_tasks(
    terms: Mapping[str, float], evaluated: Sequence[EvaluateSummary]
) -> Estimate | tuple[str, ...]:
    """The estimate over seeds of the mean over tasks that have all terms, or the terms that were
    not evaluated."""
    few = min((each.budget for each in evaluated if each.budget is not None), default=None)
    sums: list[list[float]] = []
    missing: dict[str, None] = {}
    for task in dict.fromkeys(each.task for each in evaluated):
        of_terms: list[list[float]] = []
        for term, weight in terms.items():
            rung, budget = (*term.split("@"), "")[:2]
            wanted = few if budget == FEW else int(budget) if budget else None
            scores = [
                each.scores_of(rung)
                for each in evaluated
                if (each.task, each.budget) == (task, wanted) and rung in each.variants
            ]
            if not scores or (budget and wanted is None):
                missing[term] = None
            else:
                of_terms.append([weight * score for score in scores[0]])
        if len(of_terms) == len(terms):
            sums.append([sum(of_seed) for of_seed in zip(*of_terms, strict=True)])
    if not sums:
        return tuple(missing) or tuple(terms)
    return estimate([sum(of_seed) / len(sums) for of_seed in zip(*sums, strict=True)])
