"""Table stage: all variants on all tasks, with differences and the published results.

    variant      mean [95 % interval] over seeds for each task, as shares
    difference   from the row above, seed by seed, as in Devlin et al. 2019, table 5
    published    the same difference in the published table, and whether the signs agree

Signs agree or disagree only if our interval excludes 0; otherwise they are unresolved.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict

from rungwise.core.configuration.config import Config
from rungwise.core.errors import ConfigError
from rungwise.core.plural import counted
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.stages.stage import StageType
from rungwise.core.stages.summary import Part, Summary
from rungwise.core.storage.folder import Folder
from rungwise.core.tables import csv_bytes
from rungwise.evaluation.comparison.published import TABLES, PublishedConfig
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.evaluation.statistics import Agreement, holm, paired_difference, sign_agreement
from rungwise.tasks.scoring.metrics import metric_range


class TableConfig(Config):
    """`columns` says of each task which column of the published table it stands beside."""

    published: PublishedConfig | None
    columns: dict[str, str | None]


class Score(Part):
    """The judged test score of a variant on a task, and the best trivial baseline."""

    task: str
    variant: str
    metric: str
    mean: float
    low: float
    high: float
    count: int
    baseline: str | None
    baseline_score: float | None


class BudgetScore(Score):
    """The same at one label budget."""

    budget: int


class Step(Part):
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


class Reference(Part):
    table: str
    source: str


class TableSummary(Summary):
    scores: tuple[Score, ...]
    differences: tuple[Step, ...]
    budgets: tuple[BudgetScore, ...]
    published: Reference | None


def build_table(
    config: TableConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> TableSummary:
    """Write `table.csv`, `differences.csv`, `budgets.csv` and `table.md`."""
    _check(config)
    evaluated = [EvaluateSummary.of(artifact) for artifact in inputs.values()]
    whole = [each for each in evaluated if each.budget is None]
    scores = [score for each in whole for score in _scores(each)]
    steps = _corrected([step for each in whole for step in _steps(config, each)])
    budgets = [
        BudgetScore(**score.model_dump(), budget=each.budget or each.examples.train)
        for each in evaluated
        for score in _scores(each)
    ]
    budgets.sort(key=lambda row: (row.task, row.variant, row.budget))
    for name, rows in (("table", scores), ("differences", steps), ("budgets", budgets)):
        output.write_bytes(f"{name}.csv", csv_bytes([row.model_dump() for row in rows]))
    output.write_bytes("table.md", markdown(scores, steps, config).encode("utf-8"))
    signs = [step.sign for step in steps if step.sign is not None]
    agree = signs.count("agrees")
    resolved = agree + signs.count("disagrees")
    compared = f"; of {len(signs)} published differences {resolved} resolved here, {agree} agree"
    variants = {score.variant for score in scores}
    reference = None
    if config.published is not None:
        table = config.published.table
        reference = Reference(table=table, source=TABLES[table].source)
    return TableSummary(
        scores=tuple(scores),
        differences=tuple(steps),
        budgets=tuple(budgets),
        published=reference,
        show=("table.csv", "differences.csv", "budgets.csv", "table.md"),
        headline=f"{counted(len(variants), 'variant')}, {counted(len(whole), 'task')}"
        + compared * bool(signs),
    )


TABLE = StageType("table", 4, build_table, TableSummary)


def _check(config: TableConfig) -> None:
    if config.published is None:
        return
    known = TABLES[config.published.table].columns
    for task, column in config.columns.items():
        if column is not None and column not in known:
            raise ConfigError(
                f"tasks.{task}.published is {column!r}, which {config.published.table} lacks; it "
                f"has: {', '.join(known)}"
            )


def _scores(evaluated: EvaluateSummary) -> list[Score]:
    baseline, value = evaluated.best_trivial() or (None, None)
    return [
        Score(
            task=evaluated.task,
            variant=name,
            metric=evaluated.metric,
            **asdict(variant.estimates[evaluated.metric]),
            baseline=baseline,
            baseline_score=value,
        )
        for name, variant in evaluated.variants.items()
    ]


def _steps(config: TableConfig, evaluated: EvaluateSummary) -> list[Step]:
    drawn = {(each.first, each.second): each.bootstrap for each in evaluated.differences}
    steps = []
    for above, name in itertools.pairwise(evaluated.variants):
        ours = paired_difference(
            evaluated.scores_of(name), evaluated.scores_of(above), metric_range(evaluated.metric)
        )
        published = _published(config, evaluated.task, above, name)
        both = drawn[above, name]  # above minus name: negated below
        steps.append(
            Step(
                task=evaluated.task,
                variant=name,
                minus=above,
                **asdict(ours),
                bootstrap_low=-both.high,
                bootstrap_high=-both.low,
                p=both.p,
                p_holm=both.p,
                published_points=published,
                sign=None if published is None else sign_agreement(published, ours),
            )
        )
    return steps


def _corrected(steps: list[Step]) -> list[Step]:
    """Correct p values over all steps as one family of comparisons."""
    ps = holm([step.p for step in steps])
    return [step.model_copy(update={"p_holm": p}) for step, p in zip(steps, ps, strict=True)]


def _published(config: TableConfig, task: str, above: str, name: str) -> float | None:
    """The published difference in points; None if a value is missing."""
    column = config.columns.get(task)
    if config.published is None or column is None:
        return None
    rows, known = config.published.rows, TABLES[config.published.table]
    if above not in rows or name not in rows:
        return None
    old, new = known.value(rows[above], column), known.value(rows[name], column)
    return None if old is None or new is None else round(new - old, 1)


def markdown(scores: Sequence[Score], steps: Sequence[Step], config: TableConfig) -> str:
    """The table in Markdown: variants down, tasks across, differences below."""
    cells = {(row.variant, row.task): row for row in scores}
    shown = {(step.variant, step.task): step for step in steps}
    variants = dict.fromkeys(row.variant for row in scores)
    later = dict.fromkeys(step.variant for step in steps)
    tasks = {row.task: row for row in scores}
    trivial = [
        f"{100 * row.baseline_score:.1f} ({row.baseline})" if row.baseline_score is not None else ""
        for row in tasks.values()
    ]
    lines = [
        "Ours: mean [95 % interval] over seeds, in percent, correlations times 100.",
        "",
        _line("variant", *(f"{t} ({row.metric.replace('_', ' ')})" for t, row in tasks.items())),
        _line(*["---"] * (len(tasks) + 1)),
        *(
            _line(name, *(_interval(cells.get((name, task))) for task in tasks))
            for name in variants
        ),
        _line("best trivial baseline", *trivial),
    ]
    if steps:
        reference = ", with the published ones." if config.published else "."
        lines += [
            "",
            f"Differences from the row above, in points, seed by seed{reference}",
            "",
            _line("variant", *tasks),
            _line(*["---"] * (len(tasks) + 1)),
            *(
                _line(name, *(_difference(shown.get((name, task))) for task in tasks))
                for name in later
            ),
        ]
        some = [f"{step.variant} on {step.task}" for step in steps if step.p_holm < 0.05]
        lines += [
            "",
            f"After Holm's correction over these {len(steps)} differences, the bootstrap's p is "
            f"below 0.05 for {', '.join(some) or 'none'}.",
        ]
    if steps and config.published:
        lines += ["", f"Published: {TABLES[config.published.table].source}."]
    return "\n".join(lines) + "\n"


def _interval(row: Score | None) -> str:
    if row is None:
        return ""
    return f"{100 * row.mean:.1f} [{100 * row.low:.1f}, {100 * row.high:.1f}]"


def _difference(step: Step | None) -> str:
    if step is None:
        return ""
    ours = f"{100 * step.mean:+.1f} [{100 * step.low:+.1f}, {100 * step.high:+.1f}]"
    if step.published_points is None:
        return ours
    sign = f", {step.sign}" if step.sign else ""
    return f"{ours} (published {step.published_points:+.1f}{sign})"


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
