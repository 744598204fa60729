"""Turn raw documents into tables: clean, segment, measure, sign, and drop rule breakers.

A range gives tables of documents, and a table of keys (digests and signatures), the only data
compared with other ranges. Dropped documents are counted, and a few of each reason sampled.
"""

from __future__ import annotations

import hashlib
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import accumulate, compress
from typing import Any

import numpy as np
import pyarrow as pa

from rungwise.corpus.cleaning.characters import DOCUMENT, PARAGRAPH, clean, clean_all
from rungwise.corpus.cleaning.decontamination import NgramHashes, remove_test_texts
from rungwise.corpus.cleaning.quality import find_fault
from rungwise.corpus.cleaning.sentences import segment
from rungwise.corpus.cleaning.spans import locate_spans
from rungwise.corpus.config import Rules
from rungwise.corpus.deduplication import signatures
from rungwise.corpus.document import SCHEMA, RawDocument

TEXT_SCHEMA = pa.schema(
    [
        *SCHEMA,
        ("bytes", pa.int64()),  # of the sentences joined by blanks
        ("split", pa.uint64()),  # the smallest are held out
        ("spans_dropped", pa.int64()),
    ]
)
KEYS_SCHEMA = pa.schema(
    [
        ("digest", pa.binary(16)),
        ("name", pa.binary(16)),  # a hash of the source and the id
        ("split", pa.uint64()),
        ("bands", pa.binary()),  # keys, little-endian uint64; null without near_duplicates
        ("signature", pa.binary()),  # compact
    ]
)
SAMPLES = 3
BOILERPLATE, TEST_TEXT = "boilerplate", "test text"
_SAMPLE_CHARACTERS = 80
_DAMAGE_SHOWN = 20
_LABELS_SHOWN = 100
# Small enough for processor caches, large enough to batch many documents.
_CHARACTERS_AT_ONCE = 1 << 18
_TABLE_BYTES = 8 << 20


class RangeBuilder:
    """Builds the tables of one range; `keys` and `report` are complete afterwards."""

    def __init__(self, rules: Rules, source: str, tests: NgramHashes | None = None) -> None:
        self._rules = rules
        self._source = source
        self._tests = tests
        self._keys: list[pa.Table] = [KEYS_SCHEMA.empty_table()]
        self._removed = self._replaced = self._documents = 0
        # Paragraphs and characters removed, by reason.
        self._paragraphs_cut: Counter[str] = Counter()
        self._characters_cut: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._samples: dict[str, list[dict[str, str]]] = {}
        self._damage: list[dict[str, Any]] = []
        self._damaged_bytes = self._num_damaged = 0

    def tables(self, documents: Iterable[RawDocument]) -> Iterator[pa.Table]:
        """Yield tables of a few megabytes with a row per kept document, in order."""
        rows: list[_Row] = []
        held_bytes = 0
        for batch in _batches(documents):
            cleaned = clean_all([document.paragraphs for document in batch])
            self._removed += cleaned.removed
            self._replaced += cleaned.replaced
            sentences = (
                [line for line in cleaned.text.split("\n") if line]
                if batch[0].segmented
                else _segmented(cleaned.text)
            )
            contaminated = frozenset[int]()
            if self._tests is not None:
                sentences, paragraphs, characters, contaminated = remove_test_texts(
                    sentences, self._tests
                )
                self._cut(TEST_TEXT, paragraphs, characters)
            documents_of = zip(batch, _documents(sentences), strict=True)
            for number, (document, lines) in enumerate(documents_of):
                row = _Row(document, *lines, is_cut=number in contaminated)
                if document.boilerplate:
                    self._cut(BOILERPLATE, 0, document.boilerplate)
                if reason := document.reason or self._fault(row):
                    self._drop(row, reason)
                else:
                    rows.append(row)
                    held_bytes += len(row.encoded)
            if held_bytes >= _TABLE_BYTES:
                yield self._table(rows)
                rows, held_bytes = [], 0
        if rows:
            yield self._table(rows)

    @property
    def keys(self) -> pa.Table:
        return pa.concat_tables(self._keys).combine_chunks()

    @property
    def report(self) -> dict[str, Any]:
        """Counts of documents kept and dropped, as plain data of bounded size."""
        return {
            "documents": self._documents,
            "dropped": dict(self._dropped),
            "samples": self._samples,
            "damage": self._damage,
            "damaged": self._num_damaged,
            "damaged_bytes": self._damaged_bytes,
            "removed": self._removed,
            "replaced": self._replaced,
            "cut": [
                cut_entry(self._source, reason, self._paragraphs_cut[reason], characters)
                for reason, characters in self._characters_cut.items()
                if characters
            ],
        }

    def _fault(self, row: _Row) -> str:
        if not row.sentences:
            return TEST_TEXT if row.is_cut else "no text"
        if len(row.text) < self._rules.minimum_characters:
            return TEST_TEXT if row.is_cut else "too short"
        return "" if self._rules.quality is None else find_fault(row.sentences, self._rules.quality)

    def _cut(self, reason: str, paragraphs: int, characters: int) -> None:
        self._paragraphs_cut[reason] += paragraphs
        self._characters_cut[reason] += characters

    def _drop(self, row: _Row, reason: str) -> None:
        self._dropped[reason] += 1
        samples = self._samples.setdefault(reason, [])
        if len(samples) < SAMPLES:
            samples.append({"id": row.id, "text": sample_text(row.sentences)})
        damage = row.raw.damage
        if damage and damage.bytes:
            self._num_damaged += 1
            self._damaged_bytes += damage.bytes
            if len(self._damage) < _DAMAGE_SHOWN:
                self._damage.append(asdict(damage) | {"reason": reason})

    def _table(self, rows: list[_Row]) -> pa.Table:
        rules = self._rules
        self._documents += len(rows)
        digests = [hashlib.blake2b(row.encoded, digest_size=16) for row in rows]
        digest = pa.array([one.digest() for one in digests], pa.binary(16))
        split = pa.array(split_keys(digest, rules.seed))
        bands = signed = pa.nulls(len(rows), pa.binary())
        if rules.near_duplicates is not None:
            # Sentence breaks do not count for similarity.
            texts = [row.text.replace("\n", " ") for row in rows]
            full = signatures.sign_texts(texts, rules.near_duplicates)
            keys = signatures.band_keys(full, signatures.choose_banding(rules.near_duplicates))
            bands = pa.array([row.tobytes() for row in keys.astype("<u8")], pa.binary())
            signed = pa.array([row.tobytes() for row in signatures.low_bytes(full)], pa.binary())
        names = pa.array([_name_of(self._source, row.id) for row in rows], pa.binary(16))
        self._keys.append(
            pa.Table.from_arrays([digest, names, split, bands, signed], schema=KEYS_SCHEMA)
        )
        # Removed text has shifted the positions of spans after it.
        placed = [
            locate_spans(row.raw.text, row.raw.spans, () if row.is_cut else row.sentences)
            for row in rows
        ]
        sentence_spans = [spans for one in placed for spans in one.spans]
        return pa.Table.from_arrays(
            [
                pa.array([row.id for row in rows], pa.string()),
                pa.array([clean(row.raw.label).text for row in rows], pa.string()),
                pa.array([one.hexdigest() for one in digests], pa.string()),
                _lists([row.sentences for row in rows], pa.string()),
                _lists([row.starts for row in rows], pa.int32()),
                pa.ListArray.from_arrays(
                    _offsets([one.spans for one in placed]), _lists(sentence_spans, pa.int32())
                ),
                pa.array([len(row.encoded) for row in rows], pa.int64()),
                split,
                pa.array([one.dropped for one in placed], pa.int64()),
            ],
            schema=TEXT_SCHEMA,
        )


