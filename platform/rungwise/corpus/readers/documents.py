"""Read raw documents from plain text, WikiText, plain-text records of web archives, objects of JSON
Lines, and rows of Parquet and Arrow files.

A document, line, row group or record batch belongs to the range of its file that holds its first
byte, so a file may be split anywhere. Ids are `{file}`, `{file}:{offset}` in the unpacked content
or `{file}:{row number}`, relative to the source, so that they survive a move, unless a field holds
them."""

import codecs
import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rungwise.core.errors import UserError
from rungwise.core.storage.folder import file_on_disk, is_mappable
from rungwise.core.storage.source_files import SourceFile
from rungwise.corpus import config
from rungwise.corpus.document import RawDocument
from rungwise.corpus.readers import streams
from rungwise.corpus.readers.file_reader import BREAK_BYTES, FileReader, plain_breaks

_NOTE = (
    r"(?: \s* ^[\[(_]? (?: Produced | E-?text\ (?:prepared|produced)"
    r" | This\ e(?:text|book)\ was\ (?:prepared|produced) ) \ by\b .* (?: \n.+ )* )?"
)
_FLAGS = re.VERBOSE | re.MULTILINE | re.IGNORECASE
# The title may continue on a second line, which ends with the stars.
_STARTS = (
    re.compile(
        r"^\*{3}\ ?START\ OF\ (?:THE|THIS)\ PROJECT\ GUTENBERG\b .* (?: (?<!\*)\n.*\*{3}$ )?"
        rf"{_NOTE}",
        _FLAGS,
    ),
    re.compile(rf"^\*END\b .* THE\ SMALL\ PRINT .* {_NOTE}", _FLAGS),
)
_END = re.compile(
    r"^(?: \*{3}\ ?END\ OF\ (?:THE|THIS) | \**\ *End\ of\ (?:(?:the|this)\ )? )"
    r"\ ?(?:Project\ Gutenberg)",
    _FLAGS,
)


def gutenberg_text(text: str) -> str:
    """Return the book; a side without a known marker is kept whole."""
    start, end = _find_book(text)
    return text[start:end]


def gutenberg_book(content: bytes) -> tuple[int, int]:
    """Return the offsets of the lines of the book in a file: the first, and the one after its
    last."""
    # The markers are ASCII, and each byte is a character: no encoding is needed.
    text = plain_breaks(content.decode("latin-1"))
    start, end = _find_book(text)
    before, until = text.count("\n", 0, start), text.count("\n", 0, end)
    lines = content.splitlines(keepends=True)
    offsets = [*accumulate(map(len, lines), initial=0)]
    first, last = before + bool(start), len(lines) if end == len(text) else until
    return offsets[min(first, len(lines))], offsets[last]


def _find_book(text: str) -> tuple[int, int]:
    start = next((match.end() for pattern in _STARTS if (match := pattern.search(text))), 0)
    end = _END.search(text, start)
    return start, end.start() if end else len(text)


_SMALLEST_PART = 1000  # bytes of a line or of a paragraph that is cut
_PARAGRAPH_BREAK = re.compile(r"\n(?:[ \t]*\n)+")
_WIKITEXT_HEADING = re.compile(r"\s*(=(?: =)*) (.+?) \1\s*$")
_WIKITEXT_TITLE = re.compile(rb"\s*= (?!= ).* =\s*$")
_WIKITEXT_ESCAPE = re.compile(r" ?@([-,.])@ ?")
# A line of blanks, including those of Unicode in UTF-8.
_BLANK = re.compile(
    rb"(?:[\s\x1c-\x1f]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|"
    rb"\xe3\x80\x80)*"
).fullmatch


def split_paragraphs(text: str, layout: config.LineLayout) -> list[str]:
    match layout:
        case "wrapped":
            blocks = (" ".join(block.splitlines()) for block in _PARAGRAPH_BREAK.split(text))
            return list(filter(None, map(str.strip, blocks)))
        case "paragraph":
            return list(filter(str.strip, text.split("\n")))
        case "sentence":
            return list(filter(str.strip, _PARAGRAPH_BREAK.split(text)))


