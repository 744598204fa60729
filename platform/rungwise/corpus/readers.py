"""Read raw documents from a part of a text file: plain text and WikiText.

A document belongs to the part in which it begins, so that a file may be cut anywhere. What cannot
be read because of the file itself (a byte that is not of the encoding, a document that is too long)
becomes a document without text, with a reason and its damage, and the rest is read. Ids are
`{file}` or `{file}:{offset of the document}`, relative to the source, so that they survive a move.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rungwise.corpus.document import RawDocument
from rungwise.corpus.part import Part
from rungwise.corpus.sources import Lines, TextSource

_PARAGRAPH_BREAK = re.compile(r"\n(?:[ \t]*\n)+")
_WIKITEXT_HEADING = re.compile(r"\s*(=(?: =)*) (.+?) \1\s*$")
_WIKITEXT_TITLE = re.compile(rb"\s*= (?!= ).* =\s*$")
_WIKITEXT_ESCAPE = re.compile(r" ?@([-,.])@ ?")
# Bytes that a line may begin with of which only blanks of Unicode follow.
_BLANK_OR_NOT_ASCII = bytes([*b" \t\v\f\x1c\x1d\x1e\x1f", *range(128, 256)])


def paragraphs_of(text: str, lines: Lines) -> list[str]:
    """Split a text into paragraphs, its lines laid out as `lines` says."""
    match lines:
        case "wrapped":
            blocks = _PARAGRAPH_BREAK.split(text)
            return [joined for block in blocks if (joined := " ".join(block.splitlines()).strip())]
        case "paragraph":
            return [line for line in text.split("\n") if line and not line.isspace()]
        case "sentence":
            blocks = _PARAGRAPH_BREAK.split(text)
            return [block for block in blocks if block and not block.isspace()]


def text_documents(part: Part, source: TextSource) -> Iterator[RawDocument]:
    """The documents of plain text: the file, its lines, or blocks between blank lines."""
    match source.documents:
        case "file":
            yield from _file_document(part, source)
        case "blank_line":
            yield from _block_documents(part, source)
        case "line":
            for offset, length, line in part.lines(part.maximum_bytes):
                if part.ends_before(offset):
                    return
                if line is None:
                    yield part.too_long(offset, length)
                elif not _is_blank(line, part):
                    yield _text_document(part, source, part.id_at(offset), offset, line)


def _file_document(part: Part, source: TextSource) -> Iterator[RawDocument]:
    read: list[bytes] = []
    read_bytes = 0
    for piece in part.pieces():
        read_bytes += len(piece)
        read.append(piece)
        if read_bytes > part.maximum_bytes:
            content = b"".join(read).rstrip()
            if len(content) > part.maximum_bytes:
                yield part.too_long(None, part.file.size_bytes)
                return
            read = [content]
    content = b"".join(read)
    document = _text_document(part, source, part.file.name, 0, content)
    if document.reason or document.paragraphs:
        yield document


def _block_documents(part: Part, source: TextSource) -> Iterator[RawDocument]:
    """The blocks after the blank lines of a part, and at the start of the file, even past `end`."""
    block: list[bytes] = []
    opened, size = -1, 0
    follows_blank = part.begin == 0

    def closed() -> RawDocument:
        if size > part.maximum_bytes + len(b"\r\n"):
            return part.too_long(opened, size)
        return _text_document(part, source, part.id_at(opened), opened, b"".join(block))

    for offset, length, line in part.lines(part.maximum_bytes):
        if line is not None and _is_blank(line, part):
            if opened >= 0:
                yield closed()
                opened = -1
            if part.ends_before(offset):
                return
            follows_blank = True
        elif follows_blank:
            if opened < 0:
                opened, size, block = offset, 0, []
            size += length
            # A line that is too long is counted, and so is what follows it.
            if line is not None and size <= part.maximum_bytes + len(b"\r\n"):
                block.append(line)
        elif part.ends_before(offset):
            return
    if opened >= 0:
        yield closed()


def _is_blank(line: bytes, part: Part) -> bool:
    if line.isspace():
        return True
    if line[:1] not in _BLANK_OR_NOT_ASCII:
        return False
    try:
        return part.text(line).isspace()
    except UnicodeDecodeError:
        return False


def _text_document(
    part: Part, source: TextSource, id_: str, offset: int, content: bytes
) -> RawDocument:
    try:
        text = part.text(content)
    except UnicodeDecodeError as error:
        return part.not_decoded(offset, content, error)
    if source.documents == "line":
        paragraphs = [text.removesuffix("\n")]
    else:
        paragraphs = paragraphs_of(text.removeprefix("\ufeff"), source.lines)
    return RawDocument(id_, part.label, paragraphs, segmented=source.lines == "sentence")


def wikitext_documents(part: Part) -> Iterator[RawDocument]:
    """The articles whose titles stand in the part, and what stands before the first of a file."""
    article: list[bytes] = []
    opened, size = (-1 if part.begin else 0), 0

    def closed() -> RawDocument | None:
        if size > part.maximum_bytes + len(b"\r\n"):
            return part.too_long(opened, size)
        content = b"".join(article)
        try:
            paragraphs = _wikitext_paragraphs(part.text(content))
        except UnicodeDecodeError as error:
            return part.not_decoded(opened, content, error)
        return RawDocument(part.id_at(opened), part.label, paragraphs) if paragraphs else None

    for offset, length, line in part.lines(part.maximum_bytes):
        if line is not None and b"=" in line and _WIKITEXT_TITLE.match(line):
            if opened >= 0 and (document := closed()):
                yield document
            if part.ends_before(offset):
                return
            opened, size, article = offset, 0, []
        elif opened < 0:
            if part.ends_before(offset):
                return
            continue
        size += length
        if line is not None and size <= part.maximum_bytes + len(b"\r\n"):
            article.append(line)
    if opened >= 0 and (document := closed()):
        yield document


def _wikitext_paragraphs(text: str) -> list[str]:
    paragraphs = []
    for line in text.split("\n"):
        heading = _WIKITEXT_HEADING.match(line)
        content = heading[2] if heading else line
        if content.strip():
            paragraphs.append(_WIKITEXT_ESCAPE.sub(r"\1", content))
    return paragraphs
