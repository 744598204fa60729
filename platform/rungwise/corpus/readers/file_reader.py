"""Read a range of one file: bytes, lines, text, and documents in place of damage."""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from rungwise.core.errors import DataError
from rungwise.core.storage.source_files import SourceFile
from rungwise.corpus.config import DETECT, find_codec, source_key
from rungwise.corpus.document import DocumentDamage, RawDocument
from rungwise.corpus.readers import streams
from rungwise.corpus.readers.streams import (
    CONTROLS,
    HEAD_BYTES,
    SHORT_HEAD_BYTES,
    Lines,
    archive_kind,
    detect_encoding,
    guess_encoding,
    wide_encoding,
)

TOO_LONG = "too long"
# A line break does not count towards a document's length.
BREAK_BYTES = 2


@dataclass(frozen=True)
class FileReader:
    """Reads bytes [begin, end) of a file of source number `source`; `end=None` is its end.

    `encoding` is the source's, "" if its files are not text; `label` is the default label of its
    documents. With `stop`, the first damage raises DataError.
    """

    file: SourceFile
    source: int
    label: str
    encoding: str
    maximum_bytes: int
    stop: bool
    begin: int = 0
    end: int | None = None

    def key(self, field: str) -> str:
        return source_key(self.source, field)

    def document_id(self, place: int) -> str:
        return f"{self.file.name}:{place}"

    def contains(self, offset: int) -> bool:
        return self.begin <= offset and not self.is_past_end(offset)

    def is_past_end(self, offset: int) -> bool:
        return self.end is not None and offset >= self.end and not self._wide_encoding

    def pieces(self) -> Iterator[bytes]:
        """Yield decompressed bytes from `begin` - 1 on, as UTF-8 if the encoding is wide."""
        if wide := self._wide_encoding:
            return streams.transcode(streams.read_pieces(self.file), wide)
        return streams.read_pieces(self.file, max(0, self.begin - 1), self.end)

    def lines(self, maximum_bytes: int | None = None) -> Iterator[tuple[int, int, bytes | None]]:
        """Yield the offset of each line of `batches`, its length, and the line with its break;
        None if it is only counted."""
        for offset, lines, too_long in self.batches(maximum_bytes):
            if too_long:
                yield offset, too_long, None
            for line in lines:
                yield offset, len(line), line
                offset += len(line)

    def batches(self, maximum_bytes: int | None = None) -> Iterator[Lines]:
        """Yield the lines that begin at `begin` or later, even past `end`, without a BOM.

        Longer lines than `maximum_bytes`, or else than a document may be, are only counted; see
        `streams.split_lines`.
        """
        if self.begin and self._wide_encoding:
            return  # the range that begins at 0 reads it all
        start = max(0, self.begin - 1)
        # A line that begins before this range and ends after it belongs to another.
        first_ends_by = self.end if self.begin else None
        limit = (maximum_bytes or self.maximum_bytes) + BREAK_BYTES
        batches = streams.split_lines(self.pieces(), start, limit, first_ends_by)
        for offset, lines, too_long in batches:
            if not lines:
                if not self.begin:
                    yield offset, [], too_long
            else:
                # If begin > 0, the first line begins before the range and belongs to another.
                first = b"" if self.begin else lines[0].removeprefix(codecs.BOM_UTF8)
                if first:
                    yield offset, [first], 0
                if lines[1:]:
                    yield offset + len(lines[0]), lines[1:], 0
            break
        yield from batches

    def line_parts(self, part_bytes: int) -> Iterator[tuple[int, bytes, bool]]:
        """Yield the offset of each line that begins in the range or later, its bytes, and whether a
        line begins there: one of more than twice `part_bytes` comes in parts of about that size."""
        if self.begin and self._wide_encoding:
            return  # the range that begins at 0 reads it all
        offset, rest, begins = max(0, self.begin - 1), b"", True
        is_own = self.begin == 0  # the line at `begin` - 1 belongs to the range before
        for piece in chain(streams.with_whole_breaks(self.pieces()), [b""]):
            lines, rest = (rest + piece).splitlines(keepends=True), b""
            for line in lines:
                while len(line) > 2 * part_bytes:
                    part = streams.cut(line, part_bytes)
                    if is_own:
                        yield offset, part, begins
                    offset, line, begins = offset + len(part), line[len(part) :], False
                if piece and not line.endswith((b"\n", b"\r")):
                    rest = line
                elif is_own:
                    yield offset, line if offset else line.removeprefix(codecs.BOM_UTF8), begins
                if not rest:
                    offset, begins, is_own = offset + len(line), True, True
            if not is_own and self.is_past_end(offset):
                return

    def decode(self, content: bytes) -> tuple[str, str]:
        """Return `content` as text with plain line breaks, and its encoding if it was detected and
        is not UTF-8, or ""; raises UnicodeDecodeError."""
        if self._wide_encoding:
            detected = self._wide_encoding if self.encoding == DETECT else ""
            return plain_breaks(content.decode()), detected
        if len(content.translate(None, CONTROLS)) < len(content) and self._foreign:
            at = next(at for at, byte in enumerate(content) if byte in CONTROLS)
            raise UnicodeDecodeError(self.encoding, content, at, at + 1, self._foreign)
        if self.encoding != DETECT:
            return plain_breaks(content.decode(self.encoding)), ""
        try:
            return plain_breaks(content.decode()), ""
        except UnicodeDecodeError:
            encoding = self._file_encoding or guess_encoding(content)
            if encoding is None or self._foreign:
                raise
            return plain_breaks(content.decode(encoding)), encoding

    def skip(
        self,
        at: int | None,
        num_bytes: int,
        reason: str,
        detail: str,
        field: str = "paths",
        unit: str = "byte",
    ) -> RawDocument:
        """Return a document without text for damage at `at`, a `unit`; raises DataError with
        `stop`. `field` is the key of the source to change."""
        place = "" if at is None else f"{unit} {at}"
        key = "corpus.maximum_document_megabytes" if reason == TOO_LONG else self.key(field)
        if self.stop and at is not None and unit == "byte" and not self._wide_encoding:
            place = f"line {streams.line_number(self.file, at)}"
        file = self.file.uri
        damage = DocumentDamage(
            file=file, place=place, bytes=num_bytes, reason=reason, detail=detail, key=key
        )
        if self.stop:
            raise DataError(f"{damage}, or set corpus.on_error=skip")
        id_ = self.file.name if at is None else self.document_id(at)
        return RawDocument(id_, self.label, (), damage=damage)

    def skip_too_long(self, at: int | None, num_bytes: int, unit: str = "byte") -> RawDocument:
        detail = f"a document of more than {self.maximum_bytes / 1e6:g} MB"
        return self.skip(at, num_bytes, TOO_LONG, detail, unit=unit)

    def skip_undecoded(self, at: int, content: bytes, error: UnicodeDecodeError) -> RawDocument:
        encoding = "any known encoding" if self.encoding == DETECT else self.encoding
        byte = error.object[error.start]
        detail = f"not {encoding}: byte 0x{byte:02x} at offset {at + error.start}"
        if self._foreign:
            detail += f"; the file looks like {self._foreign}"
        return self.skip(at, len(content), streams.NOT_DECODED, detail, "encoding")

    def skip_rest(self, at: int | None, num_bytes: int, error: Exception, unit: str) -> RawDocument:
        """Return a document without text for all that follows `at`."""
        detail = f"unsound from here on: {' '.join(str(error).split())[:200]}"
        return self.skip(at, num_bytes, streams.UNSOUND, detail, unit=unit)

    @property
    def is_pointer(self) -> bool:
        """Whether the file stands for data elsewhere (`streams.is_pointer`)."""
        return self.file.size_bytes < streams.POINTER_BYTES and streams.is_pointer(self._head)

    @cached_property
    def _wide_encoding(self) -> str:
        if not self.encoding:
            return ""
        if self.encoding == DETECT:
            return wide_encoding(self._head)
        return "" if find_codec(self.encoding).splittable else self.encoding

    @cached_property
    def _foreign(self) -> str:
        """The kind of file this is instead of text in an encoding of ASCII's line breaks, or ""."""
        wide = wide_encoding(self._head)
        return wide.upper() if wide else archive_kind(self._head)

    @cached_property
    def _file_encoding(self) -> str | None:
        encoding = detect_encoding(streams.read_head(self.file, HEAD_BYTES))
        return None if encoding == "utf-8" else encoding

    @cached_property
    def _head(self) -> bytes:
        return streams.read_head(self.file, SHORT_HEAD_BYTES)


def plain_breaks(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
