"""The base of all formats of task data, helpers for reading and for messages, and records: the rows
of delimited text, and the objects of JSON, JSON Lines, Parquet and Arrow.

file ──> rows or objects ──> the records inside each (`each`) ──> the fields that are asked for"""

from __future__ import annotations

import contextlib
import csv
import difflib
import io
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BeforeValidator, Field, field_validator, model_validator

from rungwise.core.configuration.config import Config
from rungwise.core.errors import DataError, list_first
from rungwise.core.storage.source_files import SourceFile, refuse_bomb
from rungwise.corpus.config import DETECT, has_ascii_breaks
from rungwise.corpus.readers.streams import UnsoundError, read_pieces
from rungwise.tasks.kinds.examples import SPLITS, Damage, Example, Kind, check_encodable

if TYPE_CHECKING:
    from _csv import Reader

Files = Sequence[SourceFile]
DROPPED = "damaged_examples_dropped"  # their counter
_SHOWN = 60
_NAMES_SHOWN = 20


class FormatConfig(Config, ABC):
    """Base of the format blocks. What follows from the format is a property, never a key."""

    encoding: str = "utf-8"  # a Python codec
    on_error: Literal["error", "drop"] = "error"  # a damaged example: fail, or drop and count it

    @field_validator("encoding")
    @classmethod
    def _check_encoding(cls, encoding: str) -> str:
        has_ascii_breaks(encoding)
        if encoding == DETECT:
            raise ValueError(f"{DETECT} is for corpora; name the encoding, such as gb18030")
        return encoding

    fixed_kind: ClassVar[Kind]  # the kind of task, where it does not depend on the keys

    @property
    def task_kind(self) -> Kind:
        """The kind of task in files of this format."""
        return self.fixed_kind

    @abstractmethod
    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Example]:
        """Yield the examples of a file in order; `counts` counts those left out, by reason. Raises
        DataError, naming file and line, for data that cannot be used."""

    def select_files(self, files: Files, counts: Counter[str]) -> Files:
        """Return the files of a split that hold examples; `counts` counts the others."""
        return files

    @contextlib.contextmanager
    def skip_damage(self, counts: Counter[str], counter: str = DROPPED) -> Iterator[None]:
        """Skip what raises Damage if `on_error` is drop, and count it."""
        try:
            yield
        except Damage:
            if self.on_error == "error":
                raise
            counts[counter] += 1

    @property
    def stated_labels(self) -> tuple[str, ...]:
        """The names of the labels in order, each once; () if the file decides."""
        labels = getattr(self, "labels", None) or ()
        return tuple(dict.fromkeys(labels.values() if isinstance(labels, dict) else labels))


def _as_names(value: Any) -> Any:
    """Turn numbers into text: YAML reads `0` as a number, but the label in the file is text."""
    if value == [] or value == {}:
        raise ValueError("expected labels, found none; leave the key out to take the file's")

    def as_text(item: Any) -> Any:
        return str(item) if isinstance(item, int) and not isinstance(item, bool) else item

    if isinstance(value, Mapping):
        return {as_text(key): item for key, item in value.items()}
    return tuple(map(as_text, value)) if isinstance(value, list | tuple) else value


# {value in the file: name}, or only the names.
Labels = Annotated[dict[str, str] | tuple[str, ...], BeforeValidator(_as_names)]


def label_name(value: str, labels: dict[str, str] | tuple[str, ...] | None, where: str) -> str:
    """Return the name of the label written as `value`; raise Damage if it is empty or not one of
    the stated labels."""
    if value and (labels is None or value in labels):
        return labels[value] if isinstance(labels, dict) else value
    if not value or labels is None:
        raise Damage.explain(where, "a label", "nothing", "labels")
    expected = f"one of the labels {join_names(labels)}"
    raise Damage.explain(where, expected, quote(value) + suggest(value, labels), "labels")


def read_bytes(file: SourceFile) -> bytes:
    """Read a file, unpacked if its name ends in .gz. Raises DataError if it is damaged, or unpacks
    to far more than text does."""
    pieces, num_bytes = [], 0
    try:
        for piece in read_pieces(file):
            num_bytes += len(piece)
            refuse_bomb(file, num_bytes)
            pieces.append(piece)
        return b"".join(pieces)
    except UnsoundError as error:
        raise DataError(f"{file.uri}: {error}; fetch the file again") from None


