"""Process one range: read it to staged files and report its keys, then write its shards, those of
the training split first.

Text stays in its range; only keys are compared with other ranges (comparison.py). The passes leave
files for each other in `{output}/staging`:

    {range}.text.arrow            all documents of a range, uncompressed, in source order
    {range}.keys.arrow            their keys
    {range}.read.json             the report of reading, and digests of both: marks it as done
    {range}.held-out.arrow        its held-out documents
    {range}.passages              hashes of their passages
    {range}.train.json            the report of writing the others, and digests of all: likewise
    {range}.validation-new.json   the report of writing those held out, and digests: likewise;
    {range}.validation-whole.json with what stands in training
    tests                         hashes of test texts
    filter                        the passages of all ranges, as bits
    duplicates-{partition}.arrow  rows of duplicate documents, a record batch per group of ranges
    repeats-{partition}.arrow     repeated paragraphs, likewise
    overlap-{partition}.arrow     held-out passages that stand in training, likewise

Every file appears whole or not at all, so a killed stage resumes where it stopped. What is marked
as done and has changed since is made again.

Write the documents of one range to its files: leave out duplicates, split, leave out held-out
text that stands in training, count.

Documents keep their order. The files of a split are `{split}-{range}.parquet`, or several ending in
`-{part}` if the range holds more text than a shard may.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc  # type checkers miss functions made at run time
import pyarrow.parquet as pq

from rungwise.core.stages.notes import read_note, write_note
from rungwise.core.storage.folder import Folder, file_digest
from rungwise.corpus.building.held_out import HeldOutSplit, split_documents
from rungwise.corpus.building.range_builder import (
    KEYS_SCHEMA,
    TEXT_SCHEMA,
    Range,
    RangeBuilder,
    read_range,
)
from rungwise.corpus.cleaning.decontamination import NgramHashes, hash_test_texts
from rungwise.corpus.config import CorpusConfig, DocumentRules, source_names
from rungwise.corpus.deduplication.documents import REASONS
from rungwise.corpus.deduplication.overlap import STANDS_IN_TRAINING, hash_passages, mark_sentences
from rungwise.corpus.deduplication.paragraphs import keep_sentences, remove_paragraphs
from rungwise.corpus.document import SCHEMA, RawDocument, read_documents
from rungwise.corpus.files import list_test_files
from rungwise.corpus.summary import SPLITS, CorpusFile, RangeReport

TRAIN, VALIDATION = SPLITS

REPEATED = "duplicate paragraphs"
_ROWS_A_GROUP = 4096
_LABELS_OF_A_RANGE = 100


class ShardWriter:
    """Writes the files of ranges in `output`, none for a split without documents.

    `split` says which documents are held out.
    """

    def __init__(self, rules: DocumentRules, split: HeldOutSplit, output: Folder) -> None:
        self._rules = rules
        self._split = split
        self._output = output

    def write_training(
        self,
        number: int,
        source: str,
        tables: Iterable[pa.Table],
        duplicates: np.ndarray,
        repeats: np.ndarray,
    ) -> tuple[RangeReport, pa.Table]:
        """Write the training files of range `number`; return its report, and its held-out
        documents.

        `tables` come from `RangeBuilder`; `duplicates`, (N, 2), holds row and index of the reason,
        `repeats`, (N, 2), row and paragraph, both sorted.
        """
        report = RangeReport(source=source)
        files = self._files(TRAIN, number, report)
        parts = [TEXT_SCHEMA.empty_table()]
        begin = 0
        for whole in tables:
            repeats_here = _select_rows(repeats, begin, whole.num_rows)
            table, characters, too_short = remove_paragraphs(
                whole, repeats_here, self._rules.minimum_characters
            )
            report.cut(REPEATED, len(repeats_here), characters)
            duplicates_here = _select_rows(duplicates, begin, whole.num_rows)
            drops = [(row, REASONS[reason]) for row, reason in duplicates_here.tolist()]
            stays = np.ones(table.num_rows, bool)
            for row, reason in (*drops, *((row, REPEATED) for row in too_short.tolist())):
                stays[row] = False
                report.drop(reason, whole["id"][row].as_py(), whole["sentences"][row].as_py())
            begin += whole.num_rows
            table = table.filter(pa.array(stays))
            table, held_out = split_documents(table, self._split, self._rules)
            files.add(table.filter(pa.array(~held_out)))
            parts.append(table.filter(pa.array(held_out)))
        files.close()
        return report, pa.concat_tables(parts)

    def write_held_out(
        self, number: int, source: str, table: pa.Table, passages: np.ndarray, keep_repeats: bool
    ) -> RangeReport:
        """Write the validation files of range `number`; count the text that stands in training,
        and leave it out unless `keep_repeats`. `passages`, (N,), index `hash_passages`."""
        report = RangeReport(source=source)
        files = self._files(VALIDATION, number, report)
        if len(passages):
            marks = mark_sentences(table, passages)
            shorter = keep_sentences(table, ~marks, self._rules.minimum_characters)
            stays = np.ones(table.num_rows, bool)
            stays[shorter.too_short] = False
            new = shorter.table.filter(pa.array(stays))
            report.repeated_bytes = sum(table["bytes"].to_pylist()) - sum(new["bytes"].to_pylist())
            report.repeats_stay = keep_repeats
            if not keep_repeats:
                for row in shorter.too_short.tolist():
                    text = table["sentences"][row].as_py()
                    report.drop(STANDS_IN_TRAINING, table["id"][row].as_py(), text)
                table = new
        files.add(table)
        files.close()
        return report

    def _files(self, split: str, number: int, report: RangeReport) -> "_SplitFiles":
        limit_bytes = int(self._rules.shard_megabytes * 1e6)
        return _SplitFiles(split, number, limit_bytes, self._output, report)


def _select_rows(positions: np.ndarray, begin: int, num_rows: int) -> np.ndarray:
    here = positions[np.searchsorted(positions[:, 0], begin) :]
    return here[: np.searchsorted(here[:, 0], begin + num_rows)] - [begin, 0]


class _SplitFiles:
    """Collects the documents of one split and writes a file whenever it is full."""

    def __init__(
        self, split: str, number: int, limit_bytes: int, output: Folder, report: RangeReport
    ) -> None:
        self._split = split
        self._stem = f"{split}-{number:05d}"
        self._limit_bytes = limit_bytes
        self._output = output
        self._report = report
        self._tables: list[pa.Table] = []
        self._bytes = self._parts = 0
        self._labels: Counter[str] = Counter()

    def add(self, table: pa.Table) -> None:
        self._report.spans_dropped += pc.sum(table["spans_dropped"]).as_py() or 0  # pyright: ignore[reportAttributeAccessIssue]
        for entry in pc.value_counts(table["label"]).to_pylist():  # pyright: ignore[reportAttributeAccessIssue]
            self._labels[entry["values"]] += entry["counts"]
        while table.num_rows:
            ends = np.cumsum(table["bytes"].to_numpy()) + self._bytes
            fits = int(np.searchsorted(ends, self._limit_bytes, side="right"))
            # A document larger than a shard gets its own.
            fits = max(fits, 0 if self._tables else 1)
            if fits:
                self._tables.append(table[:fits])
                self._bytes = int(ends[fits - 1])
            table = table[fits:]
            if table.num_rows:
                self._flush(f"{self._stem}-{self._parts:02d}.parquet")

    def close(self) -> None:
        if self._tables:
            part = f"-{self._parts:02d}" if self._parts else ""
            self._flush(f"{self._stem}{part}.parquet")
        self._report.labels = dict(self._labels.most_common(_LABELS_OF_A_RANGE))

    def _flush(self, name: str) -> None:
        table = pa.concat_tables(self._tables).select(SCHEMA.names).combine_chunks()
        self._tables, self._bytes = [], 0
        self._parts += 1
        with self._output.staged(name) as path:
            pq.write_table(
                table,
                path,
                compression="zstd",
                compression_level=1,
                row_group_size=_ROWS_A_GROUP,
                use_dictionary=["label"],  # pyright: ignore[reportArgumentType]
                write_statistics=False,
            )
            self._report.sha256[name] = file_digest(path)
        file = CorpusFile(
            file=name, split=self._split, source=self._report.source, **_counts(table)
        )
        self._report.files.append(file)


def _counts(table: pa.Table) -> dict[str, int]:
    sentences = pc.list_flatten(table["sentences"])  # pyright: ignore[reportAttributeAccessIssue]
    # Clean text has single blanks; one more separates two sentences.
    between = len(sentences) - table.num_rows
    text_bytes = pc.sum(pc.binary_length(sentences)).as_py()  # pyright: ignore[reportAttributeAccessIssue]
    blanks = pc.sum(pc.count_substring(sentences, " ")).as_py()  # pyright: ignore[reportAttributeAccessIssue]
    return {
        "documents": table.num_rows,
        "sentences": len(sentences),
        "words": blanks + len(sentences),
        "characters": pc.sum(pc.utf8_length(sentences)).as_py() + between,  # pyright: ignore[reportAttributeAccessIssue]
        "bytes": text_bytes + between,
        "spans": len(pc.list_flatten(pc.list_flatten(table["spans"]))) // 2,  # pyright: ignore[reportAttributeAccessIssue]
    }


STAGING = "staging"
NO_POSITIONS = np.empty((0, 3), np.int64)
# The index is that of the reason of a duplicate, or of a repeated paragraph.
_POSITIONS = pa.schema([("range", pa.int32()), ("row", pa.int32()), ("index", pa.int32())])


@dataclass(frozen=True)
class PositionFiles:
    """Positions in the ranges, (N, 3) range, row and index: a file per partition that found them.

    `group_of` maps each range to its group; a task reads only the positions of its group.
    """

    output: Folder
    name: str
    num_partitions: int
    group_of: np.ndarray

    def write(self, partition: int, positions: np.ndarray) -> None:
        groups = self.group_of[positions[:, 0]]
        positions = positions[np.argsort(groups, kind="stable")]
        ends = np.cumsum(np.bincount(groups, minlength=self.group_of.max(initial=0) + 1))
        batches = [
            pa.record_batch([pa.array(column, pa.int32()) for column in rows.T], schema=_POSITIONS)
            for rows in np.split(positions, ends[:-1])
        ]
        write_tables(self.output, self._file(partition), _POSITIONS, batches)

    def write_empty(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            self.write(partition, NO_POSITIONS)

    def read(self, group: int) -> np.ndarray:
        """Return the positions in a group of ranges, sorted."""
        parts = [NO_POSITIONS]
        for partition in range(self.num_partitions):
            with open_tables(self.output, self._file(partition)) as reader:
                batch = reader.get_batch(group)
            parts.append(np.column_stack([column.to_numpy() for column in batch.columns]))
        positions = np.concatenate(parts)
        return positions[np.lexsort(positions.T[::-1])]

    def _file(self, partition: int) -> str:
        return f"{STAGING}/{self.name}-{partition:05d}.arrow"


def write_tables(
    output: Folder, name: str, schema: pa.Schema, tables: Iterable[pa.Table | pa.RecordBatch]
) -> str:
    """Write tables to one file, and return its sha256."""
    with output.staged(name) as path:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for table in tables:
                writer.write(table)
        return file_digest(path)


def open_tables(output: Folder, name: str) -> Any:
    source = output.open(name) if output.remote else pa.memory_map(str(output.local(name)))
    return pa.ipc.open_file(source)


_TESTS_FILE = f"{STAGING}/tests"
_HELD_OUT_FILE = STAGING + "/{:05d}.held-out.arrow"
_PASSAGES_FILE = STAGING + "/{:05d}.passages"
_TEXT_FILE, _KEYS_FILE = STAGING + "/{:05d}.text.arrow", STAGING + "/{:05d}.keys.arrow"


@dataclass(frozen=True)
class RangeTask:
    """Reads and writes the ranges of an artifact; holds what they share."""

    config: CorpusConfig
    output: Folder

    def read(self, range: Range, documents: Iterable[RawDocument] | None = None) -> RangeReport:
        """Stage the documents of a range, those of its files unless given, if not staged already;
        return the report."""
        marker = f"{STAGING}/{range.number:05d}.read.json"
        if (report := read_note(self.output, marker)) is not None:
            return RangeReport.from_plain(report)
        share = self.config.sources[range.source].share
        builder = RangeBuilder(self.config, self._source(range), self._tests, share)
        documents = read_range(range, self.config) if documents is None else documents
        tables = builder.tables(documents)
        text, keys = (name.format(range.number) for name in (_TEXT_FILE, _KEYS_FILE))
        files = {text: write_tables(self.output, text, TEXT_SCHEMA, tables)}
        files[keys] = write_tables(self.output, keys, KEYS_SCHEMA, [builder.keys])
        write_note(self.output, marker, builder.report.to_plain(), files)
        return builder.report

    def keys(self, number: int) -> pa.Table:
        """Return the keys of a staged range."""
        with open_tables(self.output, _KEYS_FILE.format(number)) as reader:
            return reader.read_all()

    def tables(self, number: int) -> Iterator[pa.Table]:
        """Yield the documents of a staged range."""
        with open_tables(self.output, _TEXT_FILE.format(number)) as reader:
            for batch in range(reader.num_record_batches):
                yield pa.Table.from_batches([reader.get_batch(batch)])

    def document_id(self, number: int, row: int) -> str:
        for table in self.tables(number):
            if row < table.num_rows:
                return table["id"][row].as_py()
            row -= table.num_rows
        raise IndexError(row)

    def write_training(
        self, range: Range, duplicates: np.ndarray, repeats: np.ndarray, split: HeldOutSplit
    ) -> RangeReport:
        """Write the training files of a range unless already written, and stage its held-out
        documents; return the report.

        `duplicates` and `repeats` are positions (`PositionFiles`), also of other ranges.
        """
        marker = f"{STAGING}/{range.number:05d}.train.json"
        if (written := read_note(self.output, marker)) is not None:
            return RangeReport.from_plain(written)
        report, table = self._writer(split).write_training(
            range.number,
            self._source(range),
            self.tables(range.number),
            duplicates[duplicates[:, 0] == range.number, 1:],
            repeats[repeats[:, 0] == range.number, 1:],
        )
        held_out, passages = (
            name.format(range.number) for name in (_HELD_OUT_FILE, _PASSAGES_FILE)
        )
        hashes = hash_passages(table["sentences"].to_pylist()).tobytes()
        self.output.write_bytes(passages, hashes)
        files = {
            **report.sha256,
            held_out: write_tables(self.output, held_out, TEXT_SCHEMA, [table]),
            passages: hashlib.sha256(hashes).hexdigest(),
        }
        write_note(self.output, marker, report.to_plain(), files)
        return report

    def held_out_passages(self, number: int) -> np.ndarray:
        """Return the hashes of the passages of a range's held-out documents, (N,) uint64."""
        content = self.output.read_bytes(_PASSAGES_FILE.format(number))
        return np.frombuffer(content, np.uint64)

    def held_out_documents(self, number: int) -> pa.Table:
        """Return the staged held-out documents of a range."""
        with open_tables(self.output, _HELD_OUT_FILE.format(number)) as reader:
            return reader.read_all()

    def training_documents(self, files: Iterable[str]) -> Iterator[Sequence[str]]:
        """Yield the sentences of each document in training files."""
        for file in files:
            for document in read_documents(self.output, file):
                yield document.sentences

    def write_held_out(
        self, range: Range, passages: np.ndarray, split: HeldOutSplit, keep_repeats: bool
    ) -> RangeReport:
        """Write the validation files of a range unless already written; return the report.

        `passages` are positions (`PositionFiles`) of what stands in training, of all ranges.
        """
        form = "whole" if keep_repeats else "new"
        marker = f"{STAGING}/{range.number:05d}.validation-{form}.json"
        if (written := read_note(self.output, marker)) is not None:
            return RangeReport.from_plain(written)
        report = self._writer(split).write_held_out(
            range.number,
            self._source(range),
            self.held_out_documents(range.number),
            passages[passages[:, 0] == range.number, 1],
            keep_repeats,
        )
        write_note(self.output, marker, report.to_plain(), report.sha256)
        return report

    def _writer(self, split: HeldOutSplit) -> ShardWriter:
        return ShardWriter(self.config, split, self.output)

    def stage_tests(self) -> None:
        """Stage the hashes of the test texts, if any, for `read`."""
        config = self.config.decontaminate
        if config is not None:
            hashes = hash_test_texts(list_test_files(config), config.ngram).hashes
            self.output.write_bytes(_TESTS_FILE, hashes.tobytes())

    @cached_property
    def _tests(self) -> NgramHashes | None:
        config = self.config.decontaminate
        if config is None:
            return None
        hashes = np.frombuffer(self.output.read_bytes(_TESTS_FILE), np.uint64)
        return NgramHashes(hashes, config.ngram)

    def _source(self, range: Range) -> str:
        return source_names(self.config.sources)[range.source]
