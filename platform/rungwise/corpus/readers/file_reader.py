"""A part of one file as its reader sees it: bytes, lines, text and damage."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from rungwise.core.errors import DataError
from rungwise.core.storage.source_files import SourceFile
from rungwise.corpus.config import DETECT, find_codec, source_key
from rungwise.corpus.document import Damage, RawDocument
from rungwise.corpus.readers import streams
from rungwise.corpus.readers.streams import Batch

TOO_LONG = "too long"
# Offset of a line, its length in bytes, and the line with its break; None if it is too long.
Line = tuple[int, int, bytes | None]
# A line break does not count towards a document's length.
_BREAK_BYTES = 2


@dataclass(frozen=True)
class FileReader:
    """Bytes [begin, end) of a file of source `index`; `end=None` is the end of the file.

    `encoding` is the source's, "" if its files are not text; `label` is the default label of its
    documents. With `stop`, the first damage raises DataError.
    """

    file: SourceFile
    index: int
    label: str
    encoding: str
    maximum_bytes: int
    stop: bool
    begin: int = 0
    end: int | None = None

    def key(self, name: str) -> str:
        return source_key(self.index, name)

    def id_at(self, place: int) -> str:
        return f"{self.file.name}:{place}"

    def holds(self, offset: int) -> bool:
        return self.begin <= offset and not self.ends_before(offset)

    def ends_before(self, offset: int) -> bool:
        return self.end is not None and offset >= self.end and not self._wide_encoding

    def pieces(self) -> Iterator[bytes]:
        """Yield decompressed bytes from `begin` - 1 on, as UTF-8 if the encoding is wide."""
        if wide := self._wide_encoding:
            return streams.transcode(streams.read_pieces(self.file), wide)
        return streams.read_pieces(self.file, max(0, self.begin - 1), self.end)

    def batches(self, maximum_bytes: int) -> Iterator[Batch]:
        """Yield the lines that begin at `begin` or later, even past `end`, without a BOM.

        Longer lines than `maximum_bytes` are only counted; see `streams.batches`.
        """
        if self.begin and self._wide_encoding:
            return  # the part that begins at 0 reads it all
        start = max(0, self.begin - 1)
        # A line that begins before this part and ends after it belongs to another part.
        first_ends_by = self.end if self.begin else None
        batches = streams.split_lines(
            self.pieces(), start, maximum_bytes + _BREAK_BYTES, first_ends_by
        )
        for offset, lines, too_long in batches:
            if not lines:
                if not self.begin:
                    yield offset, [], too_long
            else:
                # If begin > 0, the first line begins before the part and belongs to another.
                first = b"" if self.begin else lines[0].removeprefix(codecs.BOM_UTF8)
                if first:
                    yield offset, [first], 0
                if lines[1:]:
                    yield offset + len(lines[0]), lines[1:], 0
            break
        yield from batches

    def lines(self, maximum_bytes: int) -> Iterator[Line]:
        for offset, lines, too_long in self.batches(maximum_bytes):
            if too_long:
                yield offset, too_long, None
            for line in lines:
                yield offset, len(line), line
                offset += len(line)

    def text(self, content: bytes) -> str:
        """Decode `content` with plain line breaks; raises UnicodeDecodeError if it cannot."""
        if self.encoding == DETECT or self._wide_encoding:
            try:
                text = content.decode()
            except UnicodeDecodeError:
                encoding = self._head_encoding or streams.guess_encoding(content)
                if encoding is None:
                    raise
                text = content.decode(encoding)
        else:
            text = content.decode(self.encoding)
        return plain_breaks(text) if "\r" in text else text

    def skipped(
        self, at: int | None, num_bytes: int, reason: str, detail: str, key: str, unit: str = "byte"
    ) -> RawDocument:
        """Return a document without text for damage; raises DataError with `stop`."""
        place = "" if at is None else f"{unit} {at}"
        if self.stop:
            if at is not None and unit == "byte" and not self._wide_encoding:
                place = f"line {streams.line_number(self.file, at)}"
            damage = Damage(self.file.uri, place, num_bytes, detail, key)
            raise DataError(f"{damage}, or set corpus.on_error=skip")
        damage = Damage(self.file.uri, place, num_bytes, detail, key)
        id_ = self.file.name if at is None else self.id_at(at)
        return RawDocument(id_, self.label, (), reason=reason, damage=damage)

    def too_long(self, at: int | None, num_bytes: int, unit: str = "byte") -> RawDocument:
        detail = f"a document of more than {self.maximum_bytes / 1e6:g} MB"
        key = "corpus.maximum_document_megabytes"
        return self.skipped(at, num_bytes, TOO_LONG, detail, key, unit)

    def not_decoded(self, at: int, content: bytes, error: UnicodeDecodeError) -> RawDocument:
        encoding = "any known encoding" if self.encoding == DETECT else self.encoding
        byte = error.object[error.start]
        detail = f"not {encoding}: byte 0x{byte:02x} at offset {at + error.start}"
        if streams.detect_wide_encoding(self.file):
            detail += ", it looks like UTF-16"
        reason = streams.NOT_DECODED
        return self.skipped(at, len(content), reason, detail, self.key("encoding"))

    @cached_property
    def _wide_encoding(self) -> str:
        if not self.encoding:
            return ""
        if self.encoding == DETECT:
            return streams.detect_wide_encoding(self.file)
        return "" if find_codec(self.encoding).splittable else self.encoding

    @cached_property
    def _head_encoding(self) -> str | None:
        return streams.guess_file_encoding(self.file)


def plain_breaks(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
