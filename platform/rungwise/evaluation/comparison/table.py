"""Table stage: all variants on all tasks, with differences of neighbouring rows (as in Devlin et
al. 2019, table 5) and whether their signs agree with the published ones; and contrasts of variants
on tasks, with the luck of examples, fine-tuning and pretraining."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rungwise.core.configuration.canonical import csv_bytes
from rungwise.core.configuration.config import Config
from rungwise.core.errors import ConfigError, format_count
from rungwise.core.stages.artifact import Artifact, Summary, SummaryPart
from rungwise.core.stages.stage import Context, StageType
from rungwise.core.storage.folder import Folder
from rungwise.evaluation import statistics
from rungwise.evaluation.comparison.errors import run_sums
from rungwise.evaluation.comparison.summary import (
    TABLES,
    EvaluateSummary,
    PublishedConfig,
    independent_scores,
)
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import TaskSummary
from rungwise.tasks.kinds.kind import TaskKind
from rungwise.tasks.scoring.metrics import metric_range

Term = tuple[float, "Runs"]  # a weight and what it weighs


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
    sums = run_sums(evaluation, task)
    runs = {}
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


def contrast_tasks(tasks: Sequence[Sequence[Term]]) -> statistics.Contrast:
    """A weighted sum of scores, averaged over tasks. Uses of the same pretrainings share its luck,
    on several tasks too; with one pretraining, runs on a task are paired by their seed."""
    groups: dict[str, NDArray[np.float64]] = {}
    names: dict[str | None, str] = {}
    examples, count = [], 0
    for place, terms in enumerate(tasks):
        weights = np.array([weight / len(runs.sums) for weight, runs in terms for _ in runs.sums])
        kind = terms[0][1].kind
        error = statistics.leave_one_out(
            np.concatenate([runs.sums for _, runs in terms]),
            lambda totals, w=weights, k=kind: k.value(totals) @ w,
        )
        examples.append(statistics.Error(error.size / len(tasks), error.freedom))
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
    return statistics.combine(mean, trainings, examples, count)


def average_tasks(tasks: Mapping[str, Mapping[str, Runs]]) -> dict[str, statistics.Estimate]:
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


class TableConfig(Config):
    published: PublishedConfig | None
    columns: dict[str, str | None]  # of the published table, by task


class TaskScore(SummaryPart):
    """The judged test score of a variant or a rival on a task, and the best trivial baseline."""

    task: str
    variant: str
    metric: str
    mean: float
    low: float
    high: float
    count: int
    baseline: str | None
    baseline_score: float | None


class RowDifference(SummaryPart):
    """A variant minus the one above it: Student's t interval over seeds and bootstrap interval.
    `p_holm` is the bootstrap's `p` corrected for all differences of the table."""

    task: str
    variant: str
    minus: str
    mean: float
    low: float
    high: float
    count: int
    bootstrap_low: float
    bootstrap_high: float
    p: float
    p_holm: float
    published_points: float | None
    sign: statistics.Agreement | None


class Reference(SummaryPart):
    table: str
    source: str


class TableSummary(Summary):
    scores: tuple[TaskScore, ...]
    differences: tuple[RowDifference, ...]
    published: Reference | None


def build_table(
    config: TableConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> TableSummary:
    """Write `table.csv` and `differences.csv`."""
    if config.published is not None:
        columns = TABLES[config.published.table].columns
        for task, column in config.columns.items():
            if column is not None and column not in columns:
                raise ConfigError(
                    f"tasks.{task}.published is {column!r}, which {config.published.table} lacks; "
                    f"it has: {', '.join(columns)}"
                )
    evaluations = [EvaluateSummary.of(artifact) for artifact in inputs.values()]
    whole = [each for each in evaluations if each.budget is None]
    scores = [score for each in whole for score in _task_scores(each)]
    rows = [row for each in whole for row in _row_differences(config, each)]
    ps = statistics.holm([row.p for row in rows])  # all rows are one family of comparisons
    differences = [row.model_copy(update={"p_holm": p}) for row, p in zip(rows, ps, strict=True)]
    for name, rows in (("table", scores), ("differences", differences)):
        output.write_bytes(f"{name}.csv", csv_bytes([row.model_dump() for row in rows]))
    signs = [row.sign for row in differences if row.sign is not None]
    agree = signs.count("agrees")
    resolved = agree + signs.count("disagrees")
    agreement = f"; of {len(signs)} published differences {resolved} resolved here, {agree} agree"
    variants = {name for each in whole for name in each.variants}
    table = config.published and config.published.table
    return TableSummary(
        scores=tuple(scores),
        differences=tuple(differences),
        published=table and Reference(table=table, source=TABLES[table].source),
        show=("table.csv", "differences.csv"),
        headline=f"{format_count(len(variants), 'variant')}, {format_count(len(whole), 'task')}"
        + agreement * bool(signs),
    )


TABLE = StageType("table", 7, build_table, TableSummary)


def _task_scores(evaluation: EvaluateSummary) -> list[TaskScore]:
    baseline, value = evaluation.best_trivial() or (None, None)
    own: dict[str, Any] = {"task": evaluation.task, "metric": evaluation.metric}
    own |= {"baseline": baseline, "baseline_score": value}
    return [
        TaskScore(variant=name, **asdict(estimate), **own)
        for name, estimate in evaluation.estimates().items()
    ]


def _row_differences(config: TableConfig, evaluation: EvaluateSummary) -> list[RowDifference]:
    pairs = {(each.first, each.second): each for each in evaluation.differences}
    rows = []
    for above, name in itertools.pairwise(evaluation.variants):
        pair = pairs[above, name]  # above minus name: negated below
        seeds, bootstrap = pair.seeds, pair.bootstrap
        own = statistics.Estimate(0.0 - seeds.mean, -seeds.high, -seeds.low, seeds.count)
        published = _published_points(config, evaluation.task, above, name)
        rows.append(
            RowDifference(
                task=evaluation.task,
                variant=name,
                minus=above,
                **asdict(own),
                bootstrap_low=-bootstrap.high,
                bootstrap_high=-bootstrap.low,
                p=bootstrap.p,
                p_holm=bootstrap.p,
                published_points=published,
                sign=None if published is None else statistics.sign_agreement(published, own),
            )
        )
    return rows


def _published_points(config: TableConfig, task: str, above: str, name: str) -> float | None:
    column = config.columns.get(task)
    if config.published is None or column is None:
        return None
    rows, table = config.published.rows, TABLES[config.published.table]
    if above not in rows or name not in rows:
        return None
    old, new = table.value(rows[above], column), table.value(rows[name], column)
    return None if old is None or new is None else round(new - old, 1)
