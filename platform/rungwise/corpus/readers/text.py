"""Read raw documents from a part of a text file: plain text and WikiText.

A document belongs to the part in which it begins, so a file may be split anywhere. Undecodable or
too long content becomes a document without text, with a reason and its damage, and reading goes on.
Ids are `{file}` or `{file}:{offset}`, relative to the source, so that they survive a move.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, compress, count

from rungwise.corpus.config import Lines, TextSource
from rungwise.corpus.document import RawDocument
from rungwise.corpus.readers.boilerplate import gutenberg_text
from rungwise.corpus.readers.file_reader import FileReader

_PARAGRAPH_BREAK = re.compile(r"\n(?:[ \t]*\n)+")
_WIKITEXT_HEADING = re.compile(r"\s*(=(?: =)*) (.+?) \1\s*$")
_WIKITEXT_TITLE = re.compile(rb"\s*= (?!= ).* =\s*$")
_WIKITEXT_ESCAPE = re.compile(r" ?@([-,.])@ ?")
# A line of blanks, including those of Unicode in UTF-8.
_BLANK = re.compile(
    rb"(?:[\s\x1c-\x1f]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|"
    rb"\xe3\x80\x80)*"
).fullmatch


def split_paragraphs(text: str, lines: Lines) -> list[str]:
    """Split a text of line layout `lines` into paragraphs."""
    match lines:
        case "wrapped":
            blocks = _PARAGRAPH_BREAK.split(text)
            return [joined for block in blocks if (joined := " ".join(block.splitlines()).strip())]
        case "paragraph":
            return list(filter(str.strip, text.split("\n")))
        case "sentence":
            return list(filter(str.strip, _PARAGRAPH_BREAK.split(text)))


def text_documents(part: FileReader, source: TextSource) -> Iterator[RawDocument]:
    """Yield the documents of plain text: the file, its chunks, lines, or blank-line blocks."""
    match source.documents:
        case "file":
            yield from _file_document(part, source)
        case "chunk":
            yield from _chunk_documents(part, source)
        case "blank_line":
            yield from _block_documents(part, source)
        case "line":
            for offset, length, line in part.lines(part.maximum_bytes):
                if part.ends_before(offset):
                    return
                if line is None:
                    yield part.too_long(offset, length)
                elif not _BLANK(line):
                    yield _text_document(part, source, part.id_at(offset), offset, line)


def _file_document(part: FileReader, source: TextSource) -> Iterator[RawDocument]:
    read: list[bytes] = []
    read_bytes = 0
    for piece in part.pieces():
        full = read_bytes > part.maximum_bytes  # and what was over the limit was blank
        read_bytes += len(piece)
        if not full:
            read.append(piece)
            if read_bytes <= part.maximum_bytes:
                continue
            read = [b"".join(read).rstrip()]
        if len(read[0]) > part.maximum_bytes or (full and piece.strip()):
            yield part.too_long(None, part.file.size_bytes)
            return
    content = b"".join(read).removeprefix(codecs.BOM_UTF8)
    document = _text_document(part, source, part.file.name, 0, content)
    if document.reason or document.paragraphs:
        yield document


def _chunk_documents(part: FileReader, source: TextSource) -> Iterator[RawDocument]:
    """Yield a document per `chunk_kilobytes` of the file, the same wherever it is split.

    A chunk begins with the first line in it; in wrapped text, the first after a blank line.
    """
    chunk_bytes = max(1, round(source.chunk_kilobytes * 1000))
    begin, end = (
        place and -(-place // chunk_bytes) * chunk_bytes for place in (part.begin, part.end)
    )
    part = replace(part, begin=begin or 0, end=end)
    wrapped = source.lines == "wrapped"
    opens, chunk = (-1 if wrapped and part.begin else 0), -1
    opened, size = 0, 0
    lines: list[bytes] = []

    def closed() -> RawDocument:
        if size > part.maximum_bytes + len(b"\r\n"):
            return part.too_long(opened, size)
        return _text_document(part, source, part.id_at(opened), opened, b"".join(lines))

    for offset, length, line in part.lines(part.maximum_bytes):
        is_blank = line is not None and _BLANK(line)
        if is_blank or not wrapped:
            opens = offset // chunk_bytes
        if opens > chunk and not is_blank:
            if chunk >= 0:
                yield closed()
            if part.ends_before(opens * chunk_bytes):
                return
            chunk, opened, size, lines = opens, offset, 0, []
        size += length
        if line is not None and chunk >= 0:
            lines.append(line)
    if chunk >= 0:
        yield closed()


def _block_documents(part: FileReader, source: TextSource) -> Iterator[RawDocument]:
    """Yield the blocks that follow blank lines of a part, even past `end`, or open the file."""
    maximum_bytes = part.maximum_bytes + len(b"\r\n")
    block: list[bytes] = []
    opened, size = -1, 0
    follows_blank = part.begin == 0

    def closed() -> RawDocument:
        if size > maximum_bytes:
            return part.too_long(opened, size)
        return _text_document(part, source, part.id_at(opened), opened, b"".join(block))

    for offset, lines, too_long in part.batches(part.maximum_bytes):
        offsets = [offset, offset + too_long]
        if lines:
            offsets = list(accumulate(map(len, lines), initial=offset))
        begin = 0
        # Up to each blank line, then to the end of the batch, where a block may stay open.
        for number in [*compress(count(), map(_BLANK, lines)), len(offsets) - 1]:
            if number > begin and follows_blank:
                if opened < 0:
                    opened, size, block = offsets[begin], 0, []
                size += offsets[number] - offsets[begin]
                if size <= maximum_bytes:
                    block += lines[begin:number]
            begin = number + 1
            if number == len(offsets) - 1:
                break
            if opened >= 0:
                yield closed()
                opened = -1
            if part.ends_before(offsets[number]):
                return
            follows_blank = True
        if not follows_blank and part.ends_before(offset):
            return
    if opened >= 0:
        yield closed()


def _text_document(
    part: FileReader, source: TextSource, id_: str, offset: int, content: bytes
) -> RawDocument:
    if len(content) > part.maximum_bytes < len(content.rstrip(b"\r\n")):
        return part.too_long(offset, len(content))
    try:
        text = part.text(content).removesuffix("\n")
    except UnicodeDecodeError as error:
        return part.not_decoded(offset, content, error)
    one_line = source.documents == "line"
    book = gutenberg_text(text) if source.boilerplate else text
    return RawDocument(
        id_,
        part.label,
        [text] if one_line else split_paragraphs(book, source.lines),
        segmented=source.lines == "sentence",
        boilerplate=len(text) - len(book),
    )


def wikitext_documents(part: FileReader) -> Iterator[RawDocument]:
    """Yield the articles whose titles are in the part, and any text before a file's first."""
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
    for line in _WIKITEXT_ESCAPE.sub(r"\1", text).split("\n"):
        heading = _WIKITEXT_HEADING.match(line) if line.lstrip().startswith("=") else None
        content = heading[2] if heading else line
        if content and not content.isspace():
            paragraphs.append(content)
    return paragraphs