def read_text(file: SourceFile, encoding: str | None = None) -> str:
    """Read a file as text, without a byte order mark; without `encoding`, which is a key of tasks,
    as UTF-8. Raises DataError if it is not in `encoding`, naming the line, or is a damaged .gz."""
    content = read_bytes(file)
    try:
        return content.decode(encoding or "utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        before = error.object[: error.start].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        line, remedy = before.count(bytes([10])) + 1, "convert the file"
        if encoding:
            remedy = "set data.format.encoding to what the file is in, or convert it"
        raise DataError(
            f"{file.uri}:{line}: expected {error.encoding.upper()}, found the byte "
            f"0x{error.object[error.start]:02x}; {remedy}"
        ) from None


def split_lines(text: str) -> list[str]:
    """Split a text at LF, CRLF and CR only; the lines have no line ends."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def words(value: Any, where: str, what: str) -> str:
    """Return `value` if it is a text that is not blank, or join a list of texts by blanks;
    raise Damage that names `what` for anything else."""
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        value = " ".join(each for each in value if each.strip())
    if not isinstance(value, str):
        raise Damage.explain(where, f"text as {what}", quote(value))
    if not value.strip():
        raise Damage(
            f"{where}: {what} is empty; mend the line, or check which column data.format names"
        )
    return check_encodable(value, where, what)


def quote(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def join_names(names: Iterable[str]) -> str:
    return list_first(names, _NAMES_SHOWN) or "none"


def suggest(name: str, names: Iterable[str]) -> str:
    """Suggest the most similar name; empty if none is similar."""
    matches = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


Column = str | int  # a name in the header, or an index from 0
Row = dict[str, Any]  # values by name or key
Record = tuple[str, Row]  # (place in the file, values)
_LONGEST_CELL = 1 << 30  # the csv module's default is 131,072 characters; passages are longer
_ARROW_FILE, _ARROW_STREAM = b"ARROW1\0\0", b"\xff\xff\xff\xff"


def read_cells(lines: Iterable[str], delimiter: str, *, quoting: bool) -> Reader:
    """Return a csv.reader. With `quoting` a cell may be in double quotes, with quotes inside it
    doubled; else a quote is an ordinary character. Raises csv.Error if quotes do not match."""
    csv.field_size_limit(_LONGEST_CELL)  # of the process: another library may have set it
    style = csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE
    return csv.reader(lines, delimiter=delimiter, quoting=style, strict=True)


def number_rows(rows: Reader, source: str, remedy: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, cells) of each row that is not blank, with the line that the row begins on.
    Raises DataError, with `source`, the line and a `remedy`, if quotes do not match."""
    line = 1
    try:
        for cells in rows:
            if cells:
                yield line, cells
            line = rows.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{source}:{line}: the quotes of this row do not match ({error}); mend the row, or "
            f"{remedy}"
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
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
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
        raise Damage.explain(where, "a JSON object", f"a {type(value).__name__}")
    return value


def get_nested(record: Mapping[str, Any], column: str, where: str, key: str) -> Any:
    """Return the value of the field `column`, or of `outer.inner` if no field has the whole name. A
    number is the index of an array item, from 0; `*` gives a list of all items. Raises a Damage
    that lists the fields if there is none."""
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
    record: dict[str, Any], lists: str, place: str, uri: str, key: str
) -> Iterator[Record]:
    """Yield (place, fields) for each item in the list of a record, with the fields around it;
    `outer.inner` are the lists inside of the objects of another. `key` is the config key."""
    records = [(place, record)]
    for name in lists.split("."):
        inner = []
        for at, fields in records:
            value = get_nested(fields, name, f"{uri}:{at}", key)
            for number, each in enumerate(value if isinstance(value, list) else [value]):
                here = f"{at}.{number}" if isinstance(value, list) else at
                inner.append((here, fields | require_object(each, f"{uri}:{here}")))
        records = inner
    yield from records


def _fields(record: Mapping[str, Any]) -> list[str]:
    """The names of the fields, with dots for nested objects."""
    names: list[str] = []
    for name, value in record.items():
        inner = _fields(value) if isinstance(value, dict) else []
        names += [f"{name}.{each}" for each in inner] or [name]
    return names


