"""Read a range of one file: bytes, lines, text, and documents in place of damage."""

import codecs
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from rungwise.core.storage.source_files import SourceFile
from rungwise.corpus.config import DETECT, has_ascii_breaks, source_key
from rungwise.corpus.document import DocumentDamage, RawDocument
from rungwise.corpus.readers import streams

TOO_LONG = "too long"
BREAK_BYTES = 2  # of a line break, which does not count towards a document's length
_PART_BYTES = 1 << 20  # of a line that is too long


@dataclass(frozen=True)
class FileReader:
    """Reads bytes [begin, end) of a file of source number `source`; `end=None` is its end.
    `encoding` is the source's, "" if its files are not text; `label` is the default label of its
    documents."""

    file: SourceFile
    source: int
    label: str
    encoding: str
    maximum_bytes: int
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
        """Yield the offset of each line that begins in the range or later, its length, and the line
        with its break; None if it is longer than `maximum_bytes`, or else than a document may
        be."""
        limit = (maximum_bytes or self.maximum_bytes) + BREAK_BYTES
        start = 0
        for offset, part, begins, ends in self.line_parts(limit, min(limit, _PART_BYTES)):
            start = offset if begins else start
            if ends:
                yield start, offset + len(part) - start, part if begins else None

    def line_parts(
        self, maximum_bytes: int, part_bytes: int
    ) -> Iterator[tuple[int, bytes, bool, bool]]:
        """Yield the lines and parts of lines of `streams.split_lines` from the first line that
        begins in the range on, even past `end`, without a BOM."""
        if self.begin and self._wide_encoding:
            return  # the range that begins at 0 reads it all
        start, pieces = max(0, self.begin - 1), streams.with_whole_breaks(self.pieces())
        if self.begin:
            # The line at `begin` - 1 belongs to the range before.
            for piece in pieces:
                first = piece.splitlines(keepends=True)[0]
                start += len(first)
                if first.endswith((b"\n", b"\r")):
                    pieces = chain([piece[len(first) :]], pieces)
                    break
                if self.is_past_end(start):
                    return
        parts = streams.split_lines(pieces, start, maximum_bytes, part_bytes)
        for offset, part, begins, ends in parts:
            if part := part if offset else part.removeprefix(codecs.BOM_UTF8):
                yield offset, part, begins, ends

    def document(
        self,
        at: int,
        content: bytes,
        split: Callable[[str], Sequence[str]],
        segmented: bool = False,
        id_: str = "",
    ) -> RawDocument:
        """Return the document whose `content` begins at `at`, with the paragraphs that `split`
        makes of its text; one without text if it cannot be decoded."""
        try:
            text, encoding = self.decode(content)
        except UnicodeDecodeError as error:
            return self.skip_undecoded(at, content, error)
        id_ = id_ or self.document_id(at)
        return RawDocument(id_, self.label, split(text), segmented, encoding=encoding)

    def decode(self, content: bytes) -> tuple[str, str]:
        """Return `content` as text with plain line breaks, and its encoding if it was detected and
        is not UTF-8, or ""; raises UnicodeDecodeError."""
        if self._wide_encoding:
            detected = self._wide_encoding if self.encoding == DETECT else ""
            return plain_breaks(content.decode()), detected
        if len(content.translate(None, streams.CONTROLS)) < len(content) and self._foreign:
            at = next(at for at, byte in enumerate(content) if byte in streams.CONTROLS)
            raise UnicodeDecodeError(self.encoding, content, at, at + 1, self._foreign)
        if self.encoding != DETECT:
            return plain_breaks(content.decode(self.encoding)), ""
        try:
            return plain_breaks(content.decode()), ""
        except UnicodeDecodeError:
            encoding = self._file_encoding or streams.guess_encoding(content)
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
        """Return a document without text for damage at `at`, a `unit`. `field` is the key of the
        source to change."""
        damage = DocumentDamage(
            file=self.file.uri,
            place="" if at is None else f"{unit} {at}",
            bytes=num_bytes,
            reason=reason,
            detail=detail,
            key="corpus.maximum_document_megabytes" if reason == TOO_LONG else self.key(field),
        )
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
            return streams.wide_encoding(self._head)
        return "" if has_ascii_breaks(self.encoding) else self.encoding

    @cached_property
    def _foreign(self) -> str:
        """The kind of file this is instead of text in an encoding of ASCII's line breaks, or ""."""
        wide = streams.wide_encoding(self._head)
        return wide.upper() if wide else streams.archive_kind(self._head)

    @cached_property
    def _file_encoding(self) -> str | None:
        encoding = streams.detect_encoding(streams.read_head(self.file, streams.HEAD_BYTES))
        return None if encoding == "utf-8" else encoding

    @cached_property
    def _head(self) -> bytes:
        return streams.read_head(self.file, streams.SHORT_HEAD_BYTES)


def plain_breaks(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
