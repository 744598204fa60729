"""Sentences and pairs in TSV, CSV, JSON or JSON Lines, with a stated mapping of the columns.

The presets of other formats (GLUE, SICK, STS) are tables with their columns filled in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, model_validator

from rungwise.core.config import Config
from rungwise.core.errors import DataError
from rungwise.core.storage import SourceFile
from rungwise.tasks.examples import Kind, Text
from rungwise.tasks.formats.base import FormatConfig, Labels, name_of, names_of, shown, words
from rungwise.tasks.formats.rows import (
    Column,
    delimited,
    index_of,
    json_items,
    json_lines,
    nested,
)


class ColumnsConfig(Config):
    """The columns of a table: names in the header, or indexes from 0;
    names of JSON fields, with a dot for those inside of others."""

    text: Column = "text"
    second: Column | None = None  # of pairs
    label: Column | None = None  # in classification
    score: Column | None = None  # in regression

    @model_validator(mode="after")
    def _one_target(self) -> ColumnsConfig:
        if self.label is not None and self.score is not None:
            raise ValueError("label and score are both set; a table has one target")
        if any(isinstance(value, int) and value < 0 for _, value in self):
            raise ValueError("an index of a column is 0 or more")
        return self


class SplitColumn(Config):
    """The column that says which split a row belongs to, and its value for each split."""

    column: Column
    train: str
    validation: str
    test: str


class TableFormat(FormatConfig):
    """A table with one example in each row or, in JSON, in each object."""

    kind: Literal["table"] = "table"
    layout: Literal["delimited", "json_lines", "json"] = "delimited"  # json: an array of objects
    columns: ColumnsConfig
    delimiter: str = Field(default="\t", min_length=1, max_length=1)
    header: bool = True
    quoting: bool = False  # false: a quote is a character like any other
    comment: str | None = Field(default=None, min_length=1)  # a row that begins so is left out
    rest_of_line: bool = False  # the last column asked for goes on to the end of the line
    extra_columns: bool = False  # rows may be longer than the first one
    labels: Labels | None = None  # {what the file says: name}, or a list of names
    skip_labels: tuple[str, ...] = ()  # rows with these are left out, such as SNLI's "-"
    score_range: tuple[float, float] | None = None
    split: SplitColumn | None = None  # for one file that holds all splits
    bad_rows: Literal["error", "drop"] = "error"  # rows with another number of columns

    @model_validator(mode="after")
    def _layout(self) -> TableFormat:
        columns = self.asked()
        names = [key for key, value in columns.items() if isinstance(value, str)]
        indexes = [key for key, value in columns.items() if isinstance(value, int)]
        if self.layout != "delimited" and indexes:
            raise ValueError(f"{indexes[0]} is an index, but JSON fields have names")
        if self.layout == "delimited" and not self.header and names:
            raise ValueError(f"{names[0]} is a name, but header is false; use an index from 0")
        if self.rest_of_line and self.quoting:
            raise ValueError("rest_of_line takes the line as it is; set quoting to false")
        return self

    def asked(self) -> dict[str, Column]:
        """The columns that are read, by the key below `data.format` that names them."""
        columns = {f"columns.{key}": value for key, value in self.columns if value is not None}
        return columns | ({"split.column": self.split.column} if self.split else {})

    @property
    def task_kind(self) -> Kind:
        return "classification" if self.columns.score is None else "regression"

    @property
    def stated_labels(self) -> tuple[str, ...]:
        return names_of(self.labels)

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Text]:
        """The examples of a file. Without a target column their target is None."""
        cells = self.layout == "delimited"
        for line, row in self._from_cells(file, counts) if cells else self._from_json(file):
            where = f"{file.uri}:{line}"
            if self.split is not None and row["split.column"] != getattr(self.split, split):
                continue
            target = None
            if "columns.label" in row:
                value = _label_text(row["columns.label"], where)
                if value in self.skip_labels:
                    counts["rows_dropped_for_their_label"] += 1
                    continue
                target = name_of(value, self.labels, where, "data.format.labels")
            elif "columns.score" in row:
                target = _score(row["columns.score"], self.score_range, where)
            text, second = words(row["columns.text"], where, "the text"), None
            if "columns.second" in row:
                second = words(row["columns.second"], where, "the second text")
            yield Text(f"{file.name}:{line}", text, second, target)

    def _from_cells(
        self, file: SourceFile, counts: Counter[str]
    ) -> Iterator[tuple[int, dict[str, str]]]:
        """(line, cell by key) of each row of delimited text."""
        indexes: dict[str, int] = {}
        width = 0
        rows = delimited(
            file, self.encoding, self.delimiter, quoting=self.quoting, comment=self.comment
        )
        for line, cells in rows:
            where = f"{file.uri}:{line}"
            if not indexes:
                header = [cell.strip() for cell in cells] if self.header else None
                for key, column in self.asked().items():
                    indexes[key] = index_of(column, header, where, f"data.format.{key}")
                width = max(indexes.values()) + 1
                if not (self.rest_of_line or self.extra_columns):
                    width = max(len(cells), width)
                if self.header:
                    continue
            if self.rest_of_line and len(cells) > width:
                cells = [*cells[: width - 1], self.delimiter.join(cells[width - 1 :])]
            if len(cells) < width or (len(cells) > width and not self.extra_columns):
                if self.bad_rows == "drop":
                    counts["rows_dropped_for_their_number_of_columns"] += 1
                    continue
                raise DataError(
                    f"{where}: expected {width} columns separated by {self.delimiter!r}, found "
                    f"{len(cells)}: {shown(self.delimiter.join(cells))}; mend the row, or change "
                    "data.format.delimiter, quoting or columns, or leave such rows out with "
                    "data.format.bad_rows: drop"
                )
            yield line, {key: cells[index] for key, index in indexes.items()}

    def _from_json(self, file: SourceFile) -> Iterator[tuple[int | str, dict[str, Any]]]:
        """(line or item, value by key) of each object."""
        read = json_lines if self.layout == "json_lines" else json_items
        for line, record in read(file, self.encoding):
            where = f"{file.uri}:{line}"
            yield (
                line,
                {
                    key: nested(record, str(column), where, f"data.format.{key}")
                    for key, column in self.asked().items()
                },
            )


def _label_text(value: Any, where: str) -> str:
    """A label as text; in JSON it may be a number, true or false."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int):
        return str(value).strip()
    raise DataError(
        f"{where}: a label must be text or a whole number, found {shown(value)}; mend the line, or "
        "change data.format.columns.label"
    )


def _score(value: Any, within: tuple[float, float] | None, where: str) -> float:
    try:
        # float(True) is 1.0, but `true` in a file of scores is a mistake.
        score = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        raise DataError(
            f"{where}: expected a number as the score, found {shown(value)}; mend the line, or "
            "change data.format.columns.score"
        )
    if within is not None and not within[0] <= score <= within[1]:
        raise DataError(
            f"{where}: expected a score from {within[0]:g} to {within[1]:g}, found {score:g}; mend "
            "the line, or change data.format.score_range"
        )
    return score
