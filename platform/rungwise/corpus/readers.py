"""Read raw documents from the files of a source: text, WikiText, JSON Lines, Parquet, and .gz.

A file is read as a stream, so that a worker holds at most one document of it, and none larger than
`maximum_bytes`. It is decoded as UTF-8, with or without BOM. A part that cannot be read because of
the file itself (it is not UTF-8, its .gz is cut off or corrupt, a document is too long) becomes a
document without text and with a reason, and the rest is read. A line that is not JSON, or a missing
field, is a DataError that names the file, the place in it and the key to change. Ids are `{file}`
or `{file}:{line}`, relative to the source, so that they survive a move.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from rungwise.core.errors import DataError
from rungwise.core.storage import SourceFile, reached
from rungwise.corpus.document import Damage, RawDocument
from rungwise.corpus.sources import (
    FileSource,
    JsonLinesSource,
    Lines,
    ParquetSource,
    TextSource,
    WikiTextSource,
    key_of,
)
from rungwise.corpus.spans import is_list_of_spans
from rungwise.corpus.streams import (
    TOO_LONG,
    Content,
    Line,
    UnsoundGzipError,
    check,
    lines,
    utf8_length,
)

_PARAGRAPH_BREAK = re.compile(r"\n(?:[ \t]*\n)+")
_WIKITEXT_HEADING = re.compile(r"\s*(=(?: =)*) (.+?) \1\s*$")
_WIKITEXT_ESCAPE = re.compile(r" ?@([-,.])@ ?")
_EMPTY = "empty file"
_NOT_UTF8 = "not UTF-8"
_ROWS_AT_ONCE = 1024
_ROW_BYTES_AT_ONCE = 16 << 20
_FIELDS = ("text_field", "id_field", "label_field", "spans_field")
# A line of JSON has other fields too, and spells what is not ASCII with twice the bytes.
_JSON_FACTOR = 2
_JSON_MORE_BYTES = 1 << 20


def read_file(
    file: SourceFile, source: FileSource, index: int, maximum_bytes: int
) -> Iterator[RawDocument]:
    """The documents in one file of source number `index`, in order; at least one."""
    any_document = False
    try:
        with reached(file.uri, key_of(index, "paths")):
            for document in _documents(file, source, index, maximum_bytes):
                any_document = True
                yield document
    except OSError as error:
        raise DataError(f"cannot read {file.uri}: {error.strerror or error}") from error
    if not any_document:
        yield RawDocument(file.name, _stem(file), (), reason=_EMPTY)


def _documents(
    file: SourceFile, source: FileSource, index: int, maximum_bytes: int
) -> Iterator[RawDocument]:
    if file.size_bytes == 0:
        return
    if isinstance(source, ParquetSource):
        yield from _parquet_documents(file, source, index, maximum_bytes)
        return
    content = Content(file)
    checked = check(content)
    encoding, errors = "utf-8", "strict"
    if checked.invalid_at is not None:
        match source.invalid_utf8:
            case "drop":
                yield _unreadable(file, file.name, _NOT_UTF8, f"not UTF-8: {checked.invalid}")
                return
            case "refuse":
                raise DataError(
                    f"{file.uri} is not UTF-8: {checked.invalid}; convert it, or set "
                    f"{key_of(index, 'invalid_utf8')} to drop, replace or latin-1"
                )
            case "replace":
                errors = "replace"
            case "latin-1":
                # A second reading of files that are not UTF-8; the others stay what they are.
                encoding = "latin-1"
    maximum_line = maximum_bytes
    if isinstance(source, JsonLinesSource):
        maximum_line = _JSON_FACTOR * maximum_bytes + _JSON_MORE_BYTES
    numbered = lines(content, checked, encoding, errors, maximum_line)
    match source:
        case TextSource():
            documents = _text_documents(numbered, file, source, maximum_bytes)
        case WikiTextSource():
            documents = _wikitext_documents(
                numbered, file, source.label or _stem(file), maximum_bytes
            )
        case JsonLinesSource():
            documents = _json_documents(numbered, file, source, index, maximum_bytes)
    for document in documents:
        if document.reason and document.reason == checked.reason:
            yield _unreadable(file, document.id, document.reason, checked.detail)
        else:
            yield document


def _unreadable(file: SourceFile, id_: str, reason: str, detail: str) -> RawDocument:
    damage = Damage(file.uri, "", file.size_bytes, detail, "corpus.sources.0.paths")
    return RawDocument(id_, _stem(file), (), reason=reason, damage=damage)


def paragraphs_of(text: str, lines: Lines) -> list[str]:
    """Split a text into paragraphs, its lines laid out as `lines` says."""
    match lines:
        case "wrapped":
            blocks = _PARAGRAPH_BREAK.split(text)
            return [joined for block in blocks if (joined := " ".join(block.split()))]
        case "paragraph":
            return [line for line in text.split("\n") if line.strip()]
        case "sentence":
            return [block for block in _PARAGRAPH_BREAK.split(text) if block.strip()]


class _LineBuffer:
    """Collects the lines of one document, up to the size that it may have."""

    def __init__(self, maximum_bytes: int) -> None:
        self._left = maximum_bytes
        self._lines: list[str] = []
        self.reason = ""

    def add(self, text: str, reason: str = "") -> None:
        self._left -= utf8_length(text) + 1
        # The break that the last line does not need is not counted, nor is what is blank after it.
        self.reason = reason or self.reason or (TOO_LONG if self._left < -1 and text else "")
        if self.reason:
            self._lines = []
        else:
            self._lines.append(text)

    def __bool__(self) -> bool:
        return bool(self._lines or self.reason)

    def document(self, id_: str, label: str, source: TextSource) -> RawDocument:
        if self.reason:
            return RawDocument(id_, label, (), reason=self.reason)
        paragraphs = paragraphs_of("\n".join(self._lines), source.lines)
        return RawDocument(id_, label, paragraphs, segmented=source.lines == "sentence")


def _text_documents(
    numbered: Iterator[Line], file: SourceFile, source: TextSource, maximum_bytes: int
) -> Iterator[RawDocument]:
    label = source.label or _stem(file)
    match source.documents:
        case "file":
            whole, blank = _LineBuffer(maximum_bytes), True
            for _, line, reason in numbered:
                whole.add(line, reason)
                blank = blank and not reason and not line.strip()
            if not blank:
                yield whole.document(file.name, label, source)
        case "blank_line":
            block, opened = _LineBuffer(maximum_bytes), 1
            for number, line, reason in numbered:
                if reason or line.strip():
                    opened = opened if block else number
                    block.add(line, reason)
                elif block:
                    yield block.document(f"{file.name}:{opened}", label, source)
                    block = _LineBuffer(maximum_bytes)
            if block:
                yield block.document(f"{file.name}:{opened}", label, source)
        case "line":
            segmented = source.lines == "sentence"
            for number, line, reason in numbered:
                if reason or line.strip():
                    texts = (line,) if line else ()
                    yield RawDocument(f"{file.name}:{number}", label, texts, segmented, reason)


def _wikitext_documents(
    numbered: Iterator[Line], file: SourceFile, label: str, maximum_bytes: int
) -> Iterator[RawDocument]:
    opened, paragraphs, left, stopped = 1, [], maximum_bytes, ""
    for number, line, reason in numbered:
        heading = _WIKITEXT_HEADING.match(line)
        if heading and heading[1] == "=":
            if paragraphs or stopped:
                yield RawDocument(f"{file.name}:{opened}", label, paragraphs, reason=stopped)
            opened, paragraphs, left, stopped = number, [], maximum_bytes, ""
        left -= utf8_length(line) + 1
        stopped = reason or stopped or (TOO_LONG if left < -1 else "")
        content = heading[2] if heading else line
        if stopped:
            paragraphs = []
        elif content.strip():
            paragraphs.append(_WIKITEXT_ESCAPE.sub(r"\1", content))
    if paragraphs or stopped:
        yield RawDocument(f"{file.name}:{opened}", label, paragraphs, reason=stopped)


def _json_documents(
    numbered: Iterator[Line],
    file: SourceFile,
    source: JsonLinesSource,
    index: int,
    maximum_bytes: int,
) -> Iterator[RawDocument]:
    for number, line, reason in numbered:
        if reason:
            yield RawDocument(f"{file.name}:{number}", _stem(file), (), reason=reason)
            continue
        if not line.strip():
            continue
        place = f"{file.uri}, line {number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{place}: not JSON: {error.msg} at column {error.colno}") from None
        except (RecursionError, ValueError) as error:
            # Nested too deeply, or a number of thousands of digits.
            raise DataError(f"{place}: not JSON that can be read: {error}") from None
        if not isinstance(record, dict):
            raise DataError(f"{place}: expected a JSON object, found {type(record).__name__}")
        names = (f"{file.name}:{number}", _stem(file))
        yield _document(record, place, names, source, index, maximum_bytes)


def _parquet_documents(
    file: SourceFile, source: ParquetSource, index: int, maximum_bytes: int
) -> Iterator[RawDocument]:
    try:
        with _unpacked(file) as stream, pq.ParquetFile(stream, buffer_size=1 << 20) as parquet:
            names = parquet.schema_arrow.names
            columns = [_named(key, names, file.uri, source, index) for key in _FIELDS]
            wanted = sorted({column for column in columns if column is not None})
            number = 0
            rows_at_once = _rows_at_once(parquet.metadata)
            for batch in parquet.iter_batches(batch_size=rows_at_once, columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    place = f"{file.uri}, row {number}"
                    default = (f"{file.name}:{number}", _stem(file))
                    yield _document(row, place, default, source, index, maximum_bytes)
    except UnsoundGzipError as error:
        # The directory of a Parquet file is at its end: nothing can be read without it.
        yield _unreadable(file, file.name, error.reason, str(error))
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise DataError(f"{file.uri}: not a sound Parquet file: {error}") from error


def _unpacked(file: SourceFile) -> BinaryIO:
    """A seekable stream of the file; a .gz is first unpacked to the disk."""
    if not file.uri.endswith(".gz"):
        return file.open()
    with contextlib.ExitStack() as on_error:
        stream = on_error.enter_context(tempfile.TemporaryFile())
        for piece in Content(file).pieces():
            stream.write(piece)
        stream.seek(0)
        on_error.pop_all()
        return stream


def _rows_at_once(metadata: pq.FileMetaData) -> int:
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    largest = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=1)
    return int(min(max(_ROW_BYTES_AT_ONCE / max(largest, 1), 1), _ROWS_AT_ONCE))


def _named(
    key: str,
    known: Iterable[str],
    place: str,
    source: JsonLinesSource | ParquetSource,
    index: int,
) -> str | None:
    """The field that the source's `key` names, or None; DataError unless it is in `known`."""
    name = getattr(source, key)
    if name is not None and name not in known:
        raise DataError(
            f"{place}: no field {name!r}; the fields are {', '.join(sorted(known)) or 'none'}; "
            f"change {key_of(index, key)}"
        )
    return name


