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
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from rungwise.core.stages.notes import read_note, write_note
from rungwise.core.storage.folder import Folder, file_digest
from rungwise.corpus.building.held_out import HeldOutSplit
from rungwise.corpus.building.range_builder import KEYS_SCHEMA, TEXT_SCHEMA, RangeBuilder
from rungwise.corpus.building.ranges import Range, read_range
from rungwise.corpus.building.shards import ShardWriter
from rungwise.corpus.cleaning.decontamination import NgramHashes, hash_test_texts
from rungwise.corpus.config import CorpusConfig, source_names
from rungwise.corpus.deduplication.overlap import hash_passages
from rungwise.corpus.document import RawDocument, read_documents
from rungwise.corpus.files import list_test_files
from rungwise.corpus.summary import RangeReport

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