class _Row:
    """A document between clean-up and its place in a table."""

    __slots__ = ("encoded", "id", "is_cut", "raw", "sentences", "starts", "text")

    def __init__(
        self, raw: RawDocument, sentences: list[str], starts: list[int], *, is_cut: bool
    ) -> None:
        self.is_cut = is_cut
        self.raw = raw
        self.id = clean(raw.id).text
        self.sentences = sentences
        self.starts = starts
        # The text of document.digest_of; as long as with blanks instead.
        self.text = "\n".join(sentences)
        self.encoded = self.text.encode()


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


def _segmented(text: str) -> list[str]:
    """Segment many documents, with marks between them, as each would be alone."""
    documents = text.split(DOCUMENT)
    # Whether a small letter may open a sentence depends on the document.
    kinds = list(map(str.islower, documents))
    if not any(kinds):
        return segment(text)
    lines_of = [
        _between_marks(segment(DOCUMENT.join(compress(documents, chosen))))
        for chosen in (map(operator.not_, kinds), kinds)
    ]
    sentences = next(lines_of[kinds[0]])
    for kind in kinds[1:]:
        sentences += [DOCUMENT, *next(lines_of[kind])]
    return sentences


def _between_marks(lines: list[str]) -> Iterator[list[str]]:
    begin = 0
    for end in [*(at for at, line in enumerate(lines) if line == DOCUMENT), len(lines)]:
        yield lines[begin:end]
        begin = end + 1


def _documents(lines: list[str]) -> Iterator[tuple[list[str], list[int]]]:
    """Yield each document's sentences and the index of each paragraph's first."""
    sentences: list[str] = []
    starts: list[int] = []
    opens = True
    for line in lines:
        if line == PARAGRAPH:
            opens = True
        elif line == DOCUMENT:
            yield sentences, starts
            sentences, starts, opens = [], [], True
        else:
            if opens:
                starts.append(len(sentences))
                opens = False
            sentences.append(line)
    yield sentences, starts


def split_keys(digests: pa.Array, seed: int) -> np.ndarray:
    """Return a number per digest, binary(16), that decides its split: (N,) uint64."""
    words = np.frombuffer(digests.buffers()[1], "<u8").reshape(-1, 2)[digests.offset :, 0]
    return signatures.mix(words[: len(digests)] + signatures.mix(np.array([seed], np.uint64)))


def _name_of(source: str, id_: str) -> bytes:
    return hashlib.blake2b(f"{source}\0{id_}".encode(), digest_size=16).digest()


def _lists(several: Sequence[Sequence[Any]], value_type: pa.DataType) -> pa.ListArray:
    """Build a list array from flat values, several times as fast as from lists."""
    flat = [value for values in several for value in values]
    return pa.ListArray.from_arrays(_offsets(several), pa.array(flat, value_type))


def _offsets(several: Sequence[Sequence[Any]]) -> pa.Array:
    return pa.array(list(accumulate(map(len, several), initial=0)), pa.int32())


def cut_entry(source: str, reason: str, paragraphs: int, characters: int) -> dict[str, Any]:
    """Return a report's entry for text removed for one reason."""
    return {
        "source": source,
        "reason": reason,
        "paragraphs": paragraphs,
        "characters": characters,
    }


def sample_text(sentences: Sequence[str]) -> str:
    """Return the start of a text, to show people what was dropped."""
    start = ""
    for sentence in sentences:
        start = f"{start} {sentence[:_SAMPLE_CHARACTERS]}".lstrip()
        if len(start) >= _SAMPLE_CHARACTERS:
            break
    return start[:_SAMPLE_CHARACTERS]
