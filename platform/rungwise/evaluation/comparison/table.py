"""Table stage: all variants on all tasks, with differences and the published results.

    variant      mean [95 % interval] over seeds for each task, as shares
    difference   from the row above, seed by seed, as in Devlin et al. 2019, table 5
    published    the same difference in the published table, and whether the signs agree

Signs agree or disagree only if our interval excludes 0; otherwise they are unresolved.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict

from rungwise.core.configuration.config import Config
from rungwise.core.errors import ConfigError
from rungwise.core.plural import format_count
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.stages.stage import StageType
from rungwise.core.stages.summary import SummaryPart, Summary
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


class TaskScore(SummaryPart):
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


class BudgetScore(TaskScore):
    """The same at one label budget."""

    budget: int


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
    budgets: tuple[BudgetScore, ...]
    published: Reference | None


def build_table(
    config: TableConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> TableSummary:
    """Write `table.csv`, `differences.csv`, `budgets.csv` and `table.md`."""
    _check_columns(config)
    evaluations = [EvaluateSummary.of(artifact) for artifact in inputs.values()]
    whole = [each for each in evaluations if each.budget is None]
    scores = [score for each in whole for score in _task_scores(each)]
    rows = [row for each in whole for row in _row_differences(config, each)]
    ps = holm([row.p for row in rows])  # all rows are one family of comparisons
    differences = [row.model_copy(update={"p_holm": p}) for row, p in zip(rows, ps, strict=True)]
    budgets = [
        BudgetScore(**score.model_dump(), budget=each.budget or each.examples.train)
        for each in evaluations
        for score in _task_scores(each)
    ]
    budgets.sort(key=lambda row: (row.task, row.variant, row.budget))
    for name, rows in (("table", scores), ("differences", differences), ("budgets", budgets)):
        output.write_bytes(f"{name}.csv", csv_bytes([row.model_dump() for row in rows]))
    output.write_bytes("table.md", markdown(scores, differences, config).encode("utf-8"))
    signs = [row.sign for row in differences if row.sign is not None]
    agree = signs.count("agrees")
    resolved = agree + signs.count("disagrees")
    agreement = f"; of {len(signs)} published differences {resolved} resolved here, {agree} agree"
    variants = {score.variant for score in scores}
    reference = None
    if config.published is not None:
        table = config.published.table
        reference = Reference(table=table, source=TABLES[table].source)
    return TableSummary(
        scores=tuple(scores),
        differences=tuple(differences),
        budgets=tuple(budgets),
        published=reference,
        show=("table.csv", "differences.csv", "budgets.csv", "table.md"),
        headline=f"{format_count(len(variants), 'variant')}, {format_count(len(whole), 'task')}"
        + agreement * bool(signs),
    )


TABLE = StageType("table", 4, build_table, TableSummary)


def _check_columns(config: TableConfig) -> None:
    if config.published is None:
        return
    columns = TABLES[config.published.table].columns
    for task, column in config.columns.items():
        if column is not None and column not in columns:
            raise ConfigError(
                f"tasks.{task}.published is {column!r}, which {config.published.table} lacks; it "
                f"has: {', '.join(columns)}"
            )


def _task_scores(evaluation: EvaluateSummary) -> list[TaskScore]:
    baseline, value = evaluation.best_trivial() or (None, None)
    return [
        TaskScore(
            task=evaluation.task,
            variant=name,
            metric=evaluation.metric,
            **asdict(variant.estimates[evaluation.metric]),
            baseline=baseline,
            baseline_score=value,
        )
        for name, variant in evaluation.variants.items()
    ]


def _row_differences(config: TableConfig, evaluation: EvaluateSummary) -> list[RowDifference]:
    bootstraps = {(each.first, each.second): each.bootstrap for each in evaluation.differences}
    rows = []
    for above, name in itertools.pairwise(evaluation.variants):
        scores = evaluation.pair_scores(name, above)
        difference = paired_difference(*scores, metric_range(evaluation.metric))
        published = _published_points(config, evaluation.task, above, name)
        bootstrap = bootstraps[above, name]  # above minus name: negated below
        rows.append(
            RowDifference(
                task=evaluation.task,
                variant=name,
                minus=above,
                **asdict(difference),
                bootstrap_low=-bootstrap.high,
                bootstrap_high=-bootstrap.low,
                p=bootstrap.p,
                p_holm=bootstrap.p,
                published_points=published,
                sign=None if published is None else sign_agreement(published, difference),
            )
        )
    return rows


def _published_points(config: TableConfig, task: str, above: str, name: str) -> float | None:
    """The published difference in points; None if a value is missing."""
    column = config.columns.get(task)
    if config.published is None or column is None:
        return None
    rows, table = config.published.rows, TABLES[config.published.table]
    if above not in rows or name not in rows:
        return None
    old, new = table.value(rows[above], column), table.value(rows[name], column)
    return None if old is None or new is None else round(new - old, 1)


def markdown(
    scores: Sequence[TaskScore], differences: Sequence[RowDifference], config: TableConfig
) -> str:
    """The table in Markdown: variants down, tasks across, differences below."""
    tasks = {score.task: score for score in scores}
    heads = [f"{name} ({score.metric.replace('_', ' ')})" for name, score in tasks.items()]
    trivial = [
        f"{100 * score.baseline_score:.1f} ({score.baseline})"
        if score.baseline_score is not None
        else ""
        for score in tasks.values()
    ]
    cells = {
        (each.variant, each.task): f"{100 * each.mean:.1f} "
        f"[{100 * each.low:.1f}, {100 * each.high:.1f}]"
        for each in scores
    }
    lines = [
        "Ours: mean [95 % interval] over seeds, in percent, correlations times 100.",
        "",
        *_grid(heads, tasks, cells),
        _line("best trivial baseline", *trivial),
    ]
    if differences:
        cells = {(each.variant, each.task): _difference_text(each) for each in differences}
        significant = [
            f"{each.variant} on {each.task}" for each in differences if each.p_holm < 0.05
        ]
        lines += [
            "",
            "Differences from the row above, in points, seed by seed"
            + (", with the published ones." if config.published else "."),
            "",
            *_grid(list(tasks), tasks, cells),
            "",
            f"After Holm's correction over these {len(differences)} differences, the bootstrap's p "
            f"is below 0.05 for {', '.join(significant) or 'none'}.",
        ]
        if config.published:
            lines += ["", f"Published: {TABLES[config.published.table].source}."]
    return "\n".join(lines) + "\n"


def _grid(
    heads: Iterable[str], tasks: Collection[str], cells: Mapping[tuple[str, str], str]
) -> list[str]:
    """The lines of a table; `cells` are by variant and task."""
    variants = dict.fromkeys(variant for variant, _ in cells)
    rows = [_line(name, *(cells.get((name, task), "") for task in tasks)) for name in variants]
    return [_line("variant", *heads), _line(*["---"] * (len(tasks) + 1)), *rows]


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _difference_text(row: RowDifference) -> str:
    text = f"{100 * row.mean:+.1f} [{100 * row.low:+.1f}, {100 * row.high:+.1f}]"
    if row.published_points is None:
        return text
    sign = f", {row.sign}" if row.sign else ""
    return f"{text} (published {row.published_points:+.1f}{sign})"
