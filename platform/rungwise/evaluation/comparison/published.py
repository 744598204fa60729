"""Published results (published.yaml), shown as reference beside ours and never in the same column.

The published models are a hundred to ten thousand times larger and use the full data sets, so only
the signs of differences are comparable.
"""

from importlib import resources
from typing import Literal, Self

import yaml
from pydantic import Field, model_validator

from rungwise.core.configuration.config import Config, validate

TableName = Literal["T2", "T6", "T7", "T8", "T9", "T10", "C1", "C2"]


class Published(Config):
    """A table; rows have one value per column, None where none was published."""

    source: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[int | float | None, ...]]

    def value(self, row: str, column: str) -> float | None:
        return self.rows[row][self.columns.index(column)]


class PublishedSet(Config):
    """Scores on a public set: {metric: {model: value}}."""

    source: str
    scores: dict[str, dict[str, float]]


class PublishedResults(Config):
    """The file of published results, whose comments say where each is from."""

    tables: dict[TableName, Published]
    blimp_models: tuple[str, ...]
    blimp_human: dict[str, float]
    blimp_source: str
    sets: dict[str, PublishedSet]


_FILE = resources.files("rungwise.evaluation.comparison") / "published.yaml"
RESULTS = validate(
    PublishedResults, yaml.safe_load(_FILE.read_text("utf-8")), source="published.yaml"
)
TABLES = RESULTS.tables


class PublishedConfig(Config):
    """The published table to show beside ours.

    Its column for a task is the key `published` of the task.
    """

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
