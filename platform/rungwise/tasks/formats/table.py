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
from rungwise.core.storage import SourceFile
from rungwise.tasks.examples import Kind, Text
from rungwise.tasks.formats.base import Damage, Labels, name_of, names_of, shown, words
from rungwise.tasks.formats.records import RecordsFormat, TextColumn
from rungwise.tasks.formats.rows import Column


class ColumnsConfig(Config):
    """The columns of a table: names in the header, or indexes from 0;
    names of JSON fields, with a dot for those inside of others. Texts of several are joined."""

    text: TextColumn = "text"
    second: TextColumn | None = None  # of pairs
    label: Column | None = None  # in classification
    score: Column | None = None  # in regression

    @model_validator(mode="after")
    def _one_target(self) -> ColumnsConfig:
        if self.label is not None and self.score is not None:
            raise ValueError("label and score are both set; a table has one target")
        if any(isinstance(value, int) and value < 0 for _, value in self):
            raise ValueError("an index of a column is 0 or more")
        return self


class TableFormat(RecordsFormat):
    """A table with one example in each row or, in JSON, in each object."""

    kind: Literal["table"] = "table"
    columns: ColumnsConfig
    labels: Labels | None = None  # {what the file says: name}, or a list of names
    label_until: str | None = Field(default=None, min_length=1)  # where a label ends: `coarse:fine`
    skip_labels: tuple[str, ...] = ()  # rows with these are left out, such as SNLI's "-"
    score_range: tuple[float, float] | None = None

    @property
    def fields(self) -> dict[str, TextColumn | None]:
        return {f"columns.{key}": value for key, value in self.columns}

    @property
    def task_kind(self) -> Kind:
        return "classification" if self.columns.score is None else "regression"

    @property
    def stated_labels(self) -> tuple[str, ...]:
        return names_of(self.labels)

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Text]:
        """The examples of a file. Without a target column their target is None."""
        for line, row in self.records(file, split, counts):
            where = f"{file.uri}:{line}"
            with self.sound(counts):
                target = None
                if "columns.label" in row:
                    value = _label_text(row["columns.label"], where)
                    if self.label_until is not None:
                        value = value.partition(self.label_until)[0]
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


def _label_text(value: Any, where: str) -> str:
    """A label as text; in JSON it may be a number, true or false, or a list of one of these."""
    match value:
        case [only]:
            return _label_text(only, where)
        case bool():
            return "true" if value else "false"
        case str() | int():
            return str(value).strip()
    raise Damage(
        f"{where}: a label must be text or a whole number, or a list of one, found {shown(value)}; "
        "mend the line, or change data.format.columns.label",
        "their_label",
    )


def _score(value: Any, within: tuple[float, float] | None, where: str) -> float:
    try:
        # float(True) is 1.0, but `true` in a file of scores is a mistake.
        score = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        raise Damage(
            f"{where}: expected a number as the score, found {shown(value)}; mend the line, or "
            "change data.format.columns.score",
            "their_score",
        )
    if within is not None and not within[0] <= score <= within[1]:
        raise Damage(
            f"{where}: expected a score from {within[0]:g} to {within[1]:g}, found {score:g}; mend "
            "the line, or change data.format.score_range",
            "their_score",
        )
    return score
