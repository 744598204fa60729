"""Read raw documents from records: JSON Lines objects, and rows of Parquet and Arrow files.

A line, row group or record batch belongs to the range of its file that holds its first byte. A
document's id is `{file}:{offset of the line}` or `{file}:{row number}` unless a field holds it."""

import contextlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rungwise.core.storage.folder import file_on_disk, is_mappable
from rungwise.core.storage.source_files import SourceFile
from rungwise.corpus.config import ArrowSource, JsonLinesSource, ParquetSource
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
_ARROW_FILE_MAGIC = b"ARROW1\0\0"

RecordSource = JsonLinesSource | ParquetSource | ArrowSource


class RecordFields:
    """Turns records into documents, by the field names of a source."""

    def __init__(self, reader: FileReader, source: RecordSource, unit: str) -> None:
        self._reader = reader
        self._source = source
        self._unit = unit
        keys = ("text_field", "id_field", "label_field")
        self._names = {key: name for key in keys if (name := getattr(source, key)) is not None}

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(self._names.values()))

    def check(self, fields: Collection[str], at: int | None, num_bytes: int) -> RawDocument | None:
        """Return the damage if a field of the source is not among `fields`."""
        for key, name in self._names.items():
            if name not in fields:
                there = ", ".join(sorted(fields)) or "none"
                detail = f"no field {name!r}; the fields are {there}"
                return self._reader.skip(at, num_bytes, "no such field", detail, key, self._unit)
        return None

    def document(
        self, record: Mapping[str, Any], at: int, num_bytes: int, encoding: str = ""
    ) -> RawDocument:
        """Build the document of a record; `encoding` is that of `RawDocument`."""
        if (damage := self.check(record, at, num_bytes)) is not None:
            return damage
        reader, source = self._reader, self._source
        text = "" if record[source.text_field] is None else record[source.text_field]
        if not isinstance(text, str):
            detail = f"the field {source.text_field!r} must be text, found {type(text).__name__}"
            return reader.skip(at, num_bytes, "no text", detail, "text_field", self._unit)
        # A lone surrogate, which JSON can hold, counts three.
        if (
            len(text) * 4 > reader.maximum_bytes
            and len(text.encode("utf-8", "surrogatepass")) > reader.maximum_bytes
        ):
            return reader.skip_too_long(at, num_bytes, self._unit)
        return RawDocument(
            _read_name(record, source.id_field, reader.document_id(at)),
            _read_name(record, source.label_field, reader.label),
            split_paragraphs(plain_breaks(text), source.lines),
            segmented=source.lines == "sentence",
            encoding=encoding,
        )


def _read_name(record: Mapping[str, Any], field: str | None, default: str) -> str:
    value = None if field is None else record[field]
    return default if value is None else str(value)


def json_documents(reader: FileReader, source: JsonLinesSource) -> Iterator[RawDocument]:
    """Yield a document for each line that begins in the range and is not blank."""
    fields = RecordFields(reader, source, "byte")
    for offset, length, line in reader.lines(
        _JSON_FACTOR * reader.maximum_bytes + _JSON_MORE_BYTES
    ):
        if reader.is_past_end(offset):
            return
        if line is None:
            yield reader.skip_too_long(offset, length)
            continue
        if line.isspace():
            continue
        try:
            text, encoding = reader.decode(line)
            record = json.loads(text)
        except UnicodeDecodeError as error:
            yield reader.skip_undecoded(offset, line, error)
            continue
        except (RecursionError, ValueError) as error:
            detail = f"not JSON that can be read: {error}"  # too deep, or a huge number
            if isinstance(error, json.JSONDecodeError):
                detail = f"not JSON: {error.msg} at column {error.colno}"
            yield reader.skip(offset, length, "not JSON", detail)
            continue
        if isinstance(record, dict):
            yield fields.document(record, offset, length, encoding)
        else:
            detail = f"expected a JSON object, found {type(record).__name__}"
            yield reader.skip(offset, length, "not JSON", detail)


