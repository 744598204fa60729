"""The settings of an evaluation and its summary, published results (published.yaml), and the table
stage: all variants on all tasks, with differences of neighbouring rows (as in Devlin et al. 2019,
table 5) and whether their signs agree with the published ones."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from typing import Annotated, Any, Literal, Self

import numpy as np
import yaml
from pydantic import Field, model_validator

from rungwise.core.configuration.canonical import csv_bytes
from rungwise.core.configuration.config import Config, validate
from rungwise.core.errors import ConfigError, format_count
from rungwise.core.stages.artifact import Artifact, Summary, SummaryPart
from rungwise.core.stages.stage import Context, LazyFunction, StageType, Title
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.statistics import Agreement, Difference, Estimate, holm, sign_agreement
from rungwise.finetune import FinetuneConfig
from rungwise.tasks.kinds.examples import ExampleCounts, Kind

TableName = Literal["T2", "T6", "T7", "T8", "T9", "T10", "C1", "C2"]
_FILE = resources.files("rungwise.evaluation.comparison") / "published.yaml"


class Published(Config):
    """A table; rows have one value per column, None where none was published."""

    source: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[int | float | None, ...]]

    def value(self, row: str, column: str) -> float | None:
        return self.rows[row][self.columns.index(column)]


class PublishedResults(Config):
    tables: dict[TableName, Published]


TABLES = validate(
    PublishedResults, yaml.safe_load(_FILE.read_text("utf-8")), source="published.yaml"
).tables


class PublishedConfig(Config):
    """The published table to show beside ours; its column is the key `published` of a task."""

    table: TableName  # as numbered in evaluation/comparison/published.yaml
    rows: dict[str, str] = Field(min_length=1)  # by variant: the row to show beside it

    @model_validator(mode="after")
    def _check_rows(self) -> Self:
        names = TABLES[self.table].rows
        for variant, row in self.rows.items():
            if row not in names:
                raise ValueError(
                    f"rows.{variant} is {row!r}, which {self.table} lacks; it has: "
                    f"{', '.join(names)}"
                )
        return self


class EvaluateConfig(Config):
    """The final comparison of the variants on each task, over several seeds."""

    # fine-tuning runs of each pretraining of a variant, each with its own seed
    num_seeds: int = Field(default=5, ge=2)
    first_seed: int = Field(default=1000, ge=0)  # the first of consecutive seeds
    # numbers of labelled examples to compare at, besides all of them; null: none
    label_budgets: list[int] | None = None
    # variants to compare at these numbers; null: all
    budget_variants: list[str] | None = Field(default=None, min_length=1)
    # shares of the words (of four or more letters) to misspell in copies of the test split, which
    # are scored too; null: none
    noise: list[Annotated[float, Field(gt=0, le=1)]] | None = None
    # show what scikit-learn reaches with the same examples, without any pretraining
    rivals: bool = True
    # resamples behind a confidence interval
    bootstrap_resamples: int = Field(default=10_000, ge=100)
    published: PublishedConfig | None = None  # published results to show beside ours; null: none
    # variant whose model is kept and registered, from its best seed on validation; null: the first
    keep: str | None = None

    def seeds(self, pretraining: int = 0) -> list[int]:
        """The seeds that the n-th pretraining of every variant is fine-tuned with."""
        first = self.first_seed + pretraining * self.num_seeds
        return list(range(first, first + self.num_seeds))

    @model_validator(mode="after")
    def _check_distinct(self) -> Self:
        budgets, noise = self.label_budgets or [], self.noise or []
        if len(set(noise)) < len(noise):
            raise ValueError(f"noise must be different shares, found {noise}")
        if any(budget < 1 for budget in budgets) or len(set(budgets)) < len(budgets):
            raise ValueError(f"label_budgets must be different numbers from 1, found {budgets}")
        return self


class CompareConfig(Config):
    """The variants by name, each with its fine-tuning where no sweep selects one."""

    task: str
    budget: int | None
    variants: dict[str, FinetuneConfig] = Field(min_length=1)
    evaluate: EvaluateConfig


def input_name(stage: str, variant: str, seed: int | None = None) -> str:
    """The name of the input from `stage` for a variant; `seed` indexes the pretrainings after the
    first."""
    return str(Title(stage, variant=variant, seed=seed))


class SeedRow(SummaryPart):
    """One fine-tuning run, of the n-th `pretraining` of its variant. `epoch` is the one kept, `mix`
    the learned layer weights, `noise` the test metrics by rate of typing errors, `predict_seconds`
    the time for the test split."""

    variant: str
    seed: int
    epoch: int
    validation: dict[str, float]
    test: dict[str, float]
    mix: tuple[float, ...] | None
    seconds: float
    predict_seconds: float | None = None
    noise: dict[str, dict[str, float]] = Field(default_factory=dict)
    pretraining: int = 0


class Selection(SummaryPart):
    """The validation score that selected a variant's settings; biased, so not one to report."""

    score: float
    trial: str
    seed: int


class PretrainingCost(SummaryPart):
    objective: str
    steps: int | None
    tokens: int
    flops: float | None
    parameters: int
    fingerprint: str


class Overlap(SummaryPart):
    """How many test examples stand in the training split and in the pretraining text (None: the
    text is not below the same root), and the judged score on all others, if there are any."""

    training: int
    pretraining: int | None
    score: float | None = None