def text_documents(reader: FileReader, source: config.TextSource) -> Iterator[RawDocument]:
    """Yield the documents of plain text: the file, its chunks, lines, or blank-line blocks."""
    if reader.is_pointer:
        detail = "it stands for data elsewhere; fetch them, for example by git lfs pull"
        if not reader.begin:
            yield reader.skip(None, reader.file.size_bytes, "pointer", detail)
        return
    match source.documents:
        case "file":
            content = _read_whole(reader)
            if content is None:
                yield reader.skip_too_long(None, reader.file.size_bytes)
                return
            content = content.removeprefix(codecs.BOM_UTF8)
            document = _text_document(reader, source, 0, content, reader.file.name)
            if document.damage or document.paragraphs:
                yield document
        case "chunk":
            yield from _chunk_documents(reader, source)
        case "blank_line":
            yield from _block_documents(reader, source)
        case "line":
            for offset, length, line in reader.lines():
                if reader.is_past_end(offset):
                    return
                if line is None:
                    yield reader.skip_too_long(offset, length)
                elif not _BLANK(line):
                    yield _text_document(reader, source, offset, line)


@dataclass
class _OpenDocument:
    """The lines of a document that is being read, up to the limit."""

    reader: FileReader
    begin: int
    read: Callable[[int, bytes], RawDocument]
    num_bytes: int = 0
    lines: list[bytes] = field(default_factory=list)

    def add(self, line: bytes | None, num_bytes: int) -> None:
        """Add a line of `num_bytes`, None if it is too long to be read."""
        self.num_bytes += num_bytes
        if line is not None and not self._is_too_long:
            self.lines.append(line)

    def finish(self) -> Iterator[RawDocument]:
        """Yield the document, or nothing if it has no paragraph."""
        if self._is_too_long:
            document = self.reader.skip_too_long(self.begin, self.num_bytes)
        else:
            document = self.read(self.begin, b"".join(self.lines))
        if document.damage or document.paragraphs:
            yield document

    @property
    def _is_too_long(self) -> bool:
        return self.num_bytes > self.reader.maximum_bytes + BREAK_BYTES


def _read_whole(reader: FileReader) -> bytes | None:
    """Return the content of a file, or None if it is longer than a document may be."""
    pieces: list[bytes] = []
    num_bytes = 0
    for piece in reader.pieces():
        is_full = num_bytes > reader.maximum_bytes  # and what was over the limit was blank
        num_bytes += len(piece)
        if not is_full:
            pieces.append(piece)
            if num_bytes <= reader.maximum_bytes:
                continue
            pieces = [b"".join(pieces).rstrip()]
        if len(pieces[0]) > reader.maximum_bytes or (is_full and piece.strip()):
            return None
    return b"".join(pieces)


