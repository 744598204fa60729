"""The names of a ladder's models as people write them, in place of the recipe's variants.

Records and files of other stages keep the variants' names; a page has these everywhere.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rungwise.evaluation.comparison.claims import ClaimResult, ClaimsSummary
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.evaluation.comparison.table import TableSummary
from rungwise.evaluation.suites.section import MeasuredRung
from rungwise.models.config import name_models
from rungwise.report.sections.variants import VariantComparison

Names = Mapping[str, str]
_ValueT = TypeVar("_ValueT")


def name_rungs(rungs: Sequence[MeasuredRung]) -> dict[str, str]:
    """The names of all rungs, and of the variants that share their weights, by variant."""
    models = {
        name: (trained.model, trained.model.objective(trained.objective))
        for rung in rungs
        for trained in [rung.pretrain]
        for name in (rung.name, *rung.also)
    }
    return name_models(models)


def rename_rungs(rungs: Sequence[MeasuredRung], names: Names) -> list[MeasuredRung]:
    return [
        replace(rung, name=names[rung.name], also=tuple(names[each] for each in rung.also))
        for rung in rungs
    ]


def rename_claims(summary: ClaimsSummary, names: Names) -> ClaimsSummary:
    return summary.model_copy(
        update={
            "claims": tuple(_rename_claim(claim, names) for claim in summary.claims),
            "averages": _rename_keys(summary.averages, names),
        }
    )


def rename_comparison(comparison: VariantComparison, names: Names) -> VariantComparison:
    tasks = tuple(
        replace(
            task,
            evaluation=_rename_evaluation(task.evaluation, names),
            by_budget=tuple(_rename_evaluation(each, names) for each in task.by_budget),
        )
        for task in comparison.tasks
    )
    variants = tuple(names.get(each, each) for each in comparison.variants)
    return replace(comparison, variants=variants, tasks=tasks)


def rename_table(table: TableSummary, names: Names) -> TableSummary:
    rows = {
        field: tuple(_rename_fields(row, names, "variant") for row in getattr(table, field))
        for field in ("scores", "budgets")
    }
    differences = tuple(_rename_fields(row, names, "variant") for row in table.differences)
    return table.model_copy(update={**rows, "differences": differences})


def _rename_claim(claim: ClaimResult, names: Names) -> ClaimResult:
    # A term is a rung, one at a layer, or one at a label budget.
    def rename(term: str) -> str:
        rung, mark, rest = re.fullmatch(r"([^/@]*)([/@]?)(.*)", term).groups()  # pyright: ignore[reportOptionalMemberAccess]
        return f"{names.get(rung, rung)}{mark}{rest}"

    comparisons = tuple(
        row.model_copy(
            update={
                "terms": {rename(term): weight for term, weight in row.terms.items()},
                "missing": tuple(rename(term) for term in row.missing),
            }
        )
        for row in claim.comparisons
    )
    return claim.model_copy(update={"comparisons": comparisons})


def _rename_evaluation(evaluation: EvaluateSummary, names: Names) -> EvaluateSummary:
    return evaluation.model_copy(
        update={
            "rows": tuple(_rename_fields(row, names, "variant") for row in evaluation.rows),
            "variants": _rename_keys(evaluation.variants, names),
            "differences": tuple(
                _rename_fields(pair, names, "first", "second") for pair in evaluation.differences
            ),
            "chosen": _rename_fields(evaluation.chosen, names, "variant"),
        }
    )


def _rename_keys(values: Mapping[str, _ValueT], names: Names) -> dict[str, _ValueT]:
    return {names.get(name, name): value for name, value in values.items()}


def _rename_fields(row: Any, names: Names, *fields: str) -> Any:
    values = {field: getattr(row, field) for field in fields}
    return row.model_copy(
        update={field: names.get(value, value) for field, value in values.items()}
    )
