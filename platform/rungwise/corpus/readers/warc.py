"""Read the text of web archives: WET records, and plain-text records of a WARC.

Needs warcio (`pip install rungwise[web]`). HTML is skipped: extracting its text is the work of
tools such as those that made the WET. Ids are `{file}:{offset}`, in the unpacked content.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rungwise.core.errors import UserError
from rungwise.corpus.config import WarcSource
from rungwise.corpus.document import RawDocument
from rungwise.corpus.readers import streams
from rungwise.corpus.readers.file_reader import FileReader
from rungwise.corpus.readers.text import split_paragraphs


class _Content:
    """The unpacked content of a file, as warcio reads it."""

    def __init__(self, part: FileReader) -> None:
        self._pieces = part.pieces()
        self._held = b""
        self._read_bytes = 0

    def read(self, size: int = -1) -> bytes:
        if not self._held:
            self._held = next(self._pieces, b"")
        end = len(self._held) if size < 0 else size
        taken, self._held = self._held[:end], self._held[end:]
        self._read_bytes += len(taken)
        return taken

    def length(self) -> int:
        """Return the length of the whole content, by reading what is left."""
        while self.read():
            pass
        return self._read_bytes


def warc_documents(part: FileReader, source: WarcSource) -> Iterator[RawDocument]:
    """Yield the text of each plain-text record, in order; skip other records."""
    try:
        from warcio.archiveiterator import ArchiveIterator
        from warcio.exceptions import ArchiveLoadFailed
    except ImportError as error:
        raise UserError(
            f"{part.key('kind')}: web archives take `pip install rungwise[web]` on every machine"
        ) from error
    unpacked = _Content(part)
    records = ArchiveIterator(unpacked)
    try:
        for record in records:
            if not _is_text(record):
                continue
            content = record.content_stream().read(part.maximum_bytes + 1)
            # These calls move to the end of the record; it may not state its length.
            offset, num_bytes = records.get_record_offset(), records.get_record_length()
            if len(content) > part.maximum_bytes:
                yield part.too_long(offset, num_bytes)
                continue
            if record.http_headers is None and len(content) != record.length:
                detail = "a cut-off record, or one without its length"
                yield part.skipped(offset, num_bytes, streams.CUT_OFF, detail, part.key("paths"))
                continue
            try:
                text = part.text(content)
            except UnicodeDecodeError as error:
                yield part.not_decoded(offset, content, error)
                continue
            paragraphs = split_paragraphs(text, source.lines)
            yield RawDocument(
                part.id_at(offset), part.label, paragraphs, segmented=source.lines == "sentence"
            )
    except ArchiveLoadFailed as error:
        detail = f"unsound from here on: {' '.join(str(error).split())[:200]}"
        at = records.offset
        lost = max(1, unpacked.length() - at)
        yield part.skipped(at, lost, streams.UNSOUND, detail, part.key("paths"))


def _is_text(record: Any) -> bool:
    if record.rec_type == "conversion":
        return True
    headers = record.http_headers or record.rec_headers
    content_type = headers.get_header("Content-Type") or ""
    return record.rec_type in ("response", "resource") and content_type.startswith("text/plain")
