"""Read the rows of delimited text, JSON, JSON Lines, Parquet and Arrow.

A quoted field may hold line breaks, so the line that a row begins on, which messages give, is not
the number of the row.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from rungwise.core.errors import DataError
from rungwise.core.storage.source_files import SourceFile
from rungwise.tasks.formats.base import Damage, join_names, read_bytes, read_text, suggest

if TYPE_CHECKING:
    from _csv import Reader

Column = str | int  # a name in the header, or an index from 0
# The csv module's default limit is 131,072 characters; reading passages are longer.
_LONGEST_CELL = 1 << 30
_ARROW_FILE, _ARROW_STREAM = b"ARROW1\0\0", b"\xff\xff\xff\xff"


def read_cells(lines: Iterable[str], delimiter: str, *, quoting: bool) -> Reader:
    """Return a csv.reader. With `quoting` a cell may be in double quotes, with quotes inside it
    doubled; else a quote is an ordinary character. Raises csv.Error if quotes do not match."""
    csv.field_size_limit(_LONGEST_CELL)  # of the process: another library may have set it
    style = csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE
    return csv.reader(lines, delimiter=delimiter, quoting=style, strict=True)


def read_rows(
    file: SourceFile, encoding: str, delimiter: str, *, quoting: bool
) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, cells) of each row that is not blank.

    `quoting` as in `read_cells`. Raises DataError if quotes do not match.
    """
    text = io.StringIO(read_text(file, encoding), newline="")
    rows = read_cells(text, delimiter, quoting=quoting)
    line = 1
    try:
        for cells in rows:
            if cells:
                yield line, cells
            line = rows.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{file.uri}:{line}: the quotes of this row do not match ({error}); mend the row, or "
            "set data.format.quoting to false if quotes are characters like others"
        ) from None


def is_columnar(content: bytes) -> bool:
    """Whether this is a Parquet or Arrow file, by its first bytes."""
    return content.startswith((b"PAR1", _ARROW_FILE, _ARROW_STREAM))


def read_table(content: bytes) -> pa.Table:
    """Read a Parquet file, or an Arrow file as `datasets` saves it."""
    if content.startswith(b"PAR1"):
        return pq.read_table(pa.BufferReader(content))
    with pa.ipc.open_stream(content.removeprefix(_ARROW_FILE)) as batches:
        table = batches.read_all()
    table.validate(full=True)  # with damaged offsets, Arrow would read past the end of a buffer
    return table


def read_parquet(file: SourceFile) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet or Arrow file. Raises DataError if it is none or is damaged."""
    try:
        for batch in read_table(read_bytes(file)).to_batches():
            yield from batch.to_pylist()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise DataError(
            f"{file.uri}: expected a Parquet or Arrow file, found what cannot be read as one "
            f"({error}); fetch the file again, or change data.format.layout"
        ) from None


def plain(value: Any) -> str:
    """Return a value as the text that a recipe compares it with: `true`, `3`, `accept`."""
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


def require_object(value: Any, where: str) -> dict[str, Any]:
    """Return a JSON object, or an array as {index: item}. Raises Damage for anything else."""
    if isinstance(value, list):
        return {str(place): each for place, each in enumerate(value)}
    if not isinstance(value, dict):
        raise Damage(
            f"{where}: expected a JSON object, found a {type(value).__name__}; mend the line",
            "what_is_no_object",
        )
    return value


def nested(record: Mapping[str, Any], column: str, where: str, key: str) -> Any:
    """Return the value of the field `column`, or of `outer.inner` if no field has the whole name.
    A number is the index of an array item, from 0; `*` gives a list of all items.

    Raises a Damage that lists the fields if there is none.
    """
    if column in record:
        return record[column]
    try:
        return _inside(record, column.split("."))
    except LookupError:
        raise missing_column(column, _fields(record), where, key) from None


def _inside(value: Any, names: Sequence[str]) -> Any:
    if not names:
        return value
    name, rest = names[0], names[1:]
    if isinstance(value, list):
        if name == "*":
            return [_inside(each, rest) for each in value]
        return _inside(value[int(name) if name.isdecimal() else len(value)], rest)
    return _inside(value[name] if isinstance(value, dict) else {}[name], rest)


def list_records(
    record: dict[str, Any], lists: Sequence[str], where: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (where, fields) for each item in the lists of a record, with the fields around it.

    `lists` names one list of objects, where `outer.inner` are lists inside the objects of another,
    or several lists of the same length, which are read in parallel.
    """
    if len(lists) > 1:
        columns = {name: nested(record, name, where, "data.format.each") for name in lists}
        lengths = {len(each) if isinstance(each, list) else -1 for each in columns.values()}
        if len(lengths) > 1 or -1 in lengths:
            raise Damage(
                f"{where}: expected lists of one length in {', '.join(lists)}; mend them, or "
                "change data.format.each",
                "lists_of_other_lengths",
            )
        for place in range(lengths.pop()):
            yield f"{where}.{place}", record | {name: columns[name][place] for name in lists}
        return
    records = [(where, record)]
    value: Any = None
    for name in lists[0].split("."):
        inner = []
        for at, fields in records:
            value = nested(fields, name, at, "data.format.each")
            for place, each in enumerate(value if isinstance(value, list) else [value]):
                here = f"{at}.{place}" if isinstance(value, list) else at
                inner.append((here, fields | require_object(each, here)))
        records = inner
    yield from records


def _fields(record: Mapping[str, Any]) -> list[str]:
    """The names of the fields, with dots for nested objects."""
    names: list[str] = []
    for name, value in record.items():
        inner = _fields(value) if isinstance(value, dict) else []
        names += [f"{name}.{each}" for each in inner] or [name]
    return names


def read_json(file: SourceFile, encoding: str) -> Any:
    """Parse a JSON file. Raises Damage with the line if it is not JSON."""
    remedy = "fetch the file again, or change data.format.kind"
    return parse_json(read_text(file, encoding), file, 1, "expected JSON, found none", remedy)


def parse_json(text: str, file: SourceFile, line: int, problem: str, remedy: str) -> Any:
    """Parse JSON that begins on `line` of a file. Raises Damage if it is not JSON."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise Damage(
            f"{file.uri}:{line + error.lineno - 1}: {problem} ({error.msg} at column "
            f"{error.colno}); {remedy}",
            "what_is_no_json",
        ) from None
    except (RecursionError, ValueError) as error:
        raise Damage(
            f"{file.uri}:{line}: not JSON that can be read: {error}", "what_is_no_json"
        ) from None


def column_index(column: Column, header: Sequence[str], where: str, key: str) -> int:
    """Return the index of `column`, a name in the header or an index; `key` is its config key.

    Raises a DataError that lists the columns if the name does not occur exactly once.
    """
    if isinstance(column, int):
        return column
    if header.count(column) != 1:
        raise missing_column(column, header, where, key, header.count(column))
    return header.index(column)


def missing_column(
    column: str, known: Sequence[str], where: str, key: str, times: int = 0
) -> Damage:
    """Make the error for a column that is missing or occurs more than once."""
    count = "none" if times == 0 else f"{times} of them"
    return Damage(
        f"{where}: expected one column {column!r}, found {count}{suggest(column, known)}; the "
        f"columns are {join_names(known)}; change {key}",
        "a_column_that_is_not_there",
    )