class VariantResult(SummaryPart):
    """A variant on a task. `cut` is by split the share of examples that `sequence_length`
    truncated; `noise` the judged metric by rate of typing errors; `overlap` is for all labels
    only."""

    estimates: dict[str, Estimate]
    finetune: FinetuneConfig
    selection: Selection | None
    pretraining: PretrainingCost | None  # None from random weights
    cut: dict[str, float]
    noise: dict[str, Estimate] = Field(default_factory=dict)
    overlap: Overlap | None = None


class RivalResult(SummaryPart):
    """A rival on a task. `strength` is the inverse of its regularisation, chosen on validation;
    `estimate` is the judged test score with its interval over test examples."""

    name: str
    strength: float
    validation: dict[str, float]
    test: dict[str, float]
    estimate: Estimate
    noise: dict[str, float]
    seconds: float
    predict_seconds: float | None = None


class PairedDifference(SummaryPart):
    """First minus second variant, or rival, in the judged metric. `seeds` is over pretrainings, or
    over seeds of fine-tuning if there is one; `bootstrap` over test examples too."""

    first: str
    second: str
    seeds: Estimate
    bootstrap: Difference
    # (new - old) / (1 - old), the column "relative" of Peters et al. 2018 (ELMo), table 1; None if
    # the second made no error
    error_reduction: float | None


def independent_scores(scores: Sequence[float], pretrainings: int) -> list[float]:
    """The scores of runs as values without a common luck: means per pretraining if there are
    several, else the scores themselves."""
    if pretrainings == 1:
        return list(scores)
    return np.reshape(scores, (pretrainings, -1)).mean(axis=1).tolist()


class EvaluateSummary(Summary):
    """All variants and rivals on one task at one label `budget` (None: all labels). `seeds` are
    those of fine-tuning, for one pretraining."""

    task: str
    budget: int | None
    kind: Kind
    metric: str  # the judged metric; higher is better
    seeds: tuple[int, ...]
    examples: ExampleCounts
    rows: tuple[SeedRow, ...]
    variants: dict[str, VariantResult]
    differences: tuple[PairedDifference, ...]
    baselines: dict[str, dict[str, float]]
    beats_baselines: bool | None
    chosen: SeedRow
    rivals: dict[str, RivalResult] = Field(default_factory=dict)  # by their short names

    def scores(self, variant: str, split: str = "test") -> list[float]:
        """The judged scores of a variant, one per run."""
        return [getattr(row, split)[self.metric] for row in self.rows if row.variant == variant]

    def estimates(self) -> dict[str, Estimate]:
        """The judged score of every variant, then of every rival."""
        variants = {name: each.estimates[self.metric] for name, each in self.variants.items()}
        return variants | {name: each.estimate for name, each in self.rivals.items()}

    def overlaps(self) -> dict[str, Overlap]:
        """The overlaps of the variants, if any variant has read a test example before."""
        overlaps = {name: each.overlap for name, each in self.variants.items() if each.overlap}
        repeats = any(each.training or each.pretraining for each in overlaps.values())
        return overlaps if repeats else {}

    def pretrainings(self, variant: str) -> int:
        return len({row.pretraining for row in self.rows if row.variant == variant})

    def trivial(self) -> dict[str, float]:
        """The scores of the trivial baselines that have the judged metric."""
        scores = self.baselines.items()
        return {name: own[self.metric] for name, own in scores if self.metric in own}

    @property
    def caution(self) -> str:
        """A warning that names the baseline, the rival or the random weights that the kept model is
        not shown to be above; "" if none."""
        name = self.chosen.variant
        own = self.variants[name].estimates[self.metric]
        low = own.mean if own.count == 1 else own.low
        faults = []
        if (best := self.best_trivial()) and not low > best[1]:
            faults.append(f"the trivial baseline {best[0]} ({best[1]:.3f})")
        if (rival := self.best_rival()) and not low > rival.estimate.mean:
            faults.append(f"{rival.name} ({rival.estimate.mean:.3f}, without pretraining)")
        untrained = [other for other, each in self.variants.items() if each.pretraining is None]
        for each in self.differences if name not in untrained else ():
            over = each.bootstrap if each.seeds.count == 1 else each.seeds
            if each.first == name and each.second in untrained and not over.low > 0:
                faults.append(f"random weights ({each.second})")
            if each.second == name and each.first in untrained and not over.high < 0:
                faults.append(f"random weights ({each.first})")
        if not faults:
            return ""
        return f"{name} ({own.mean:.3f}) is not shown to be above {' or '.join(faults)}"

    def best_trivial(self) -> tuple[str, float] | None:
        return max(self.trivial().items(), key=lambda item: item[1], default=None)

    def best_rival(self) -> RivalResult | None:
        return max(self.rivals.values(), key=lambda each: each.estimate.mean, default=None)


EVALUATE = StageType(
    "evaluate",
    14,
    LazyFunction("rungwise.evaluation.comparison.compare:compare_variants"),
    EvaluateSummary,
    resumes=True,
)


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
    sign: Agreement | None


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
    ps = holm([row.p for row in rows])  # all rows are one family of comparisons
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
        own = Estimate(0.0 - seeds.mean, -seeds.high, -seeds.low, seeds.count)
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
                sign=None if published is None else sign_agreement(published, own),
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
