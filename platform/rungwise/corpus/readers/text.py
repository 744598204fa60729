"""Read raw documents from plain text, WikiText, and plain-text records of web archives. A document
belongs to the range in which it begins, so a file may be split anywhere. Ids are `{file}` or
`{file}:{offset}` in the unpacked content, relative to the source, so that they survive a move."""

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any

from rungwise.core.errors import UserError
from rungwise.corpus.config import LineLayout, TextSource, WarcSource
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


def split_paragraphs(text: str, layout: LineLayout) -> list[str]:
    match layout:
        case "wrapped":
            blocks = (" ".join(block.splitlines()) for block in _PARAGRAPH_BREAK.split(text))
            return list(filter(None, map(str.strip, blocks)))
        case "paragraph":
            return list(filter(str.strip, text.split("\n")))
        case "sentence":
            return list(filter(str.strip, _PARAGRAPH_BREAK.split(text)))


def text_documents(reader: FileReader, source: TextSource) -> Iterator[RawDocument]:
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


def _chunk_documents(reader: FileReader, source: TextSource) -> Iterator[RawDocument]:
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


def _block_documents(reader: FileReader, source: TextSource) -> Iterator[RawDocument]:
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
    reader: FileReader, source: TextSource, offset: int, content: bytes, id_: str = ""
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


def warc_documents(reader: FileReader, source: WarcSource) -> Iterator[RawDocument]:
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
