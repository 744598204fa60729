"""Claims stage: test the claims of claims.yaml, written before any run, on a ladder's rungs. The p
of a claim, doubled for two verdicts, is corrected for all claims that were tested (Holm): where
nothing differs, a page has any verdict in at most 5 of 100 cases. Contrasts of variants on tasks
have the luck of examples, fine-tuning and pretraining."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import Field

from rungwise.core.configuration.canonical import csv_bytes, fingerprint
from rungwise.core.configuration.config import Config, validate
from rungwise.core.stages.artifact import Artifact, Summary, SummaryPart
from rungwise.core.stages.stage import Context, StageType
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.comparison.errors import run_sums
from rungwise.evaluation.comparison.summary import EvaluateSummary, independent_scores
from rungwise.evaluation.statistics import Contrast, Error, Estimate, combine, holm, leave_one_out
from rungwise.evaluation.suites.items import METRICS, ItemKey, Items, contrast, read_items
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import TaskSummary
from rungwise.tasks.kinds.kind import TaskKind
from rungwise.tasks.scoring.metrics import metric_range

Term = tuple[float, "Runs"]  # a weight and what it weighs
TASKS = "tasks"  # `Comparison.of`: the judged metric, averaged over all tasks
FEW = "few"  # the smallest label budget
_AT = "@"  # between a rung and a label budget
_ENDS = {"first": min, "last": max}  # of the numbers of a part: layers of a rung, lengths of texts
Verdict = Literal["confirmed", "contradicted", "undecided", "not tested"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
RungItems = Mapping[ItemKey, Sequence[Items]]  # one for each seed of pretraining
LadderItems = Mapping[str, RungItems]
# A contrast, the smallest number of pretrainings in it, and the terms that a ladder lacks.
_Compared = tuple[Contrast | None, int | None, tuple[str, ...]]
_LEVEL = 0.05  # over all claims of a page


@dataclass(frozen=True)
class Runs:
    """The runs of a variant on a task: sums (P S, N, k), seed by seed of each pretraining.
    `pretrained` is the fingerprint of the first one; None for random weights."""

    variant: str
    kind: TaskKind
    sums: NDArray[np.float64]
    pretrainings: int
    pretrained: str | None

    def values(self) -> list[float]:
        """Scores without a common luck: per pretraining, or per seed if there is one."""
        return independent_scores(
            self.kind.value(self.sums.sum(axis=1)).tolist(), self.pretrainings
        )


def read_runs(evaluation: Artifact, task: Artifact) -> dict[str, Runs]:
    summary, kind = EvaluateSummary.of(evaluation), task_kind(TaskSummary.of(task).info)
    sums, runs = run_sums(evaluation, task), {}
    for name, variant in summary.variants.items():
        seeds = [row.seed for row in summary.rows if row.variant == name]
        runs[name] = Runs(
            variant=name,
            kind=kind,
            sums=np.stack([sums[name, seed] for seed in seeds]),
            pretrainings=summary.pretrainings(name),
            pretrained=variant.pretraining and variant.pretraining.fingerprint,
        )
    return runs


def contrast_tasks(tasks: Sequence[Sequence[Term]]) -> Contrast:
    """A weighted sum of scores, averaged over tasks. Uses of the same pretrainings share its luck,
    on several tasks too; with one pretraining, runs on a task are paired by their seed."""
    groups: dict[str, NDArray[np.float64]] = {}
    names: dict[str | None, str] = {}
    examples, count = [], 0
    for place, terms in enumerate(tasks):
        weights = np.array([weight / len(runs.sums) for weight, runs in terms for _ in runs.sums])
        kind = terms[0][1].kind
        error = leave_one_out(
            np.concatenate([runs.sums for _, runs in terms]),
            lambda totals, w=weights, k=kind: k.value(totals) @ w,
        )
        examples.append(Error(error.size / len(tasks), error.freedom))
        count += terms[0][1].sums.shape[1]
        for weight, runs in terms:
            own = weight / len(tasks) * np.array(runs.values())
            group = f"task {place}"
            if runs.pretrainings > 1:  # the group of the variant or its weights on other tasks
                group = names.get(runs.variant) or names.get(runs.pretrained) or runs.variant
                names |= {key: group for key in (runs.variant, runs.pretrained) if key is not None}
            groups[group] = groups.get(group, 0.0) + own
    trainings = [group.tolist() for group in groups.values()]
    mean = sum(float(np.mean(each)) for each in trainings)
    return combine(mean, trainings, examples, count)


def average_tasks(tasks: Mapping[str, Mapping[str, Runs]]) -> dict[str, Estimate]:
    """The mean of every variant that was tried on all tasks, the best first; {} without a task."""
    if not tasks:
        return {}
    common = set.intersection(*(set(runs) for runs in tasks.values()))
    bounds = [metric_range(next(iter(runs.values())).kind.info.metric) for runs in tasks.values()]
    means = {
        variant: contrast_tasks([[(1.0, runs[variant])] for runs in tasks.values()])
        for variant in common
    }
    order = sorted(means, key=lambda variant: -means[variant].mean)
    low, high = (sum(each) / len(each) for each in zip(*bounds, strict=True))
    return {variant: means[variant].estimate(low, high) for variant in order}


TaskRuns = Mapping[int | None, Mapping[str, Mapping[str, Runs]]]  # by budget, task and variant


class ClaimComparison(Config):
    """A weighted sum of scores that is above `threshold` where the claim holds; see claims.yaml."""

    of: str
    metric: str | None = None
    terms: dict[str, float] = Field(min_length=2)
    scale: Literal["plain", "log"] = "plain"
    threshold: float = 0.0


class ComparisonResult(SummaryPart):
    """A comparison with its 95 % interval and its one-sided p; `value` is None if rungs or parts
    are `missing`, `pretrainings` the smallest number of a rung in it, None if all are counted. Its
    `count` examples are worth as much as `effective` of equal weight."""

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
    effective: float | None = None
    pretrainings: int | None = None
    missing: tuple[str, ...] = ()
    verdict: Verdict


def compare(
    comparison: ClaimComparison, rungs: LadderItems, runs: TaskRuns, counted: Collection[str]
) -> ComparisonResult:
    """Make a comparison, or name what it lacks. `counted` rungs have no luck of training."""
    if comparison.of == TASKS:
        value, pretrainings, missing = _compare_tasks(comparison.terms, runs)
    else:
        value, pretrainings, missing = _compare_suite(comparison, rungs, counted)
    fields: dict[str, Any] = comparison.model_dump()
    if value is None:
        return ComparisonResult(**fields, missing=missing, verdict="not tested")
    threshold = comparison.threshold
    below: Verdict = "contradicted" if value.high < threshold else "undecided"
    low, high = (bound if math.isfinite(bound) else None for bound in (value.low, value.high))
    return ComparisonResult(
        **fields,
        value=value.mean,
        low=low,
        high=high,
        p_above=value.p_above(threshold),
        p_below=value.p_below(threshold),
        count=value.count,
        effective=min(value.examples.freedom + 1, value.count),
        pretrainings=pretrainings,
        verdict="confirmed" if value.low > threshold else below,
    )


def _compare_suite(
    comparison: ClaimComparison, rungs: LadderItems, counted: Collection[str]
) -> _Compared:
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
        return None, None, tuple(missing)
    value = contrast(terms, log=comparison.scale == "log", models=names)
    seeds = zip(names, terms, strict=True)
    counts = [len(own) for name, (_, own) in seeds if name not in counted]
    return value, min(counts, default=None), ()


def _resolve_part(part: str, suite: str, metric: str, results: RungItems) -> str:
    """The part that a term names; a trailing `first` or `last` is its lowest or highest number."""
    words, _, place = part.rpartition(" ")
    if place not in _ENDS:
        return part
    parts = [name for of, name, by in results if (of, by) == (suite, metric)]
    matches = (re.fullmatch(rf"{re.escape(words)} (\d+)", name) for name in parts)
    numbers = [int(match[1]) for match in matches if match]
    return f"{words} {_ENDS[place](numbers)}" if numbers else part


def _compare_tasks(terms: Mapping[str, float], runs: TaskRuns) -> _Compared:
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
        return None, None, tuple(missing) or tuple(terms)
    counts = [own.pretrainings for terms in tasks for _, own in terms if own.pretrained is not None]
    return contrast_tasks(tasks), min(counts, default=None), ()


class Claim(Config):
    """A claim as the field puts it and in plain words, and what would contradict it."""

    says: str
    plainly: str
    contradicted_by: str
    comparisons: list[ClaimComparison] = Field(min_length=1)


class Claims(Config):
    claims: dict[str, Claim]


@cache
def registered_claims() -> Claims:
    text = (resources.files("rungwise.evaluation.comparison") / "claims.yaml").read_text("utf-8")
    return validate(Claims, yaml.safe_load(text), source="claims.yaml")


class ClaimsConfig(Config):
    """The rungs by name, each with the names of its measurements, one per seed of pretraining;
    `counted` are those without any luck of training."""

    measured: dict[str, tuple[str, ...]]
    counted: tuple[str, ...] = ()


class ClaimResult(SummaryPart):
    """A claim with its verdict; `p` is for either verdict, `p_holm` corrected for all claims."""

    id: str
    says: str
    plainly: str
    contradicted_by: str
    comparisons: tuple[ComparisonResult, ...]
    p: float | None
    p_holm: float | None
    verdict: Verdict

    @property
    def pretrainings(self) -> int | None:
        """The smallest number of pretrainings of a trained rung in it."""
        counts = [each.pretrainings for each in self.comparisons if each.pretrainings is not None]
        return min(counts, default=None)


class ClaimsSummary(Summary):
    """`averages` are over all tasks, the best first; `seeds` is the number of fine-tuning runs of
    each pretraining, None without tasks."""

    claims: tuple[ClaimResult, ...]
    averages: dict[str, Estimate]
    seeds: int | None


def judge_claims(
    config: ClaimsConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> ClaimsSummary:
    """Judge every claim and write `claims.csv`. Inputs: the measurements of each rung, and every
    evaluation with its task."""
    rungs = {
        rung: _read_seeds([inputs[name] for name in names])
        for rung, names in config.measured.items()
    }
    tasks = {
        artifact.fingerprint: artifact for artifact in inputs.values() if artifact.stage == "task"
    }
    runs: dict[int | None, dict[str, Mapping[str, Runs]]] = {}
    seeds = None
    for artifact in inputs.values():
        if artifact.stage == "evaluate":
            evaluation = EvaluateSummary.of(artifact)
            task = tasks[artifact.record["inputs"]["task"]["fingerprint"]]
            runs.setdefault(evaluation.budget, {})[evaluation.task] = read_runs(artifact, task)
            seeds = len(evaluation.seeds)
    results: dict[str, list[ComparisonResult]] = {}
    registered = registered_claims().claims
    for number, (name, claim) in enumerate(registered.items()):
        results[name] = [compare(each, rungs, runs, config.counted) for each in claim.comparisons]
        context.report.progress(number + 1, len(registered))
    claims = decide_claims(registered, results)
    rows = [
        {"claim": claim.id, "claim_verdict": claim.verdict, "claim_p_holm": claim.p_holm}
        | each.model_dump(mode="json")
        for claim in claims
        for each in claim.comparisons
    ]
    output.write_bytes("claims.csv", csv_bytes(rows))
    counts = [(verdict, [c.verdict for c in claims].count(verdict)) for verdict in VERDICTS]
    return ClaimsSummary(
        claims=tuple(claims),
        averages=average_tasks(runs.get(None, {})),
        seeds=seeds,
        show=("claims.csv",),
        headline="claims: " + ", ".join(f"{count} {verdict}" for verdict, count in counts),
    )


CLAIMS = StageType(
    "claims",
    5,
    judge_claims,
    ClaimsSummary,
    outside=lambda _: {"claims": fingerprint(registered_claims().model_dump(mode="json"))},
)


def _read_seeds(measured: Sequence[Artifact]) -> RungItems:
    """The items of a rung by key, of each seed. The first suite of a kind also goes by its kind."""
    seeds = [read_items(artifact) for artifact in measured]
    items = {key: [each[key] for each in seeds] for key in seeds[0]}
    suites = measured[0].record["config"]["suites"]
    first = {config["kind"]: name for name, config in reversed(suites.items())}
    kinds = {name: kind for kind, name in first.items() if kind not in suites}
    by_kind = {(kinds[key[0]], *key[1:]): own for key, own in items.items() if key[0] in kinds}
    return items | by_kind


def decide_claims(
    registered: Mapping[str, Claim], results: Mapping[str, Sequence[ComparisonResult]]
) -> list[ClaimResult]:
    """One verdict for each claim, at a level of 5 % over all of them."""
    sides = {name: claim_p(each) for name, each in results.items()}
    both = {name: min(1.0, 2 * min(each)) for name, each in sides.items() if each is not None}
    corrected = dict(zip(both, holm(list(both.values())), strict=True))
    claims = []
    for name, claim in registered.items():
        verdict: Verdict = "not tested"
        if (side := sides[name]) is not None:
            verdict = "confirmed" if side[0] < side[1] else "contradicted"
            verdict = verdict if corrected[name] < _LEVEL else "undecided"
        claims.append(
            ClaimResult(
                id=name,
                **claim.model_dump(include={"says", "plainly", "contradicted_by"}),
                comparisons=tuple(results[name]),
                p=both.get(name),
                p_holm=corrected.get(name),
                verdict=verdict,
            )
        )
    return claims


def claim_p(results: Sequence[ComparisonResult]) -> tuple[float, float] | None:
    """The p that a claim is confirmed, the largest (Berger 1982, "Multiparameter hypothesis testing
    and acceptance sampling", Technometrics 24), and that it is contradicted, the smallest times
    their number (Bonferroni); None if nothing was compared."""
    tests = [each for each in results if each.verdict != "not tested"]
    if not tests:
        return None
    above = max(each.p_above for each in tests) if len(tests) == len(results) else 1.0
    return above, min(1.0, len(tests) * min(each.p_below for each in tests))
