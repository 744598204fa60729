"""The section with the table of variants and tasks, and its steps from row to row."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

from rungwise.core.stages.artifact import Artifact
from rungwise.evaluation.comparison.table import RowDifference, TableSummary, TaskScore
from rungwise.report.page import Section
from rungwise.report.sections.names import rename_table
from rungwise.report.sections.variants import VariantComparison, select_stage

_CellT = TypeVar("_CellT", TaskScore, RowDifference)


def write_table(
    inputs: Mapping[str, Artifact],
    comparison: VariantComparison | None,
    *,
    names: Mapping[str, str] = MappingProxyType({}),
    is_ladder: bool = False,
) -> Section | None:
    """The section of the table stage, on a ladder with the scores and not the steps alone; None
    without one. `names` are those of variants on the page, where they differ."""
    stage = next(iter(select_stage(inputs, "table").values()), None)
    if stage is None or comparison is None:
        return None
    table = rename_table(TableSummary.of(stage), names)
    csv = {
        "table": [score.model_dump() for score in table.scores],
        "table_differences": [row.model_dump() for row in table.differences],
    }
    if not is_ladder and not table.differences:
        return None
    fields = {
        "table": table,
        "comparison": comparison,
        "rows": group_by_variant(table.scores),
        "differences": group_by_variant(table.differences),
    }
    return Section("table", "Table" if is_ladder else "Steps", fields, csv=csv)


def group_by_variant(cells: Iterable[_CellT]) -> dict[str, dict[str, _CellT]]:
    """Scores or differences of the table: {variant: {task: cell}}."""
    groups: dict[str, dict[str, _CellT]] = {}
    for cell in cells:
        groups.setdefault(cell.variant, {})[cell.task] = cell
    return groups
