"""Read the text of web archives: WET records, and plain-text records of a WARC.

Needs warcio (`pip install rungwise[web]`). HTML is skipped: extracting its text is the work of
tools such as those that made the WET. Ids are `{file}:{offset}`, in the unpacked content.
"""

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

    def __init__(self, reader: FileReader) -> None:
        self._pieces = reader.pieces()
        self._rest = b""
        self._num_bytes = 0

    def read(self, size: int = -1) -> bytes:
        piece = self._rest or next(self._pieces, b"")
        end = len(piece) if size < 0 else size
        piece, self._rest = piece[:end], piece[end:]
        self._num_bytes += len(piece)
        return piece

    def length(self) -> int:
        """Return the length of the whole content, by reading what remains."""
        while self.read():
            pass
        return self._num_bytes


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
            try:
                text, encoding = reader.decode(content)
            except UnicodeDecodeError as error:
                yield reader.skip_undecoded(offset, content, error)
                continue
            yield RawDocument(
                reader.document_id(offset),
                reader.label,
                split_paragraphs(text, source.lines),
                segmented=source.lines == "sentence",
                encoding=encoding,
            )
    except ArchiveLoadFailed as error:
        at = records.offset
        yield reader.skip_rest(at, max(1, unpacked.length() - at), error, "byte")


def _is_text(record: Any) -> bool:
    if record.rec_type == "conversion":
        return True
    headers = record.http_headers or record.rec_headers
    content_type = headers.get_header("Content-Type") or ""
    return record.rec_type in ("response", "resource") and content_type.startswith("text/plain")
