"""Turn raw documents into tables: clean, segment, measure, sign, and drop rule breakers.

A range gives tables of documents, and a table of keys (digests and signatures), the only data
compared with other ranges."""

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from rungwise.core.errors import DataError, explain_connection_errors
from rungwise.core.randomness import mix
from rungwise.corpus import config as configs
from rungwise.corpus.building.held_out import can_be_cut
from rungwise.corpus.cleaning import duplicates
from rungwise.corpus.cleaning.text import DOCUMENT, PARAGRAPH, clean, clean_all, find_fault, segment
from rungwise.corpus.config import CorpusConfig, DocumentRules, PydocsSource, Range
from rungwise.corpus.document import SCHEMA, RawDocument, batch_by_size, text_length
from rungwise.corpus.readers import pydocs, streams
from rungwise.corpus.readers.documents import READERS
from rungwise.corpus.readers.file_reader import FileReader
from rungwise.corpus.summary import RangeReport

_EMPTY = "empty file"


def read_range(range: Range, config: CorpusConfig) -> Iterator[RawDocument]:
    """Yield the documents of a range in order, and one without text per skipped part."""
    source = config.sources[range.source]
    if isinstance(source, PydocsSource):
        yield from pydocs.read_modules(range.files, configs.source_key(range.source, "packages"))
        return
    label = getattr(source, "label", None) or configs.source_names(config.sources)[range.source]
    for file in range.files:
        reader = FileReader(
            file=file,
            source=range.source,
            label=label,
            encoding=getattr(source, "encoding", ""),
            maximum_bytes=int(config.maximum_document_megabytes * 1e6),
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


def _documents(reader: FileReader, source: configs.FileSource) -> Iterator[RawDocument]:
    if reader.file.size_bytes == 0:
        return
    is_intact = False
    try:
        for document in READERS[source.kind](reader, source):
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
NOT_DRAWN = "not drawn (share)"
_NAMES = 1 << 128
_CHARACTERS_AT_ONCE = 1 << 18  # few enough for processor caches, enough to batch many documents
_TABLE_BYTES = 8 << 20


class RangeBuilder:
    """Builds the tables of one range; `keys` and `report` are complete afterwards."""

    def __init__(self, rules: DocumentRules, source: str, share: float = 1.0) -> None:
        self._rules = rules
        self._share = share
        self._keys: list[pa.Table] = [KEYS_SCHEMA.empty_table()]
        self.report = RangeReport(source=source)

    def tables(self, documents: Iterable[RawDocument]) -> Iterator[pa.Table]:
        """Yield tables of a few megabytes with a row per document that stays, in order."""
        table: list[_CleanDocument] = []
        table_bytes = 0
        sample = self._draw(documents)

        def count_characters(document: RawDocument) -> int:
            return sum(map(len, document.paragraphs))

        for batch in batch_by_size(sample, count_characters, _CHARACTERS_AT_ONCE):
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
        for raw, clean_text in zip(batch, cleaned.text.split(DOCUMENT), strict=True):
            plain_lines = filter(None, clean_text.split("\n"))
            lines = plain_lines if raw.segmented else segment(clean_text)
            yield _CleanDocument(raw, lines)

    def _fault(self, document: "_CleanDocument") -> str:
        if not document.sentences:
            return "no text"
        if text_length(document.text) < self._rules.minimum_characters:
            return "too short"
        return find_fault(document.sentences) if self._rules.quality else ""

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
        if rules.near_duplicates:
            # Sentence breaks do not count for similarity.
            texts = [document.text.replace("\n", " ") for document in documents]
            signed = duplicates.sign_texts(texts)
            bands = _binary(duplicates.band_keys(signed).astype("<u8"))
            # The low bytes are enough to estimate a similarity.
            signature = _binary(signed.astype(np.uint8))
        hashes = [_hash_name(self.report.source, one.id) for one in documents]
        name = pa.array(hashes, pa.binary(16))
        self._keys.append(
            pa.Table.from_arrays(
                [digest, name, split, sizes, cut, bands, signature], schema=KEYS_SCHEMA
            )
        )
        return pa.Table.from_arrays(
            [
                pa.array([one.id for one in documents], pa.string()),
                pa.array([clean(one.raw.label).text for one in documents], pa.string()),
                pa.array([one.hexdigest() for one in digests], pa.string()),
                pa.array([one.sentences for one in documents], pa.list_(pa.string())),
                pa.array([one.starts for one in documents], pa.list_(pa.int32())),
                sizes,
                split,
                cut,
            ],
            schema=TEXT_SCHEMA,
        )


class _CleanDocument:
    """A document between clean-up and its row in a table; `starts` are those of paragraphs."""

    __slots__ = ("encoded", "id", "raw", "sentences", "starts", "text")

    def __init__(self, raw: RawDocument, lines: Iterable[str]) -> None:
        self.raw = raw
        self.id = clean(raw.id).text
        self.sentences: list[str] = []
        self.starts: list[int] = []
        opens = True
        for line in lines:
            if line == PARAGRAPH:
                opens = True
                continue
            if opens:
                self.starts.append(len(self.sentences))
                opens = False
            self.sentences.append(line)
        # The text of document.text_digest; as long as with blanks instead.
        self.text = "\n".join(self.sentences)
        self.encoded = self.text.encode()


def _hash_name(source: str, id_: str) -> bytes:
    return hashlib.blake2b(f"{source}\0{id_}".encode(), digest_size=16).digest()


def split_keys(digests: pa.Array, seed: int) -> np.ndarray:
    """Return a number per digest, binary(16), that decides its split: (N,) uint64."""
    words = np.frombuffer(digests.buffers()[1], "<u8").reshape(-1, 2)[digests.offset :, 0]
    return mix(words[: len(digests)] + mix(np.array([seed], np.uint64)))


def _binary(rows: np.ndarray) -> pa.Array:
    return pa.array([row.tobytes() for row in rows], pa.binary())
