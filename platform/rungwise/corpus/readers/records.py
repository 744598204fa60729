"""Read raw documents from records: JSON Lines objects, and rows of Parquet and Arrow files.

A line, row group or record batch belongs to the part of its file that holds its first byte. A
document's id is `{file}:{offset of the line}` or `{file}:{row number}` unless a field holds it.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from rungwise.core.storage.object_store import is_remote
from rungwise.core.storage.source_files import SourceFile
from rungwise.corpus.cleaning.spans import is_list_of_spans
from rungwise.corpus.config import ArrowSource, JsonLinesSource, Lines, ParquetSource, find_codec
from rungwise.corpus.document import RawDocument
from rungwise.corpus.readers import streams
from rungwise.corpus.readers.file_reader import FileReader, plain_breaks
from rungwise.corpus.readers.text import split_paragraphs

# A JSON line holds other fields too, and its escapes double the bytes of non-ASCII text.
_JSON_FACTOR = 2
_JSON_MORE_BYTES = 1 << 20
_ROWS_AT_ONCE = 1024
_ROW_BYTES_AT_ONCE = 16 << 20
_COLUMN_BYTES_AT_ONCE = 4 << 20
_FIELDS = ("text_field", "id_field", "label_field", "spans_field")
_ARROW_FILE_MAGIC = b"ARROW1\0\0"

RecordSource = JsonLinesSource | ParquetSource | ArrowSource


class Fields:
    """Turns records into documents, by the field names of a source."""

    def __init__(self, part: FileReader, source: RecordSource, unit: str) -> None:
        self._part = part
        self._lines: Lines = source.lines
        self._unit = unit
        self._names = {key: name for key in _FIELDS if (name := getattr(source, key)) is not None}
        self._text = source.text_field
        self._id, self._label, self._spans = map(self._names.get, _FIELDS[1:])

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(self._names.values()))

    def missing(self, known: Iterable[str], at: int | None, num_bytes: int) -> RawDocument | None:
        """Return the damage if a field of the source is not in `known`."""
        for key, name in self._names.items():
            if name not in known:
                there = ", ".join(sorted(known)) or "none"
                detail = f"no field {name!r}; the fields are {there}"
                return self._skipped(at, num_bytes, "no such field", detail, key)
        return None

    def document(
        self, record: Mapping[str, Any], at: int, num_bytes: int, exact: Callable[[], Any]
    ) -> RawDocument:
        """Build the document of a record; `exact` parses it again, with integers of any size."""
        if (damaged := self.missing(record, at, num_bytes)) is not None:
            return damaged
        part = self._part
        text = record[self._text]
        if text is None:
            text = ""
        elif not isinstance(text, str):
            detail = f"the field {self._text!r} must be text, found {type(text).__name__}"
            return self._skipped(at, num_bytes, "no text", detail, "text_field")
        id_, label = (
            default if name is None else _name_in(record, name, exact, default)
            for name, default in ((self._id, part.id_at(at)), (self._label, part.label))
        )
        if len(text) * 4 > part.maximum_bytes and streams.utf8_length(text) > part.maximum_bytes:
            return part.too_long(at, num_bytes, self._unit)
        spans = None if self._spans is None else record[self._spans]
        spans = [] if spans is None else spans
        if not is_list_of_spans(spans):
            detail = (
                f"the field {self._spans!r} must be a list of [start, end) in characters of the "
                f"text, such as [[0, 5]], found {json.dumps(spans, default=str)[:60]}"
            )
            return self._skipped(at, num_bytes, "no spans", detail, "spans_field")
        return RawDocument(
            id_,
            label,
            split_paragraphs(plain_breaks(text) if "\r" in text else text, self._lines),
            segmented=self._lines == "sentence",
            text=text if spans else "",
            spans=[(start, end) for start, end in spans],
        )

    def _skipped(
        self, at: int | None, num_bytes: int, reason: str, detail: str, key: str
    ) -> RawDocument:
        part = self._part
        return part.skipped(at, num_bytes, reason, detail, part.key(key), self._unit)


def _name_in(record: Mapping[str, Any], name: str, exact: Callable[[], Any], default: str) -> str:
    value = record[name]
    if isinstance(value, float):
        value = exact()[name]
    return default if value is None else str(value)


def json_documents(part: FileReader, source: JsonLinesSource) -> Iterator[RawDocument]:
    """Yield a document for each line that begins in the part and is not blank."""
    fields = Fields(part, source, "byte")
    utf8 = find_codec(part.encoding).is_utf8
    for offset, length, line in part.lines(_JSON_FACTOR * part.maximum_bytes + _JSON_MORE_BYTES):
        if part.ends_before(offset):
            return
        if line is None:
            yield part.too_long(offset, length)
            continue
        if line.isspace():
            continue
        try:
            text = line if utf8 else part.text(line)
            record = orjson.loads(text)
        except ValueError:
            # The standard library accepts more (NaN, lone surrogates) and has better messages.
            try:
                text = part.text(line)
                record = json.loads(text)
            except UnicodeDecodeError as error:
                yield part.not_decoded(offset, line, error)
                continue
            except (RecursionError, ValueError) as error:
                yield _not_json(part, offset, length, error)
                continue
        if isinstance(record, dict):
            yield fields.document(record, offset, length, partial(json.loads, text))
        else:
            detail = f"expected a JSON object, found {type(record).__name__}"
            yield part.skipped(offset, length, "not JSON", detail, part.key("paths"))


def _not_json(part: FileReader, offset: int, length: int, error: Exception) -> RawDocument:
    detail = f"not JSON that can be read: {error}"  # nested too deeply, or a huge number
    if isinstance(error, json.JSONDecodeError):
        detail = f"not JSON: {error.msg} at column {error.colno}"
    return part.skipped(offset, length, "not JSON", detail, part.key("paths"))


def parquet_documents(part: FileReader, source: ParquetSource) -> Iterator[RawDocument]:
    """Yield a document per row of the row groups that begin in the part."""
    fields = Fields(part, source, "row")
    with contextlib.ExitStack() as closing:
        stream = closing.enter_context(seekable(part.file))
        try:
            parquet = closing.enter_context(
                pq.ParquetFile(stream, buffer_size=_COLUMN_BYTES_AT_ONCE)
            )
        except (pa.ArrowException, OSError) as error:
            yield _unsound(part, None, _size_of(part), error)
            return
        metadata = parquet.metadata
        first = 0
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            rows = range(first, first + group.num_rows)
            first = rows.stop
            if not rows or not part.holds(_begin_of(group)):
                continue
            stored = sum(group.column(n).total_compressed_size for n in range(group.num_columns))
            if damaged := fields.missing(parquet.schema_arrow.names, rows.start, stored):
                yield damaged
                continue
            rows_at_once = _ROW_BYTES_AT_ONCE * len(rows) // max(1, group.total_byte_size)
            batches = parquet.iter_batches(
                batch_size=min(max(rows_at_once, 1), _ROWS_AT_ONCE),
                row_groups=[number],
                columns=fields.names,
            )
            yield from _row_documents(part, fields, batches, rows, stored)


def _begin_of(group: Any) -> int:
    columns = (group.column(number) for number in range(group.num_columns))
    return min(
        min(column.dictionary_page_offset or column.data_page_offset, column.data_page_offset)
        for column in columns
    )


def _row_documents(
    part: FileReader, fields: Fields, batches: Iterable[pa.RecordBatch], rows: range, stored: int
) -> Iterator[RawDocument]:
    """Yield documents of `rows`, which take `stored` bytes; damage where reading fails."""
    row, bytes_a_row = rows.start, max(1, stored // len(rows))
    try:
        for batch in batches:
            for record in _records(batch):
                if isinstance(record, UnicodeDecodeError):
                    detail = f"not UTF-8: {record.reason}"
                    yield part.skipped(
                        row, bytes_a_row, streams.NOT_DECODED, detail, part.key("paths"), "row"
                    )
                else:
                    yield fields.document(record, row, bytes_a_row, lambda r=record: r)
                row += 1
    except (pa.ArrowException, OSError) as error:
        yield _unsound(part, row, bytes_a_row * (rows.stop - row), error)


def _records(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | UnicodeDecodeError]:
    """Yield the rows of a batch; an error in place of a row that is not UTF-8."""
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:
        for row in range(batch.num_rows):
            try:
                yield batch.slice(row, 1).to_pylist()[0]
            except UnicodeDecodeError as error:
                yield error


def arrow_documents(part: FileReader, source: ArrowSource) -> Iterator[RawDocument]:
    """Yield a document per row of the record batches that begin in the part."""
    fields = Fields(part, source, "row")
    row = 0
    with _arrow_stream(part.file) as stream:
        try:
            if stream.read(len(_ARROW_FILE_MAGIC)) != _ARROW_FILE_MAGIC:
                stream.seek(0)
            with pa.ipc.open_stream(stream) as reader:
                if damaged := fields.missing(reader.schema.names, None, _size_of(part)):
                    yield damaged
                    return
                while not part.ends_before(at := stream.tell()):
                    try:
                        batch = reader.read_next_batch()
                    except StopIteration:
                        return
                    rows = range(row, row + batch.num_rows)
                    row = rows.stop
                    if rows and part.holds(at):
                        batches = _validated(batch.select(fields.names))
                        stored = stream.tell() - at
                        yield from _row_documents(part, fields, batches, rows, stored)
        except (pa.ArrowException, OSError) as error:
            yield _unsound(part, row, _size_of(part), error)


def _validated(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    # With damaged offsets, Arrow silently reads past the end of a buffer.
    batch.validate(full=True)
    yield batch


def _size_of(part: FileReader) -> int:
    return (part.file.size_bytes if part.end is None else part.end) - part.begin


def _unsound(part: FileReader, row: int | None, num_bytes: int, error: Exception) -> RawDocument:
    if isinstance(error, OSError) and error.errno is not None:
        raise error
    detail = f"unsound from here on: {' '.join(str(error).split())[:200]}"
    return part.skipped(row, num_bytes, streams.UNSOUND, detail, part.key("paths"), "row")


def _arrow_stream(file: SourceFile) -> pa.NativeFile:
    # Only the touched pages of a mapped file are read: skipping batches is free.
    if not is_remote(file.uri):
        return pa.memory_map(file.uri)
    return pa.PythonFile(file.open(), mode="r")


@contextlib.contextmanager
def seekable(file: SourceFile) -> Iterator[Any]:
    """Open a file for seeking; a compressed one is first unpacked to disk."""
    if not streams.compression_suffix(file.name):
        with file.open() as stream:
            # Unbuffered: a buffer would also fetch what follows a column.
            yield stream.raw
        return
    with tempfile.TemporaryFile() as unpacked:
        for piece in streams.read_pieces(file):
            unpacked.write(piece)
        unpacked.seek(0)
        yield unpacked
