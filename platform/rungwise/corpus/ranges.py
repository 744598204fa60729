"""Ranges: what is read at once, cut from the files of the sources without opening any.

A range is consecutive bytes of one file that can be split, or several whole files, always of one
source. A record (line, article, row group) belongs to the range in which its first byte stands, so
the ranges of a file yield exactly its documents, each once, wherever it is cut. The cuts are a pure
function of the config and of the listing, whatever the number of workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rungwise.core.storage import SourceFile
from rungwise.corpus import pydocs, readers
from rungwise.corpus.document import RawDocument
from rungwise.corpus.sources import CorpusConfig, PydocsSource, files_of, key_of


@dataclass(frozen=True)
class Range:
    """Bytes [begin, end) of one file, or several whole files if `end` is None.

    `number` counts the ranges of a corpus, `source` is an index into its sources.
    """

    number: int
    source: int
    files: tuple[SourceFile, ...]
    begin: int = 0
    end: int | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of the files, as they are stored, that this range stands for."""
        if self.end is not None:
            return self.end - self.begin
        return sum(file.size_bytes for file in self.files)


def ranges_of(config: CorpusConfig) -> list[Range]:
    """Cut the sources into ranges of about `shard_megabytes`, in order of source, name, place."""
    step = int(config.shard_megabytes * 1e6)
    ranges: list[Range] = []
    for index, source in enumerate(config.sources):
        if isinstance(source, PydocsSource):
            modules = pydocs.modules(source.packages, key_of(index, "packages"))
            files = [SourceFile(m.package, m.path, m.size_bytes) for m in modules]
        else:
            files = files_of(source, index)
        packed: list[SourceFile] = []
        for file in files:
            if packed and sum(one.size_bytes for one in packed) + file.size_bytes > step:
                ranges.append(Range(len(ranges), index, tuple(packed)))
                packed = []
            packed.append(file)
        ranges.append(Range(len(ranges), index, tuple(packed)))
    return ranges


def read_range(range: Range, config: CorpusConfig) -> Iterator[RawDocument]:
    """Read the documents of a range in their order; one without text for each part skipped."""
    source = config.sources[range.source]
    if isinstance(source, PydocsSource):
        modules = (pydocs.Module(file.uri, file.name, file.size_bytes) for file in range.files)
        yield from pydocs.read(modules, key_of(range.source, "packages"))
        return
    maximum_bytes = int(config.maximum_document_megabytes * 1e6)
    for file in range.files:
        yield from readers.read_file(file, source, range.source, maximum_bytes)