def parquet_documents(reader: FileReader, source: ParquetSource) -> Iterator[RawDocument]:
    """Yield a document per row of the row groups that begin in the range."""
    fields = RecordFields(reader, source, "row")
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(reader.file.open())
        try:
            # Unbuffered: a buffer would also fetch what follows a column.
            table = pq.ParquetFile(stream.raw, buffer_size=_COLUMN_BYTES_AT_ONCE)
            parquet = stack.enter_context(table)
        except (pa.ArrowException, OSError) as error:
            yield _skip_rest(reader, None, _size(reader), error)
            return
        metadata = parquet.metadata
        first = 0
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            rows = range(first, first + group.num_rows)
            first = rows.stop
            if not rows or not reader.contains(_group_begin(group)):
                continue
            stored = sum(group.column(n).total_compressed_size for n in range(group.num_columns))
            if damage := fields.check(parquet.schema_arrow.names, rows.start, stored):
                yield damage
                continue
            rows_at_once = _ROW_BYTES_AT_ONCE * len(rows) // max(1, group.total_byte_size)
            batches = parquet.iter_batches(
                batch_size=min(max(rows_at_once, 1), _ROWS_AT_ONCE),
                row_groups=[number],
                columns=fields.names,
            )
            yield from _row_documents(reader, fields, batches, rows, stored)


def _group_begin(group: Any) -> int:
    columns = (group.column(number) for number in range(group.num_columns))
    return min(
        min(column.dictionary_page_offset or column.data_page_offset, column.data_page_offset)
        for column in columns
    )


def _row_documents(
    reader: FileReader,
    fields: RecordFields,
    batches: Iterable[pa.RecordBatch],
    rows: range,
    stored: int,
) -> Iterator[RawDocument]:
    """Yield documents of `rows`, which take `stored` bytes; damage where reading fails."""
    row, row_bytes = rows.start, max(1, stored // len(rows))
    try:
        for batch in batches:
            for record in _records(batch):
                if isinstance(record, Exception):
                    # Such as a date that Python does not have.
                    reason, detail = "unsound value", f"a value that cannot be read: {record}"
                    if isinstance(record, UnicodeDecodeError):
                        reason, detail = streams.NOT_DECODED, f"not UTF-8: {record.reason}"
                    yield reader.skip(row, row_bytes, reason, detail, unit="row")
                else:
                    yield fields.document(record, row, row_bytes)
                row += 1
    except (pa.ArrowException, OSError) as error:
        yield _skip_rest(reader, row, row_bytes * (rows.stop - row), error)


def _records(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | Exception]:
    """Yield the rows of a batch; an error in place of a row that Python cannot hold."""
    try:
        yield from batch.to_pylist()
    except (ValueError, OverflowError):
        for row in range(batch.num_rows):
            try:
                yield batch.slice(row, 1).to_pylist()[0]
            except (ValueError, OverflowError) as error:
                yield error


def arrow_documents(reader: FileReader, source: ArrowSource) -> Iterator[RawDocument]:
    """Yield a document per row of the record batches that begin in the range."""
    fields = RecordFields(reader, source, "row")
    row = 0
    with _open_arrow(reader.file) as stream:
        try:
            with pa.ipc.open_stream(stream) as batches:
                if damage := fields.check(batches.schema.names, None, _size(reader)):
                    yield damage
                    return
                while not reader.is_past_end(at := stream.tell()):
                    try:
                        batch = batches.read_next_batch()
                    except StopIteration:
                        return
                    rows = range(row, row + batch.num_rows)
                    row = rows.stop
                    if rows and reader.contains(at):
                        stored = stream.tell() - at
                        valid = _validate(batch.select(fields.names))
                        yield from _row_documents(reader, fields, valid, rows, stored)
        except (pa.ArrowException, OSError) as error:
            yield _skip_rest(reader, row, _size(reader), error)


def _validate(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    # With damaged offsets, Arrow silently reads past the end of a buffer.
    batch.validate(full=True)
    yield batch


def _size(reader: FileReader) -> int:
    return (reader.file.size_bytes if reader.end is None else reader.end) - reader.begin


def _skip_rest(
    reader: FileReader, row: int | None, num_bytes: int, error: Exception
) -> RawDocument:
    if isinstance(error, OSError) and error.errno is not None:
        raise error
    return reader.skip_rest(row, num_bytes, error, "row")


def _open_arrow(file: SourceFile) -> pa.NativeFile:
    """Open an Arrow file, of either format, where its stream of record batches begins."""
    # Only the touched pages of a mapped file are read: skipping batches is free.
    if is_mappable(file.uri):
        stream = pa.memory_map(file_on_disk(file.uri))
    else:
        stream = pa.PythonFile(file.open(), mode="r")
    if stream.read(len(_ARROW_FILE_MAGIC)) != _ARROW_FILE_MAGIC:
        stream.seek(0)
    return stream
