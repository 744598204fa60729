"""Read the rows of delimited text and JSON Lines, with the line each begins on, and JSON.

The standard library's `csv` splits the rows. A quoted field may hold line breaks, so the number of
a row is not that of its line, which is what an editor shows.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rungwise.core.errors import DataError
from rungwise.core.storage import SourceFile
from rungwise.tasks.formats.base import lines_of, listed, nearest, text_of

# The csv module's own limit is 131,072 characters; passages for reading are longer.
csv.field_size_limit(1 << 30)

Column = str | int  # a name in the header, or an index from 0


def delimited(
    file: SourceFile,
    encoding: str,
    delimiter: str,
    *,
    quoting: bool,
    comment: str | None = None,
) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, cells) of each row that is neither blank nor a comment.

    With `quoting` a cell may be in double quotes, in which a quote is doubled; without it a quote
    is an ordinary character. Raises DataError if quotes do not match.
    """
    rows = csv.reader(
        io.StringIO(text_of(file, encoding), newline=""),
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE,
        strict=True,
    )
    line = 1
    try:
        for cells in rows:
            if cells and not (comment and cells[0].startswith(comment)):
                yield line, cells
            line = rows.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{file.uri}:{line}: the quotes of this row do not match ({error}); mend the row, or "
            "set data.format.quoting to false if quotes are characters like others"
        ) from None


def json_lines(file: SourceFile, encoding: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line, object) of each line that is not blank; a DataError if it is not an object."""
    for line, text in enumerate(lines_of(text_of(file, encoding)), start=1):
        if not text.strip():
            continue
        problem = "expected a JSON object on each line, found no JSON"
        record = _parsed(text, file, line, problem, "mend the line, or change data.format.layout")
        if not isinstance(record, dict):
            raise DataError(
                f"{file.uri}:{line}: expected a JSON object, found a {type(record).__name__}; mend "
                "the line"
            )
        yield line, record


def json_items(file: SourceFile, encoding: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (its number, object) of each object in a JSON array; a DataError if it is none."""
    data = json_of(file, encoding)
    if not isinstance(data, list):
        raise DataError(
            f"{file.uri}: expected a JSON array of objects, found a {type(data).__name__}; change "
            "data.format.layout (json_lines has an object on each line) or data.format.kind"
        )
    for number, record in enumerate(data, start=1):
        if not isinstance(record, dict):
            raise DataError(
                f"{file.uri}, item {number}: expected a JSON object, found a "
                f"{type(record).__name__}; mend the item"
            )
        yield f"item {number}", record


def nested(record: Mapping[str, Any], column: str, where: str, key: str) -> Any:
    """The value of a field, or of `outer.inner` where there is no field of that whole name.

    Raises a DataError that lists the fields if there is none.
    """
    if column in record:
        return record[column]
    value: Any = record
    for name in column.split("."):
        # An array is gone into by the index of an item, from 0.
        if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        elif isinstance(value, dict) and name in value:
            value = value[name]
        else:
            raise missing(column, _fields(record), where, key)
    return value


def _fields(record: Mapping[str, Any]) -> list[str]:
    """The names of the fields, those of nested objects with a dot."""
    names: list[str] = []
    for name, value in record.items():
        inner = _fields(value) if isinstance(value, dict) else []
        names += [f"{name}.{each}" for each in inner] or [name]
    return names


def json_of(file: SourceFile, encoding: str) -> Any:
    """Parse a file of JSON; a DataError with the line if it is not JSON."""
    remedy = "fetch the file again, or change data.format.kind"
    return _parsed(text_of(file, encoding), file, 1, "expected JSON, found none", remedy)


def _parsed(text: str, file: SourceFile, line: int, problem: str, remedy: str) -> Any:
    """Parse JSON that begins on `line` of a file."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{file.uri}:{line + error.lineno - 1}: {problem} ({error.msg} at column "
            f"{error.colno}); {remedy}"
        ) from None
    except (RecursionError, ValueError) as error:
        raise DataError(f"{file.uri}:{line}: not JSON that can be read: {error}") from None


def index_of(column: Column, header: Sequence[str] | None, where: str, key: str) -> int:
    """The index of `column`, a name in the header or an index; `key` is its config key.

    Raises a DataError that lists the columns if the name is not there exactly once.
    """
    if isinstance(column, int):
        return column
    if header is None:
        raise DataError(
            f"{where}: {key} is the name {column!r}, but the file has no header; use an index from "
            "0, or set data.format.header to true"
        )
    if header.count(column) != 1:
        raise missing(column, header, where, key, header.count(column))
    return header.index(column)


def missing(
    column: str, known: Sequence[str] | Mapping[str, Any], where: str, key: str, times: int = 0
) -> DataError:
    """The error for a column that is missing, or occurs more than once."""
    known = list(known)
    count = "none" if times == 0 else f"{times} of them"
    return DataError(
        f"{where}: expected one column {column!r}, found {count}{nearest(column, known)}; the "
        f"columns are {listed(known)}; change {key}"
    )