def _document(
    record: dict[str, Any],
    place: str,
    names: tuple[str, str],
    source: JsonLinesSource | ParquetSource,
    index: int,
    maximum_bytes: int,
) -> RawDocument:
    """The document of one record; `names` are the default id and label."""
    text_field, id_field, label_field, spans_field = (
        _named(key, record, place, source, index) for key in _FIELDS
    )
    assert text_field is not None, "the config has a default for it and refuses null"
    text = record[text_field]
    if text is not None and not isinstance(text, str):
        raise DataError(
            f"{place}: the field {text_field!r} must be text, found {type(text).__name__}; "
            f"change {key_of(index, 'text_field')}"
        )
    spans = None if spans_field is None else record[spans_field]
    spans = [] if spans is None else spans
    if not is_list_of_spans(spans):
        raise DataError(
            f"{place}: the field {spans_field!r} must be a list of [start, end) in characters of "
            f"the text, such as [[0, 5]], found {json.dumps(spans, default=str)[:60]}; change "
            f"{key_of(index, 'spans_field')}"
        )
    text = text or ""
    id_ = names[0] if id_field is None else str(record[id_field])
    label = names[1] if label_field is None else str(record[label_field])
    if utf8_length(text) > maximum_bytes:
        return RawDocument(id_, label, (), reason=TOO_LONG)
    return RawDocument(
        id_,
        label,
        paragraphs_of(_plain_breaks(text), source.lines),
        segmented=source.lines == "sentence",
        text=text if spans else "",
        spans=[(start, end) for start, end in spans],
    )


def _plain_breaks(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _stem(file: SourceFile) -> str:
    return PurePosixPath(file.name.removesuffix(".gz")).stem
