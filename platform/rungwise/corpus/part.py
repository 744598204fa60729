"""A part of one file as its reader sees it: its bytes, its lines, its text, and what is damaged."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from rungwise.core.errors import DataError
from rungwise.core.source_files import SourceFile
from rungwise.corpus import streams
from rungwise.corpus.document import Damage, RawDocument
from rungwise.corpus.sources import DETECT, codec_of, key_of
from rungwise.corpus.streams import Batch

TOO_LONG = "too long"
# The offset of a line, its bytes, and the line with its end; None if it is too long.
Line = tuple[int, int, bytes | None]
# The end of a line is no part of a document's length.
_BREAK_BYTES = 2


@dataclass(frozen=True)
class Part:
    """Bytes [begin, end) of a file of source number `index`; to the end of the file if None.

    `encoding` is that of the source and "" if it has no text files, `label` what its documents get
    by default. With `stop` the first damage is an error.
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
        return key_of(self.index, name)

    def id_at(self, place: int) -> str:
        return f"{self.file.name}:{place}"

    def holds(self, offset: int) -> bool:
        return self.begin <= offset and not self.ends_before(offset)

    def ends_before(self, offset: int) -> bool:
        return self.end is not None and offset >= self.end and not self._wide_encoding

    def pieces(self) -> Iterator[bytes]:
        """The bytes from the one before `begin` on, decompressed; in UTF-8 if the file is wide."""
        if wide := self._wide_encoding:
            return streams.transcoded(streams.pieces(self.file), wide)
        return streams.pieces(self.file, max(0, self.begin - 1), self.end)

    def batches(self, maximum_bytes: int) -> Iterator[Batch]:
        """The lines that begin at `begin` or later, also those past `end`, without a BOM.

        They are at most `maximum_bytes` long; see `streams.batches`.
        """
        if self.begin and self._wide_encoding:
            return  # the part that begins at 0 has all of it
        start = max(0, self.begin - 1)
        # A line that begins before the part and ends after it is the matter of another.
        first_ends_by = self.end if self.begin else None
        batches = streams.batches(self.pieces(), start, maximum_bytes + _BREAK_BYTES, first_ends_by)
        for offset, lines, too_long in batches:
            if not lines:
                if not self.begin:
                    yield offset, [], too_long
            else:
                # With a byte before the part, the first line begins or ends there.
                first = b"" if self.begin else lines[0].removeprefix(codecs.BOM_UTF8)
                if first:
                    yield offset, [first], 0
                if lines[1:]:
                    yield offset + len(lines[0]), lines[1:], 0
            break
        yield from batches

    def lines(self, maximum_bytes: int) -> Iterator[Line]:
        """The same, one by one."""
        for offset, lines, too_long in self.batches(maximum_bytes):
            if too_long:
                yield offset, too_long, None
            for line in lines:
                yield offset, len(line), line
                offset += len(line)

    def text(self, content: bytes) -> str:
        """Decode `content`, with plain line breaks; UnicodeDecodeError if it is something else."""
        if self.encoding == DETECT or self._wide_encoding:
            try:
                text = content.decode()
            except UnicodeDecodeError:
                encoding = self._head_encoding or streams.guessed(content)
                if encoding is None:
                    raise
                text = content.decode(encoding)
        else:
            text = content.decode(self.encoding)
        return plain_breaks(text) if "\r" in text else text

    def skipped(
        self, at: int | None, num_bytes: int, reason: str, detail: str, key: str, unit: str = "byte"
    ) -> RawDocument:
        """A document without text for the damage at an offset or row; DataError with `stop`."""
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
        """The damage of `content`, which stands at `at`."""
        encoding = "any known encoding" if self.encoding == DETECT else self.encoding
        byte = error.object[error.start]
        detail = f"not {encoding}: byte 0x{byte:02x} at offset {at + error.start}"
        if streams.wide_encoding(self.file):
            detail += ", it looks like UTF-16"
        reason = streams.NOT_DECODED
        return self.skipped(at, len(content), reason, detail, self.key("encoding"))

    @cached_property
    def _wide_encoding(self) -> str:
        if not self.encoding:
            return ""
        if self.encoding == DETECT:
            return streams.wide_encoding(self.file)
        return "" if codec_of(self.encoding).splittable else self.encoding

    @cached_property
    def _head_encoding(self) -> str | None:
        return streams.head_encoding(self.file)


def plain_breaks(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
