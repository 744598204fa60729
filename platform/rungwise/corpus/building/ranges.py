"""Ranges: the units of reading, cut from the files of the sources without opening any.

A range is consecutive bytes of one splittable file, or several whole files, of one source. A record
(line, article, row group) belongs to the range of its first byte, so each is read once, wherever
the file is cut. The cuts depend only on the config and the file listing, not on the workers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rungwise.core.errors import DataError
from rungwise.core.storage.object_store import is_mappable
from rungwise.core.storage.source_files import SourceFile
from rungwise.core.storage.store_errors import explain_connection_errors
from rungwise.corpus.config import (
    ArrowSource,
    CorpusConfig,
    FileSource,
    JsonLinesSource,
    ParquetSource,
    PydocsSource,
    TextSource,
    WikiTextSource,
    find_codec,
    source_key,
    source_names,
)
from rungwise.corpus.document import RawDocument
from rungwise.corpus.files import list_source_files
from rungwise.corpus.readers import pydocs, records, streams, text, warc
from rungwise.corpus.readers.file_reader import FileReader

_EMPTY = "empty file"
_READERS: dict[str, Callable[[FileReader, Any], Iterator[RawDocument]]] = {
    "text": text.text_documents,
    "wikitext": lambda reader, _: text.wikitext_documents(reader),
    "jsonl": records.json_documents,
    "parquet": records.parquet_documents,
    "arrow": records.arrow_documents,
    "warc": warc.warc_documents,
}


@dataclass(frozen=True)
class Range:
    """Bytes [begin, end) of one file, or several whole files if `end` is None.

    `number` counts the ranges of a corpus; `source` is the index of the source.
    """

    number: int
    source: int
    files: tuple[SourceFile, ...]
    begin: int = 0
    end: int | None = None

    @property
    def num_bytes(self) -> int:
        if self.end is not None:
            return self.end - self.begin
        return sum(file.size_bytes for file in self.files)


def list_ranges(config: CorpusConfig) -> list[Range]:
    """Cut the sources into ranges of about `shard_megabytes`, by source, name and place.

    Raises ConfigError or DataError for a source without files or bytes.
    """
    step = max(1, int(config.shard_megabytes * 1e6))
    ranges: list[Range] = []
    for index, source in enumerate(config.sources):
        pack: list[SourceFile] = []
        pack_bytes = 0
        if isinstance(source, PydocsSource):
            files = pydocs.list_modules(source.packages, source_key(index, "packages"))
        else:
            files = list_source_files(source, index)
        # None ends the list and closes the last pack.
        for file in [*files, None]:
            weight = 0 if file is None else streams.estimate_unpacked_bytes(file)
            # A remainder of less than half a range joins the last one.
            cuts = round(weight / step) if file and _is_splittable(file, source) else 1
            if pack and (file is None or cuts > 1 or pack_bytes + weight > step):
                ranges.append(Range(len(ranges), index, tuple(pack)))
                pack, pack_bytes = [], 0
            if file is not None and cuts > 1:
                for cut in range(cuts):
                    end = file.size_bytes if cut == cuts - 1 else (cut + 1) * step
                    ranges.append(Range(len(ranges), index, (file,), cut * step, end))
            elif file is not None:
                pack.append(file)
                pack_bytes += weight
    return ranges


def _is_splittable(file: SourceFile, source: FileSource | PydocsSource) -> bool:
    if streams.compression_suffix(file.name):
        return False
    match source:
        case TextSource():
            whole = source.documents == "file" or source.boilerplate
            return not whole and find_codec(source.encoding).splittable
        case WikiTextSource() | JsonLinesSource():
            return find_codec(source.encoding).splittable
        case ParquetSource():
            return True
        case ArrowSource():
            # Batches before a cut are skipped, which is free only in a mapped file.
            return is_mappable(file.uri)
        case _:
            return False


def read_range(range: Range, config: CorpusConfig) -> Iterator[RawDocument]:
    """Yield the documents of a range in order, and one without text per skipped part.

    Raises DataError at the first damage if `on_error` is stop.
    """
    source = config.sources[range.source]
    if isinstance(source, PydocsSource):
        yield from pydocs.read_modules(range.files, source_key(range.source, "packages"))
        return
    label = getattr(source, "label", None) or source_names(config.sources)[range.source]
    for file in range.files:
        reader = FileReader(
            file=file,
            source=range.source,
            label=label,
            encoding=getattr(source, "encoding", ""),
            maximum_bytes=int(config.maximum_document_megabytes * 1e6),
            stop=config.on_error == "stop",
            begin=range.begin,
            end=range.end,
        )
        is_empty = range.end is None
        try:
            with explain_connection_errors(file.uri, reader.key("paths")):
                for document in _documents(reader, source):
                    is_empty = False
                    yield document
                if is_empty:
                    yield reader.skip(None, file.size_bytes, _EMPTY, _EMPTY)
        except OSError as error:
            raise DataError(f"cannot read {file.uri}: {error.strerror or error}") from error


def _documents(reader: FileReader, source: FileSource) -> Iterator[RawDocument]:
    if reader.file.size_bytes == 0:
        return
    is_intact = False
    try:
        for document in _READERS[source.kind](reader, source):
            is_intact = True
            yield document
    except streams.UnsoundError as error:
        # Without a document, the intact bytes are of no use: they are part of one, or of a table.
        lost = error.lost if is_intact else reader.file.size_bytes
        field = "encoding" if error.reason == streams.NOT_DECODED else "paths"
        yield reader.skip(error.at, lost, error.reason, str(error), field, "unpacked byte")