def _chunk_documents(reader: FileReader, source: config.TextSource) -> Iterator[RawDocument]:
    """Yield a document per `chunk_kilobytes` of the file, the same wherever it is split. A chunk
    begins with the first line in it; in wrapped text, the first after a blank line. What has no
    such place is cut when it is twice as large: at a line, else at a blank, else at a character.
    With `boilerplate`, the file is one range."""
    first, last = 0, None
    if source.boilerplate:
        content = _read_whole(reader)
        if content is None:
            yield reader.skip_too_long(None, reader.file.size_bytes)
            return
        first, last = gutenberg_book(content)
    chunk_bytes = max(1, round(source.chunk_kilobytes * 1000))
    begin, end = (
        place and -(-place // chunk_bytes) * chunk_bytes for place in (reader.begin, reader.end)
    )
    reader = replace(reader, begin=begin or 0, end=end)
    is_wrapped = source.lines == "wrapped"
    next_chunk, chunk = (-1 if is_wrapped and reader.begin else 0), -1
    document: _OpenDocument | None = None
    part_bytes = max(chunk_bytes, _SMALLEST_PART)
    read = partial(_text_document, reader, source)
    for offset, part, begins_line, _ in reader.line_parts(2 * part_bytes, part_bytes):
        if offset < first:
            continue
        if last is not None and offset >= last:
            break
        is_blank = bool(_BLANK(part))
        if begins_line and (is_blank or not is_wrapped):
            next_chunk = offset // chunk_bytes
        begins_chunk = next_chunk > chunk and not is_blank
        # A cut within a chunk leaves the places where others begin as they are in any range.
        is_cut = document and (not begins_line or document.num_bytes + len(part) > 2 * part_bytes)
        if begins_chunk or (is_cut and not is_blank):
            if document:
                yield from document.finish()
            if begins_chunk and reader.is_past_end(next_chunk * chunk_bytes):
                return
            chunk = max(chunk, next_chunk)
            document = _OpenDocument(reader, offset, read)
        if document:
            document.add(part, len(part))
        elif begins_line and reader.is_past_end(offset):
            return
    if document:
        yield from document.finish()


def _block_documents(reader: FileReader, source: config.TextSource) -> Iterator[RawDocument]:
    """Yield the blocks that follow blank lines of a range, even past `end`, or open the file."""
    document: _OpenDocument | None = None
    follows_blank = reader.begin == 0
    read = partial(_text_document, reader, source)
    for offset, length, line in reader.lines():
        if line is not None and _BLANK(line):
            if document:
                yield from document.finish()
                document = None
            follows_blank = True
        elif follows_blank:
            document = document or _OpenDocument(reader, offset, read)
            document.add(line, length)
        if document is None and reader.is_past_end(offset):
            return
    if document:
        yield from document.finish()


def _text_document(
    reader: FileReader, source: config.TextSource, offset: int, content: bytes, id_: str = ""
) -> RawDocument:
    if len(content) > reader.maximum_bytes < len(content.rstrip(b"\r\n")):
        return reader.skip_too_long(offset, len(content))

    def paragraphs(text: str) -> list[str]:
        text = text.removesuffix("\n")
        if source.documents == "line":
            return [text]
        if source.boilerplate and source.documents == "file":
            text = gutenberg_text(text)
        return split_paragraphs(text, source.lines)

    return reader.document(offset, content, paragraphs, source.lines == "sentence", id_)


def wikitext_documents(reader: FileReader) -> Iterator[RawDocument]:
    """Yield the articles whose titles are in the range, and any text before a file's first."""
    read = partial(reader.document, split=_wikitext_paragraphs)
    document = None if reader.begin else _OpenDocument(reader, 0, read)
    for offset, length, line in reader.lines():
        if line is not None and b"=" in line and _WIKITEXT_TITLE.match(line):
            if document:
                yield from document.finish()
            if reader.is_past_end(offset):
                return
            document = _OpenDocument(reader, offset, read)
        elif document is None and reader.is_past_end(offset):
            return
        if document:
            document.add(line, length)
    if document:
        yield from document.finish()


def _wikitext_paragraphs(text: str) -> list[str]:
    paragraphs = []
    for line in _WIKITEXT_ESCAPE.sub(r"\1", text).split("\n"):
        heading = _WIKITEXT_HEADING.match(line) if line.lstrip().startswith("=") else None
        content = heading[2] if heading else line
        if content and not content.isspace():
            paragraphs.append(content)
    return paragraphs


class _Content:
    """The unpacked content of a file, as warcio reads it."""

    def __init__(self, reader: FileReader) -> None:
        self._pieces = reader.pieces()
        self._rest = b""
        self.num_bytes = 0

    def read(self, size: int = -1) -> bytes:
        piece = self._rest or next(self._pieces, b"")
        end = len(piece) if size < 0 else size
        piece, self._rest = piece[:end], piece[end:]
        self.num_bytes += len(piece)
        return piece

    def length(self) -> int:
        """Return the length of the whole content, by reading what remains."""
        while self.read():
            pass
        return self.num_bytes


def warc_documents(reader: FileReader, source: config.WarcSource) -> Iterator[RawDocument]:
    """Yield the text of each plain-text record, in order; skip other records."""
    try:
        from warcio.archiveiterator import ArchiveIterator
        from warcio.exceptions import ArchiveLoadFailed
    except ImportError as error:
        raise UserError(
            f"{reader.key('kind')}: web archives take `pip install rungwise[web]` on every machine"
        ) from error
    unpacked = _Content(reader)
    records = ArchiveIterator(unpacked)
    try:
        for record in records:
            if not _is_text(record):
                continue
            content = record.content_stream().read(reader.maximum_bytes + 1)
            # These calls move to the end of the record; it may not state its length.
            offset, num_bytes = records.get_record_offset(), records.get_record_length()
            if len(content) > reader.maximum_bytes:
                yield reader.skip_too_long(offset, num_bytes)
                continue
            if record.http_headers is None and len(content) != record.length:
                detail = "a cut-off record, or one without its length"
                yield reader.skip(offset, num_bytes, streams.CUT_OFF, detail)
                continue
            split = partial(split_paragraphs, layout=source.lines)
            yield reader.document(offset, content, split, source.lines == "sentence")
    except ArchiveLoadFailed as error:
        at = records.offset
        yield reader.skip_rest(at, max(1, unpacked.length() - at), error, "byte")


def _is_text(record: Any) -> bool:
    if record.rec_type == "conversion":
        return True
    headers = record.http_headers or record.rec_headers
    content_type = headers.get_header("Content-Type") or ""
    return record.rec_type in ("response", "resource") and content_type.startswith("text/plain")


# A JSON line holds other fields too, and its escapes double the bytes of non-ASCII text.
_JSON_FACTOR = 2
_JSON_MORE_BYTES = 1 << 20
_ROWS_AT_ONCE = 1024
_ROW_BYTES_AT_ONCE = 16 << 20
_COLUMN_BYTES_AT_ONCE = 4 << 20
_ARROW_FILE_MAGIC = b"ARROW1\0\0"

RecordSource = config.JsonLinesSource | config.ParquetSource | config.ArrowSource


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

    def documents(
        self, batches: Iterable[pa.RecordBatch], rows: range, stored: int
    ) -> Iterator[RawDocument]:
        """Yield documents of `rows`, which take `stored` bytes; damage where reading fails."""
        reader, row, row_bytes = self._reader, rows.start, max(1, stored // len(rows))
        try:
            for record in (record for batch in batches for record in decode_rows(batch)):
                if isinstance(record, Exception):
                    # Such as a date that Python does not have.
                    reason, detail = "unsound value", f"a value that cannot be read: {record}"
                    if isinstance(record, UnicodeDecodeError):
                        reason, detail = streams.NOT_DECODED, f"not UTF-8: {record.reason}"
                    yield reader.skip(row, row_bytes, reason, detail, unit="row")
                else:
                    yield self.document(record, row, row_bytes)
                row += 1
        except (pa.ArrowException, OSError) as error:
            yield _skip_rest(reader, row, row_bytes * (rows.stop - row), error)


def decode_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | Exception]:
    """Yield the rows of a batch; an error in place of a row that Python cannot hold."""
    try:
        yield from batch.to_pylist()
    except (ValueError, OverflowError):
        for row in range(batch.num_rows):
            try:
                yield batch.slice(row, 1).to_pylist()[0]
            except (ValueError, OverflowError) as error:
                yield error


def _read_name(record: Mapping[str, Any], field: str | None, default: str) -> str:
    value = None if field is None else record[field]
    return default if value is None else str(value)


def json_documents(reader: FileReader, source: config.JsonLinesSource) -> Iterator[RawDocument]:
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


def parquet_documents(reader: FileReader, source: config.ParquetSource) -> Iterator[RawDocument]:
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
            yield from fields.documents(batches, rows, stored)


def _group_begin(group: Any) -> int:
    columns = (group.column(number) for number in range(group.num_columns))
    return min(
        min(column.dictionary_page_offset or column.data_page_offset, column.data_page_offset)
        for column in columns
    )


def arrow_documents(reader: FileReader, source: config.ArrowSource) -> Iterator[RawDocument]:
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
                        yield from fields.documents(valid, rows, stored)
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


READERS: dict[str, Callable[[FileReader, Any], Iterator[RawDocument]]] = {
    "text": text_documents,
    "wikitext": lambda reader, _: wikitext_documents(reader),
    "jsonl": json_documents,
    "parquet": parquet_documents,
    "arrow": arrow_documents,
    "warc": warc_documents,
}