def parse_json(text: str, source: str, line: int, problem: str, remedy: str) -> Any:
    """Parse JSON that begins on `line` of a source. Raises Damage if it is not JSON."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise Damage(
            f"{source}:{line + error.lineno - 1}: {problem} ({error.msg} at column "
            f"{error.colno}); {remedy}"
        ) from None
    except (RecursionError, ValueError) as error:
        raise Damage(f"{source}:{line}: not JSON that can be read: {error}") from None


def column_index(column: Column, header: Sequence[str], where: str, key: str) -> int:
    """Return the index of `column`, a name in the header or an index; `key` is its config key.
    Raises a DataError that lists the columns if the name does not occur exactly once."""
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
        f"columns are {join_names(known)}; change {key}"
    )


# The texts of several columns are joined by blanks.
TextColumn = Column | tuple[Column, ...]
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


class RecordsFormat(FormatConfig):
    """Records by the names of their fields, or by indexes from 0."""

    # delimited rows, a JSON object per line, one JSON array or object, or Parquet (also Arrow)
    layout: Layout = "delimited"
    # JSON: the field of a record that lists its examples; its other fields apply to each
    each: str | None = None
    delimiter: str = Field(default="\t", min_length=1, max_length=1)
    header: bool = True
    quoting: bool = False  # fields may be quoted; false: a quote is an ordinary character
    rest_of_line: bool = False  # the last column read extends to the end of the line
    extra_columns: bool = False  # rows may be longer than the first one
    # how one file holds all splits; null: each split has its own files
    split: SplitColumn | None = None

    columns: Any  # the block of columns, which every format declares

    @property
    def fields(self) -> dict[str, TextColumn | None]:
        """The columns to read, by their keys below `data.format`."""
        return {f"columns.{key}": value for key, value in self.columns}

    def named_columns(self) -> dict[str, TextColumn]:
        """Return the `fields` that are set, and the column of the split."""
        columns = {**self.fields, "split.column": self.split.column if self.split else None}
        return {key: column for key, column in columns.items() if column is not None}

    @model_validator(mode="after")
    def _layout(self) -> RecordsFormat:
        if self.layout == "delimited" and self.each:
            raise ValueError("each is a list inside of JSON; set layout to json or json_lines")
        if self.rest_of_line and self.quoting:
            raise ValueError("rest_of_line takes the line as it is; set quoting to false")
        return self

    @abstractmethod
    def example(self, row: Row, place: str, where: str, counts: Counter[str]) -> Example | None:
        """Return the example of a record, None if it is left out, which `counts` counts. `place`
        stands in the example, `where` in messages. Raises Damage."""

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Any]:
        for line, row in self.records(file, split, counts):
            with self.skip_damage(counts):
                places = f"{file.name}:{line}", f"{file.uri}:{line}"
                if (example := self.example(row, *places, counts)) is not None:
                    yield example

    def records(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Record]:
        """Yield the records of a split, with values by key; several columns give a list."""
        source = self._from_cells if self.layout == "delimited" else self._from_json
        for line, record in source(file, counts):
            value = plain(record.get("split.column"))
            own = [name for name in SPLITS if value in (getattr(self.split, name, None) or ())]
            if self.split is None or split in own:
                yield line, record
            elif not own and split == SPLITS[0]:  # once, not for each split
                counts["records_left_out_with_another_value_of_the_split"] += 1

    def _from_cells(self, file: SourceFile, counts: Counter[str]) -> Iterator[Record]:
        indexes: dict[str, int | list[int]] = {}
        width = 0
        text = io.StringIO(read_text(file, self.encoding), newline="")
        rows = read_cells(text, self.delimiter, quoting=self.quoting)
        remedy = "set data.format.quoting to false if quotes are characters like others"
        for line, cells in number_rows(rows, file.uri, remedy):
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
            with self.skip_damage(counts):
                if len(cells) < width or (len(cells) > width and not self.extra_columns):
                    raise Damage.explain(
                        where,
                        f"{width} columns separated by {self.delimiter!r}",
                        f"{len(cells)}: {quote(self.delimiter.join(cells))}",
                        "delimiter, quoting or columns, or leave such rows out by on_error: drop",
                    )
                values = {
                    key: cells[at] if isinstance(at, int) else [cells[each] for each in at]
                    for key, at in indexes.items()
                }
                yield str(line), values

    def _from_json(self, file: SourceFile, counts: Counter[str]) -> Iterator[Record]:
        for place, record in read_objects(self, self.layout, file, counts):
            with self.skip_damage(counts):
                records = [(place, record)]
                if self.each:
                    records = list_records(record, self.each, place, file.uri, "data.format.each")
                for at, fields in records:
                    with self.skip_damage(counts):
                        yield at, self._values(fields, f"{file.uri}:{at}")

    def _values(self, record: dict[str, Any], where: str) -> dict[str, Any]:
        values = {}
        for key, column in self.named_columns().items():
            names = _columns(column)
            each = [get_nested(record, str(name), where, f"data.format.{key}") for name in names]
            values[key] = each if isinstance(column, tuple) else each[0]
        return values


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
                with form.skip_damage(counts):
                    value = parse_json(text, file.uri, line, problem, remedy)
                    yield str(line), require_object(value, f"{file.uri}:{line}")
        return
    if layout == "parquet":
        yield from ((f"row {number}", row) for number, row in enumerate(read_parquet(file), 1))
        return
    remedy = "fetch the file again, or change data.format.kind"
    text = read_text(file, form.encoding)
    data = parse_json(text, file.uri, 1, "expected JSON, found none", remedy)
    if not isinstance(data, list | dict):
        raise DataError(
            f"{file.uri}: expected a JSON array of objects, found a {type(data).__name__}; change "
            "data.format.layout (json_lines has an object on each line) or data.format.kind"
        )
    for number, each in enumerate([data] if isinstance(data, dict) else data, start=1):
        with form.skip_damage(counts):
            yield f"item {number}", require_object(each, f"{file.uri}, item {number}")


def _columns(column: TextColumn) -> tuple[Column, ...]:
    return column if isinstance(column, tuple) else (column,)
