"""Claims stage: test claims from the history of pretraining on the rungs of a ladder.

    items of every rung ──────────┐
    scores of fine-tuned seeds ───┼──> comparisons with 95 % intervals ──> one verdict per claim
    claims.yaml ──────────────────┘

claims.yaml states each claim and what would contradict it, written before any run. A claim with
missing rungs can be contradicted but not supported; it is `not tested` if nothing can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
from rungwise.evaluation.suites.items import METRICS, Items, contrast
from rungwise.evaluation.suites.measure import items_of_rung

TASKS = "tasks"  # `Comparison.of`: the judged metric, averaged over all tasks
FEW = "few"  # the smallest label budget
LAST = "last"  # the highest layer of a rung

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
    text = (resources.files("rungwise.evaluation.comparison") / "claims.yaml").read_text("utf-8")
    return validate(Claims, yaml.safe_load(text), source="claims.yaml")


class ClaimsConfig(Config):
    """The rungs of the ladder by name, the first of each variant first."""

    rungs: tuple[str, ...]


class Compared(Part):
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


class Judged(Part):
    id: str
    says: str
    contradicted_by: str
    comparisons: tuple[Compared, ...]
    verdict: Verdict


class ClaimsSummary(Summary):
    claims: tuple[Judged, ...]


def judge_claims(
    config: ClaimsConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> ClaimsSummary:
    """Judge every claim and write `claims.csv`.

    Inputs: the measurement of each rung (`measured_name`) and every evaluation on a task.
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
    return str(Title("measure", variant=rung))


def verdict_of(value: Estimate, threshold: float) -> Verdict:
    """The verdict of an interval; unresolved if it straddles the threshold or is NaN."""
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
    """The estimate, or the terms that are missing."""
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
    """The part that a term names, with a trailing `last` replaced by the highest number."""
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
    """The estimate over seeds, averaged over tasks that have all terms; else the missing terms."""
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
