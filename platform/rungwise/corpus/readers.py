"""From the files of a source to drafts of documents: text, WikiText, JSON Lines, Parquet, and .gz.

A file is decoded as UTF-8, with or without BOM; what is not UTF-8, not whole, not JSON or lacks the
field asked for is one DataError that names the file, the place in it and the key to change. Ids are
`{file}` or `{file}:{line}`, relative to the source, so that they survive a move.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rungwise.corpus.document import Draft
from rungwise.corpus.sources import (
    FileSource,
    InvalidUtf8,
    JsonLinesSource,
    Lines,
    ParquetSource,
    TextSource,
    WikiTextSource,
    key_of,
)
from rungwise.errors import DataError
from rungwise.storage import SourceFile

_PARAGRAPH_BREAK = re.compile(r"\n(?:[ \t]*\n)+")
_WIKITEXT_HEADING = re.compile(r"\s*(=(?: =)*) (.+?) \1\s*$")
_WIKITEXT_ESCAPE = re.compile(r" ?@([-,.])@ ?")
_EMPTY = "empty file"
_ROWS_AT_ONCE = 1024
_FIELDS = ("text_field", "id_field", "label_field")


def read_file(file: SourceFile, source: FileSource, index: int) -> Iterator[Draft]:
    """The drafts in one file of source number `index`, in order."""
    if file.size_bytes == 0:
        yield Draft(file.name, _stem(file), (), reason=_EMPTY)
        return
    if isinstance(source, ParquetSource):
        yield from _parquet_drafts(file, source, index)
        return
    text = _decode(_bytes_of(file), file, source.invalid_utf8, index)
    if not text.strip():
        yield Draft(file.name, _stem(file), (), reason=_EMPTY)
        return
    match source:
        case TextSource():
            yield from _text_drafts(text, file, source)
        case WikiTextSource():
            yield from _wikitext_drafts(text, file, source.label or _stem(file))
        case JsonLinesSource():
            yield from _json_drafts(text, file, source, index)


def paragraphs_of(text: str, lines: Lines) -> list[str]:
    """The paragraphs of a text whose lines are laid out as `lines` says."""
    match lines:
        case "wrapped":
            blocks = _PARAGRAPH_BREAK.split(text)
            return [joined for block in blocks if (joined := " ".join(block.split()))]
        case "paragraph":
            return [line for line in text.split("\n") if line.strip()]
        case "sentence":
            return [block for block in _PARAGRAPH_BREAK.split(text) if block.strip()]


def _text_drafts(text: str, file: SourceFile, source: TextSource) -> Iterator[Draft]:
    label = source.label or _stem(file)
    segmented = source.lines == "sentence"
    match source.documents:
        case "file":
            yield Draft(file.name, label, paragraphs_of(text, source.lines), segmented)
        case "blank_line":
            for number, block in _blocks(text):
                paragraphs = paragraphs_of(block, source.lines)
                yield Draft(f"{file.name}:{number}", label, paragraphs, segmented)
        case "line":
            for number, line in enumerate(text.split("\n"), start=1):
                if line.strip():
                    yield Draft(f"{file.name}:{number}", label, (line,), segmented)


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """What stands between blank lines, each with the number of its first line."""
    block: list[str] = []
    number = 0
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            block.append(line)
        elif block:
            yield number - len(block), "\n".join(block)
            block = []
    if block:
        yield number - len(block) + 1, "\n".join(block)


def _wikitext_drafts(text: str, file: SourceFile, label: str) -> Iterator[Draft]:
    opened, paragraphs = 1, []
    for number, line in enumerate(text.split("\n"), start=1):
        heading = _WIKITEXT_HEADING.match(line)
        if heading and heading[1] == "=":
            if paragraphs:
                yield Draft(f"{file.name}:{opened}", label, paragraphs)
            opened, paragraphs = number, []
        content = heading[2] if heading else line
        if content.strip():
            paragraphs.append(_WIKITEXT_ESCAPE.sub(r"\1", content))
    if paragraphs:
        yield Draft(f"{file.name}:{opened}", label, paragraphs)


def _json_drafts(
    text: str, file: SourceFile, source: JsonLinesSource, index: int
) -> Iterator[Draft]:
    for number, line in enumerate(text.split("\n"), start=1):
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
        yield _draft(record, place, f"{file.name}:{number}", _stem(file), source, index)


def _parquet_drafts(file: SourceFile, source: ParquetSource, index: int) -> Iterator[Draft]:
    packed = file.uri.endswith(".gz")
    try:
        with pq.ParquetFile(io.BytesIO(_bytes_of(file)) if packed else file.open()) as parquet:
            names = parquet.schema_arrow.names
            columns = [_named(key, names, file.uri, source, index) for key in _FIELDS]
            wanted = sorted({column for column in columns if column is not None})
            number = 0
            for batch in parquet.iter_batches(batch_size=_ROWS_AT_ONCE, columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    place = f"{file.uri}, row {number}"
                    yield _draft(row, place, f"{file.name}:{number}", _stem(file), source, index)
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise DataError(f"{file.uri}: not a sound Parquet file: {error}") from error


def _named(
    key: str,
    known: Iterable[str],
    place: str,
    source: JsonLinesSource | ParquetSource,
    index: int,
) -> str | None:
    """The field that `key` of the source names, None if it names none; it must be in `known`."""
    name = getattr(source, key)
    if name is not None and name not in known:
        raise DataError(
            f"{place}: no field {name!r}; the fields are {', '.join(sorted(known)) or 'none'}; "
            f"change {key_of(index, key)}"
        )
    return name


def _draft(
    record: dict[str, Any],
    place: str,
    default_id: str,
    default_label: str,
    source: JsonLinesSource | ParquetSource,
    index: int,
) -> Draft:
    text_field, id_field, label_field = (
        _named(key, record, place, source, index) for key in _FIELDS
    )
    assert text_field is not None, "the config has a default for it and refuses null"
    text = record[text_field]
    if text is not None and not isinstance(text, str):
        raise DataError(
            f"{place}: the field {text_field!r} must be text, found {type(text).__name__}; "
            f"change {key_of(index, 'text_field')}"
        )
    return Draft(
        default_id if id_field is None else str(record[id_field]),
        default_label if label_field is None else str(record[label_field]),
        paragraphs_of(_plain_breaks(text or ""), source.lines),
        segmented=source.lines == "sentence",
    )


def _bytes_of(file: SourceFile) -> bytes:
    try:
        with file.open() as stream:
            data = stream.read()
    except OSError as error:
        raise DataError(f"cannot read {file.uri}: {error.strerror or error}") from error
    if not file.uri.endswith(".gz"):
        return data
    try:
        return gzip.decompress(data)
    except EOFError:
        raise DataError(f"{file.uri}: the .gz is cut off; copy or download it again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{file.uri}: not a sound .gz file: {error}") from None


def _decode(data: bytes, file: SourceFile, invalid: InvalidUtf8, index: int) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if invalid == "refuse":
            hint = ", it looks like UTF-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
            raise DataError(
                f"{file.uri} is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}"
                f"{hint}; convert it, or set {key_of(index, 'invalid_utf8')} to replace or latin-1"
            ) from None
        # "latin-1" is a second reading of files that are not UTF-8; the others stay what they are.
        text = data.decode("latin-1") if invalid == "latin-1" else data.decode("utf-8", "replace")
    return _plain_breaks(text.removeprefix("\ufeff"))


def _plain_breaks(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _stem(file: SourceFile) -> str:
    return PurePosixPath(file.name.removesuffix(".gz")).stem
