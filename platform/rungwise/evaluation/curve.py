"""Curve stage: the points of runs at each share of a rung's budget: what they took, bits per byte
of the suite `perplexity`, by document too, or else the loss of the last validation, and scores on
tasks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

from pydantic import Field, field_validator

from rungwise.core.configuration.config import Config, validate
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import format_count
from rungwise.core.stages.artifact import Artifact, Summary
from rungwise.core.stages.stage import Context, StageType
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.evaluation.search import count_cost
from rungwise.evaluation.suites.items import read_items
from rungwise.forecast.laws import Point
from rungwise.tokenizer.token_stage import TokensSummary
from rungwise.training.fit_config import read_training_config
from rungwise.training.summary import PretrainSummary

POINTS = "points.json"
Of = Literal["steps", "text", "both"]


class CurveConfig(Config):
    """At which shares of its budget each rung is trained and measured, besides the whole.

    Runs by gradient that differ in their steps alone share a trunk: the longer ones go on from the
    plateau of the shorter ones, so their schedule must be warmup_stable_decay with warmup_steps.
    """

    # shares of the budget; 1 is the rung itself, which is trained once
    budgets: tuple[float, ...] = (0.125, 0.25, 0.5, 1.0)
    # what there is less of: steps (passes, where a model is trained by those), documents of the
    # training text, or both; null: steps, and text for what is counted
    of: Of | None = None
    # pretrainings with consecutive seeds at each of the smallest two budgets; their spread is the
    # noise of a forecast
    seeds: int = Field(default=3, ge=1)
    # tasks that the rungs are fine-tuned on at each budget, too, after their first pretraining
    tasks: tuple[str, ...] = ()

    @field_validator("budgets", mode="after")
    @classmethod
    def _rise_to_the_whole(cls, budgets: tuple[float, ...]) -> tuple[float, ...]:
        rise = all(a < b for a, b in zip((0.0, *budgets), budgets, strict=False))
        if not rise or len(budgets) < 2 or budgets[-1] != 1:
            raise ValueError(
                "expected two shares or more that rise from above 0 to 1, the rung itself, such as "
                f"[0.25, 0.5, 1]; found {[*budgets]}"
            )
        return budgets

    def count_seeds(self, budget: float) -> int:
        return self.seeds if budget in self.budgets[:2] and budget < 1 else 1


class CurveRun(Config):
    """A pretraining of a rung at a budget: the titles of its stages; `measure` is null where the
    loss of its validation counts. `network` is the rung that trains as the network of a mixture."""

    rung: str
    budget: float
    seed: int
    tokens: str
    pretrain: str
    measure: str | None = None
    network: str = ""


class CurveStageConfig(Config):
    """The runs, the name of the suite that measures them, the titles of the stages that compare
    them on tasks, and why other rungs have none."""

    runs: tuple[CurveRun, ...]
    suite: str
    compared: tuple[str, ...] = ()
    passed_over: dict[str, str]


class CurveSummary(Summary):
    points: int
    passed_over: dict[str, str]
    metrics: dict[str, str] = Field(default_factory=dict)  # what scores on each task are


def read_points(artifact: Artifact) -> list[Point]:
    """The points of a finished curve, by rung, budget and seed."""
    rows = json.loads(artifact.folder.read_bytes(POINTS))
    return [
        Point(**row | {"documents": row["documents"] and tuple(row["documents"])}) for row in rows
    ]


def gather_points(
    config: CurveStageConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> CurveSummary:
    """Write the points. Inputs: the stages of the runs and those that compare them, by title."""
    comparisons = [EvaluateSummary.of(inputs[title]) for title in config.compared]
    points = [
        replace(
            _read_point(config.suite, run, inputs), scores=_read_scores(run, inputs, comparisons)
        )
        for run in config.runs
    ]
    output.write_bytes(POINTS, json.dumps([*map(asdict, points)], indent=1).encode())
    rungs = len({run.rung for run in config.runs})
    return CurveSummary(
        points=len(points),
        passed_over=config.passed_over,
        metrics={each.task: each.metric for each in comparisons},
        show=(POINTS,),
        headline=f"{format_count(len(points), 'point')} of {format_count(rungs, 'rung')}; all "
        f"budgets once cost {_count_cost_ratio(config.runs, inputs):.2f} times the largest",
    )


CURVE = StageType("curve", 3, gather_points, CurveSummary)


def _read_point(suite: str, run: CurveRun, inputs: Mapping[str, Artifact]) -> Point:
    pretrain = PretrainSummary.of(inputs[run.pretrain])
    point: dict[str, Any] = {
        "rung": run.rung,
        "budget": run.budget,
        "seed": run.seed,
        "tokens": float(pretrain.tokens),
        "distinct": float(TokensSummary.of(inputs[run.tokens]).tokens.train),
        "seconds": pretrain.seconds * _count_cores(inputs[run.pretrain]),
        "fitted": "counts" if _is_counted(inputs[run.pretrain]) else "gradient",
        "family": pretrain.model.kind,
        "network": run.network,
    }
    if run.measure is None:
        objective = pretrain.model.objective(pretrain.objective)
        bits = pretrain.final[objective.tokens.loss_key] / math.log(2)
        return Point(**point, bits=bits, measure="bits_per_masked_token")
    nats, sizes = read_items(inputs[run.measure])[suite, "", "bits_per_byte"].numbers.T
    bits = nats / math.log(2)
    return Point(**point, bits=bits.sum() / sizes.sum(), documents=tuple((bits / sizes).tolist()))


def _read_scores(
    run: CurveRun, inputs: Mapping[str, Artifact], comparisons: Sequence[EvaluateSummary]
) -> dict[str, list[float]]:
    """The judged scores of a run by task; none of a seed of pretraining after the first."""
    scores: dict[str, list[float]] = {}
    for each in comparisons:
        result = each.variants.get(run.rung)
        trained = result.pretraining if result else None
        if trained and trained.fingerprint == inputs[run.pretrain].fingerprint:
            first = [row for row in each.rows if row.variant == run.rung and not row.pretraining]
            scores[each.task] = [row.test[each.metric] for row in first]
    return scores


def _is_counted(pretrain: Artifact) -> bool:
    """Whether a model takes what it takes, and not longer where it is told to."""
    config = read_training_config(pretrain)
    return config.pretrain.length_key(config.model) is None


def _count_cores(pretrain: Artifact) -> float:
    """The cores that trained: those of the workers, and one for what is counted."""
    if _is_counted(pretrain):
        return 1.0
    compute = validate(ComputeConfig, pretrain.record["recipe"].get("compute", {}))
    return compute.num_workers * compute.cpus_per_worker


def _count_cost_ratio(runs: Sequence[CurveRun], inputs: Mapping[str, Artifact]) -> float:
    """The core-seconds of all budgets once, without steps taken over, to those of the largest."""
    by_fingerprint = {each.fingerprint: each for each in inputs.values()}
    budgets = largest = 0.0
    for run in runs:
        if run.seed != min(each.seed for each in runs if each.rung == run.rung):
            continue
        artifact = inputs[run.pretrain]
        summary, cores = PretrainSummary.of(artifact), _count_cores(artifact)
        prolonged = summary.gradient.prolonged if summary.gradient else ()
        before = by_fingerprint.get(prolonged[-1].fingerprint) if prolonged else None
        budgets += count_cost(artifact, before)[0] * cores
        largest += count_cost(artifact)[0] * cores * (run.budget == 1)
    return budgets / largest
