"""Turn raw documents into tables: clean, segment, measure, sign, and drop rule breakers.

A range gives tables of documents, and a table of keys (digests and signatures), the only data
compared with other ranges.

Ranges: the units of reading, cut from the files of the sources without opening any.

A range is consecutive bytes of one splittable file, or several whole files, of one source. A record
(line, article, row group) belongs to the range of its first byte, so each is read once, wherever
the file is cut. The cuts depend only on the config and the file listing, not on the workers.
"""

import hashlib
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress
from typing import Any

import numpy as np
import pyarrow as pa

from rungwise.core.errors import DataError
from rungwise.core.storage.object_store import is_mappable
from rungwise.core.storage.source_files import SourceFile
from rungwise.core.storage.store_errors import explain_connection_errors
from rungwise.corpus.building.held_out import can_be_cut
from rungwise.corpus.cleaning.characters import DOCUMENT, PARAGRAPH, clean, clean_all
from rungwise.corpus.cleaning.decontamination import NgramHashes, remove_test_texts
from rungwise.corpus.cleaning.quality import find_fault
from rungwise.corpus.cleaning.sentences import locate_spans, segment
from rungwise.corpus.config import (
    ArrowSource,
    CorpusConfig,
    DocumentRules,
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
from rungwise.corpus.deduplication import near_duplicates
from rungwise.corpus.deduplication.near_duplicates import mix
from rungwise.corpus.document import SCHEMA, RawDocument, text_length
from rungwise.corpus.files import list_source_files
from rungwise.corpus.readers import pydocs, records, streams, text
from rungwise.corpus.readers import text as warc
from rungwise.corpus.readers.file_reader import FileReader
from rungwise.corpus.summary import RangeReport

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
class Piece:
    """Files of a range that are read together. `key` is a digest of what the result of reading
    follows from; `result` is the key of a shared result that holds it, "" if none is known."""

    key: str
    files: tuple[SourceFile, ...]
    result: str = ""


@dataclass(frozen=True)
class Range:
    """Bytes [begin, end) of one file, or several whole files if `end` is None.

    `number` counts the ranges of a corpus; `source` is the index of the source; `pieces` are those
    of its files, () for one without a name.
    """

    number: int
    source: int
    files: tuple[SourceFile, ...]
    begin: int = 0
    end: int | None = None
    pieces: tuple[Piece, ...] = ()

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


TEXT_SCHEMA = pa.schema(
    [
        *SCHEMA,
        ("bytes", pa.int64()),  # of the sentences joined by blanks
        ("split", pa.uint64()),  # the smallest are held out
        ("can_be_cut", pa.bool_()),
        ("spans_dropped", pa.int64()),
    ]
)
KEYS_SCHEMA = pa.schema(
    [
        ("digest", pa.binary(16)),
        ("name", pa.binary(16)),  # a hash of the source and the id
        ("split", pa.uint64()),
        ("bytes", pa.int64()),
        ("can_be_cut", pa.bool_()),
        ("bands", pa.binary()),  # keys, little-endian uint64; null without near_duplicates
        ("signature", pa.binary()),  # its low bytes
    ]
)
BOILERPLATE, TEST_TEXT, NOT_DRAWN = "boilerplate", "test text", "not drawn (share)"
_NAMES = 1 << 128
# Small enough for processor caches, large enough to batch many documents.
_CHARACTERS_AT_ONCE = 1 << 18
_TABLE_BYTES = 8 << 20


class RangeBuilder:
    """Builds the tables of one range; `keys` and `report` are complete afterwards."""

    def __init__(
        self,
        rules: DocumentRules,
        source: str,
        tests: NgramHashes | None = None,
        share: float = 1.0,
    ) -> None:
        self._rules = rules
        self._tests = tests
        self._share = share
        self._keys: list[pa.Table] = [KEYS_SCHEMA.empty_table()]
        self.report = RangeReport(source=source)

    def tables(self, documents: Iterable[RawDocument]) -> Iterator[pa.Table]:
        """Yield tables of a few megabytes with a row per document that stays, in order."""
        table: list[_CleanDocument] = []
        table_bytes = 0
        for batch in _batches(self._draw(documents)):
            for document in self._clean(batch):
                if reason := document.raw.reason or self._fault(document):
                    self.report.drop(reason, document.id, document.sentences)
                    damage = document.raw.damage
                    if damage and damage.bytes:
                        self.report.skip(damage)
                else:
                    if document.raw.encoding:
                        self.report.encodings[document.raw.encoding] += 1
                    table.append(document)
                    table_bytes += len(document.encoded)
            if table_bytes >= _TABLE_BYTES:
                yield self._table(table)
                table, table_bytes = [], 0
        if table:
            yield self._table(table)

    def _draw(self, documents: Iterable[RawDocument]) -> Iterator[RawDocument]:
        """Yield the source's share of the documents, and what could not be read."""
        if self._share == 1:
            yield from documents
            return
        for document in documents:
            id_ = clean(document.id).text
            place = int.from_bytes(_hash_name(self.report.source, id_)) / _NAMES
            if document.damage or place < self._share:
                yield document
            else:
                self.report.drop(NOT_DRAWN, id_, ())

    @property
    def keys(self) -> pa.Table:
        return pa.concat_tables(self._keys).combine_chunks()

    def _clean(self, batch: list[RawDocument]) -> "Iterator[_CleanDocument]":
        cleaned = clean_all([document.paragraphs for document in batch])
        self.report.characters_removed += cleaned.removed
        self.report.characters_replaced += cleaned.replaced
        if batch[0].segmented:
            sentences = [line for line in cleaned.text.split("\n") if line]
        else:
            sentences = _segment_all(cleaned.text)
        contaminated = frozenset[int]()
        if self._tests is not None:
            remainder = remove_test_texts(sentences, self._tests)
            sentences, contaminated = remainder.lines, remainder.documents
            self.report.cut(TEST_TEXT, remainder.paragraphs, remainder.characters)
        for number, (raw, lines) in enumerate(zip(batch, _split(sentences), strict=True)):
            if raw.boilerplate:
                self.report.cut(BOILERPLATE, 0, raw.boilerplate)
            yield _CleanDocument(raw, *lines, is_cut=number in contaminated)

    def _fault(self, document: "_CleanDocument") -> str:
        if not document.sentences:
            return TEST_TEXT if document.is_cut else "no text"
        if text_length(document.text) < self._rules.minimum_characters:
            return TEST_TEXT if document.is_cut else "too short"
        quality = self._rules.quality
        return "" if quality is None else find_fault(document.sentences, quality)

    def _table(self, documents: "list[_CleanDocument]") -> pa.Table:
        rules = self._rules
        self.report.documents += len(documents)
        digests = [hashlib.blake2b(one.encoded, digest_size=16) for one in documents]
        digest = pa.array([one.digest() for one in digests], pa.binary(16))
        split = pa.array(split_keys(digest, rules.seed))
        limits = rules.held_out_fraction, rules.minimum_characters
        sizes = pa.array([len(one.encoded) for one in documents], pa.int64())
        cut = pa.array([can_be_cut(one.text, *limits) for one in documents], pa.bool_())
        bands = signature = pa.nulls(len(documents), pa.binary())
        if rules.near_duplicates is not None:
            # Sentence breaks do not count for similarity.
            texts = [document.text.replace("\n", " ") for document in documents]
            signed = near_duplicates.sign_texts(texts, rules.near_duplicates)
            banding = near_duplicates.choose_banding(rules.near_duplicates)
            bands = _binary(near_duplicates.band_keys(signed, banding).astype("<u8"))
            signature = _binary(near_duplicates.low_bytes(signed))
        hashes = [_hash_name(self.report.source, one.id) for one in documents]
        name = pa.array(hashes, pa.binary(16))
        self._keys.append(
            pa.Table.from_arrays(
                [digest, name, split, sizes, cut, bands, signature], schema=KEYS_SCHEMA
            )
        )
        # Removed text has shifted the positions of spans after it.
        spans = [
            locate_spans(one.raw.text, one.raw.spans, () if one.is_cut else one.sentences)
            for one in documents
        ]
        sentence_spans = [pairs for one in spans for pairs in one.spans]
        return pa.Table.from_arrays(
            [
                pa.array([one.id for one in documents], pa.string()),
                pa.array([clean(one.raw.label).text for one in documents], pa.string()),
                pa.array([one.hexdigest() for one in digests], pa.string()),
                _lists([one.sentences for one in documents], pa.string()),
                _lists([one.starts for one in documents], pa.int32()),
                pa.ListArray.from_arrays(
                    _offsets([one.spans for one in spans]), _lists(sentence_spans, pa.int32())
                ),
                sizes,
                split,
                cut,
                pa.array([one.dropped for one in spans], pa.int64()),
            ],
            schema=TEXT_SCHEMA,
        )


class _CleanDocument:
    """A document between clean-up and its row in a table; `starts` are those of paragraphs."""

    __slots__ = ("encoded", "id", "is_cut", "raw", "sentences", "starts", "text")

    def __init__(
        self, raw: RawDocument, sentences: list[str], starts: list[int], *, is_cut: bool
    ) -> None:
        self.is_cut = is_cut
        self.raw = raw
        self.id = clean(raw.id).text
        self.sentences = sentences
        self.starts = starts
        # The text of document.text_digest; as long as with blanks instead.
        self.text = "\n".join(sentences)
        self.encoded = self.text.encode()


def _hash_name(source: str, id_: str) -> bytes:
    return hashlib.blake2b(f"{source}\0{id_}".encode(), digest_size=16).digest()


def _batches(documents: Iterable[RawDocument]) -> Iterator[list[RawDocument]]:
    batch: list[RawDocument] = []
    characters = 0
    for document in documents:
        if batch and (
            characters >= _CHARACTERS_AT_ONCE or document.segmented != batch[0].segmented
        ):
            yield batch
            batch, characters = [], 0
        batch.append(document)
        characters += sum(map(len, document.paragraphs))
    if batch:
        yield batch


def _segment_all(text: str) -> list[str]:
    """Segment many documents, with marks between them, as each would be alone."""
    documents = text.split(DOCUMENT)
    # Whether a small letter may open a sentence depends on the document.
    is_lower = list(map(str.islower, documents))
    if not any(is_lower):
        return segment(text)
    sentences_by_case = [
        _split_at_marks(segment(DOCUMENT.join(compress(documents, selection))))
        for selection in (map(operator.not_, is_lower), is_lower)
    ]
    sentences = next(sentences_by_case[is_lower[0]])
    for case in is_lower[1:]:
        sentences += [DOCUMENT, *next(sentences_by_case[case])]
    return sentences


def _split_at_marks(lines: list[str]) -> Iterator[list[str]]:
    begin = 0
    for end in [*(at for at, line in enumerate(lines) if line == DOCUMENT), len(lines)]:
        yield lines[begin:end]
        begin = end + 1


def _split(lines: list[str]) -> Iterator[tuple[list[str], list[int]]]:
    """Yield each document's sentences and the index of each paragraph's first."""
    for document in _split_at_marks(lines):
        sentences: list[str] = []
        starts: list[int] = []
        opens = True
        for line in document:
            if line == PARAGRAPH:
                opens = True
                continue
            if opens:
                starts.append(len(sentences))
                opens = False
            sentences.append(line)
        yield sentences, starts


def split_keys(digests: pa.Array, seed: int) -> np.ndarray:
    """Return a number per digest, binary(16), that decides its split: (N,) uint64."""
    words = np.frombuffer(digests.buffers()[1], "<u8").reshape(-1, 2)[digests.offset :, 0]
    return mix(words[: len(digests)] + mix(np.array([seed], np.uint64)))


def _binary(rows: np.ndarray) -> pa.Array:
    return pa.array([row.tobytes() for row in rows], pa.binary())


def _lists(lists: Sequence[Sequence[Any]], value_type: pa.DataType) -> pa.ListArray:
    """Build a list array from flat values, several times as fast as from lists."""
    flat = [value for values in lists for value in values]
    return pa.ListArray.from_arrays(_offsets(lists), pa.array(flat, value_type))


def _offsets(lists: Sequence[Sequence[Any]]) -> pa.Array:
    return pa.array(list(accumulate(map(len, lists), initial=0)), pa.int32())
