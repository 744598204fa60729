"""Base of formats with named fields: delimited text, JSON and Parquet, read as records.

file ──> rows or objects ──> the records inside each (`each`) ──> the fields that are asked for
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from rungwise.core.configuration.config import Config
from rungwise.core.errors import DataError
from rungwise.core.storage.source_files import SourceFile
from rungwise.tasks.formats.base import Damage, FormatConfig, quote, read_text, split_lines
from rungwise.tasks.formats.rows import (
    Column,
    column_index,
    list_records,
    nested,
    parse_json,
    plain,
    read_json,
    read_parquet,
    read_rows,
    require_object,
)
from rungwise.tasks.kinds.examples import SPLITS

# The texts of several columns are joined by blanks.
TextColumn = Column | tuple[Column, ...]
Record = tuple[str, dict[str, Any]]  # (place in the file, values by key)
Layout = Literal["delimited", "json_lines", "json", "parquet"]
# One value or several, as text.
Values = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda v: tuple(map(plain, v if isinstance(v, list | tuple) else [v]))),
    Field(min_length=1),
]


class SplitColumn(Config):
    """The column that names the split of a row, and its values for each split that it has."""

    column: Column
    train: Values
    validation: Values | None = None
    test: Values | None = None

    def splits_of(self, value: Any) -> list[str]:
        """Return the splits that a value of the column names."""
        return [split for split in SPLITS if plain(value) in (getattr(self, split) or ())]


class RecordsFormat(FormatConfig):
    """Records by the names of their fields, or by indexes from 0."""

    optional: ClassVar[frozenset[str]] = frozenset()  # keys whose field a JSON record may lack

    # delimited rows, a JSON object per line, one JSON array or object, or Parquet (also Arrow)
    layout: Layout = "delimited"
    # JSON: the field of a record that lists its examples, or several such lists in parallel; other
    # fields apply to each
    each: tuple[str, ...] = ()
    delimiter: str = Field(default="\t", min_length=1, max_length=1)
    header: bool = True
    quoting: bool = False  # fields may be quoted; false: a quote is an ordinary character
    # skip rows that begin with this; null: none
    comment: str | None = Field(default=None, min_length=1)
    rest_of_line: bool = False  # the last column read extends to the end of the line
    extra_columns: bool = False  # rows may be longer than the first one
    # how one file holds all splits; null: each split has its own files
    split: SplitColumn | None = None
    # read only records with these values, such as {answer: accept}
    only: dict[Column, Values] = Field(default_factory=dict)

    columns: Any  # the block of columns, which every format declares

    @property
    def fields(self) -> dict[str, TextColumn | None]:
        """The columns to read, by their keys below `data.format`."""
        return {f"columns.{key}": value for key, value in self.columns}

    def named_columns(self) -> dict[str, TextColumn]:
        """Return the `fields` that are set, and the column of the split."""
        split = {"split.column": self.split.column if self.split else None}
        only = {f"only.{column}": column for column in self.only}
        columns = {**self.fields, **split, **only}
        return {key: column for key, column in columns.items() if column is not None}

    @model_validator(mode="after")
    def _layout(self) -> RecordsFormat:
        places = {key: _columns(value) for key, value in self.named_columns().items()}
        names = [key for key, each in places.items() if any(isinstance(c, str) for c in each)]
        indexes = [key for key, each in places.items() if any(isinstance(c, int) for c in each)]
        if self.layout != "delimited" and indexes:
            raise ValueError(f"{indexes[0]} is an index, but JSON fields have names")
        if self.layout == "delimited" and not self.header and names:
            raise ValueError(f"{names[0]} is a name, but header is false; use an index from 0")
        if self.layout == "delimited" and self.each:
            raise ValueError("each is a list inside of JSON; set layout to json or json_lines")
        if self.rest_of_line and self.quoting:
            raise ValueError("rest_of_line takes the line as it is; set quoting to false")
        return self

    def records(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Record]:
        """Yield the records of a split, with values by key; several columns give a list."""
        source = self._from_cells if self.layout == "delimited" else self._from_json
        for line, record in source(file, counts):
            if self.split and split not in (own := self.split.splits_of(record["split.column"])):
                if not own and split == SPLITS[0]:  # once, not for each split
                    counts["records_left_out_with_another_value_of_the_split"] += 1
                continue
            if all(plain(record[f"only.{key}"]) in values for key, values in self.only.items()):
                yield line, record
            else:
                counts["records_left_out_by_only"] += 1

    def _from_cells(self, file: SourceFile, counts: Counter[str]) -> Iterator[Record]:
        indexes: dict[str, int | list[int]] = {}
        width = 0
        rows = read_rows(file, self.encoding, self.delimiter, quoting=self.quoting)
        for line, cells in rows:
            if self.comment and cells[0].startswith(self.comment):
                counts["lines_left_out_as_comments"] += 1
                continue
            where = f"{file.uri}:{line}"
            if not indexes:
                header = [cell.strip() for cell in cells]
                last = 0
                for key, column in self.named_columns().items():
                    places = [
                        column_index(each, header, where, f"data.format.{key}")
                        for each in _columns(column)
                    ]
                    last = max(last, *places)
                    indexes[key] = places if isinstance(column, tuple) else places[0]
                width = last + 1
                if not (self.rest_of_line or self.extra_columns):
                    width = max(len(cells), width)
                if self.header:
                    continue
            if self.rest_of_line and len(cells) > width:
                cells = [*cells[: width - 1], self.delimiter.join(cells[width - 1 :])]
            with self.skip_damage(counts, cells):
                if len(cells) < width or (len(cells) > width and not self.extra_columns):
                    raise Damage(
                        f"{where}: expected {width} columns separated by {self.delimiter!r}, found "
                        f"{len(cells)}: {quote(self.delimiter.join(cells))}; mend the row, or "
                        "change data.format.delimiter, quoting or columns, or leave such rows out "
                        "with data.format.on_error: drop",
                        "their_number_of_columns",
                    )
                yield (
                    str(line),
                    {
                        key: cells[at] if isinstance(at, int) else [cells[each] for each in at]
                        for key, at in indexes.items()
                    },
                )

    def _from_json(self, file: SourceFile, counts: Counter[str]) -> Iterator[Record]:
        for place, record in read_objects(self, self.layout, file, counts):
            each = list_records(record, self.each, place) if self.each else [(place, record)]
            with self.skip_damage(counts, record):
                for at, fields in each:
                    with self.skip_damage(counts, fields):
                        yield at, self._values(fields, f"{file.uri}:{at}")

    def _values(self, record: dict[str, Any], where: str) -> dict[str, Any]:
        def value(key: str, column: Column) -> Any:
            try:
                return nested(record, str(column), where, f"data.format.{key}")
            except Damage:
                if key in self.optional:
                    return None
                raise

        return {
            key: [value(key, each) for each in column]
            if isinstance(column, tuple)
            else value(key, column)
            for key, column in self.named_columns().items()
        }


def read_objects(
    form: FormatConfig, layout: str, file: SourceFile, counts: Counter[str]
) -> Iterator[Record]:
    """Yield the objects of JSON Lines, of an array, the only object, or the rows of Parquet, with
    line or number."""
    if layout == "json_lines":
        problem = "expected a JSON object on each line, found no JSON"
        remedy = "mend the line, or change data.format.layout"
        for line, text in enumerate(split_lines(read_text(file, form.encoding)), start=1):
            if text.strip():
                with form.skip_damage(counts, text):
                    value = parse_json(text, file, line, problem, remedy)
                    yield str(line), require_object(value, f"{file.uri}:{line}")
        return
    if layout == "parquet":
        yield from ((f"row {number}", row) for number, row in enumerate(read_parquet(file), 1))
        return
    data = read_json(file, form.encoding)
    if not isinstance(data, list | dict):
        raise DataError(
            f"{file.uri}: expected a JSON array of objects, found a {type(data).__name__}; change "
            "data.format.layout (json_lines has an object on each line) or data.format.kind"
        )
    for number, each in enumerate([data] if isinstance(data, dict) else data, start=1):
        with form.skip_damage(counts, each):
            yield f"item {number}", require_object(each, f"{file.uri}, item {number}")


def _columns(column: TextColumn) -> tuple[Column, ...]:
    return column if isinstance(column, tuple) else (column,)
