"""Process one range: read it to staged files, then write its shards, of the training split first.

What a range gives depends on nothing but its text and what the comparison with other ranges
(stage.py) says of it, and is a shared result (core/stages/artifact.py), which a stage that was
killed, or of a corpus that has grown, finds again. In the artifact, the number of the range follows
the split in a shard's name."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc  # type checkers miss functions made at run time
import pyarrow.parquet as pq

from rungwise.core.configuration.canonical import fingerprint
from rungwise.core.stages.artifact import SharedResults
from rungwise.core.storage.folder import Folder, file_digest
from rungwise.corpus.building.held_out import HeldOutSplit, split_documents
from rungwise.corpus.building.range_builder import (
    KEYS_SCHEMA,
    TEXT_SCHEMA,
    RangeBuilder,
    read_range,
)
from rungwise.corpus.cleaning import overlap
from rungwise.corpus.cleaning.duplicates import REASONS
from rungwise.corpus.config import KEY_CHARACTERS, CorpusConfig, DocumentRules, Range, source_names
from rungwise.corpus.document import SCHEMA, RawDocument
from rungwise.corpus.summary import SPLITS, CorpusFile, RangeReport

TRAIN, VALIDATION = SPLITS
_ROWS_A_GROUP, _POSITIONS_A_GROUP = 4096, 1 << 16
_LABELS_OF_A_RANGE = 100

STAGING = "staging"
NO_POSITIONS = np.empty((0, 3), np.int64)
# The index is that of the reason of a duplicate, or 0.
_POSITIONS = pa.schema([("range", pa.int32()), ("row", pa.int32()), ("index", pa.int32())])
_TRAIN_FILE = STAGING + "/{:05d}.train"  # the key of the result
_TEXT_FILE, _KEYS_FILE, _PASSAGES_FILE = "text.arrow", "keys.arrow", "passages.arrow"
_HELD_OUT_FILE, _HELD_OUT_PASSAGES = "held-out.arrow", "held-out.passages"
_TRAIN_ROWS, _CUT_PASSAGES = "train.rows", "cut.passages"


class TrainingShards(NamedTuple):
    """The report of the training files of a range; the held-out documents; which of all its
    documents, (N,), are training documents as they are; and the hashes of the passages of what is
    left of the others for training, uint64."""

    report: RangeReport
    held_out: pa.Table
    is_training: np.ndarray
    cut_passages: np.ndarray


def write_training_shards(
    source: str,
    tables: Iterable[pa.Table],
    duplicates: np.ndarray,
    rules: DocumentRules,
    split: HeldOutSplit,
    output: Folder,
) -> TrainingShards:
    """Write the training files of a range, none if it has no such documents. `tables` come from
    `RangeBuilder`; `duplicates`, (N, 2), holds row and index of the reason, sorted; `split` says
    which documents are held out."""
    files = _SplitFiles(TRAIN, source, rules, output)
    parts = [TEXT_SCHEMA.empty_table()]
    masks, cut_passages = [np.empty(0, bool)], [np.empty(0, np.uint64)]
    begin = 0
    for table in tables:
        here = duplicates[np.searchsorted(duplicates[:, 0], begin) :]
        here = here[: np.searchsorted(here[:, 0], begin + table.num_rows)] - [begin, 0]
        stays = np.ones(table.num_rows, bool)
        stays[here[:, 0]] = False
        for row, reason in here.tolist():
            text = table["sentences"][row].as_py()
            files.report.drop(REASONS[reason], table["id"][row].as_py(), text)
        begin += table.num_rows
        table, held_out, row = split_documents(table.filter(pa.array(stays)), split, rules)
        files.add(table.filter(pa.array(~held_out)))
        parts.append(table.filter(pa.array(held_out)))
        masks.append(np.zeros(len(stays), bool))
        masks[-1][np.flatnonzero(stays)[row[~held_out & (row >= 0)]]] = True
        cut = table.filter(pa.array(~held_out & (row < 0)))
        cut_passages.append(overlap.hash_passages(cut["sentences"].to_pylist()).hashes)
    held_out_rows, is_training = pa.concat_tables(parts), np.concatenate(masks)
    return TrainingShards(files.close(), held_out_rows, is_training, np.concatenate(cut_passages))


class _SplitFiles:
    """Collects the documents of one split and writes a file whenever it is full."""

    def __init__(self, split: str, source: str, rules: DocumentRules, output: Folder) -> None:
        self._split = split
        self._limit_bytes = int(rules.shard_megabytes * 1e6)
        self._output = output
        self.report = RangeReport(source)
        self._tables: list[pa.Table] = []
        self._bytes = self._parts = 0

    def add(self, table: pa.Table) -> None:
        for entry in pc.value_counts(table["label"]).to_pylist():  # pyright: ignore[reportAttributeAccessIssue]
            self.report.labels[entry["values"]] += entry["counts"]
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
                self._flush(f"{self._split}-{self._parts:02d}.parquet")

    def close(self) -> RangeReport:
        """Write what is left; return the report of all."""
        if self._tables:
            part = f"-{self._parts:02d}" if self._parts else ""
            self._flush(f"{self._split}{part}.parquet")
        self.report.labels = Counter(dict(self.report.labels.most_common(_LABELS_OF_A_RANGE)))
        return self.report

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
            self.report.sha256[name] = file_digest(path)
        file = CorpusFile(file=name, split=self._split, source=self.report.source, **_counts(table))
        self.report.files.append(file)


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
    }


@dataclass(frozen=True)
class PositionFiles:
    """Positions in the ranges, (N, 3) range, row and index: a file per partition that found them,
    sorted, of which a task reads only the row groups of its ranges."""

    output: Folder
    name: str
    num_partitions: int

    def write(self, partition: int, positions: np.ndarray) -> None:
        columns = [pa.array(column, pa.int32()) for column in positions.T]
        with self.output.staged(self._file(partition)) as path:
            table = pa.Table.from_arrays(columns, schema=_POSITIONS)
            pq.write_table(table, path, row_group_size=_POSITIONS_A_GROUP)

    def read(self, ranges: Sequence[Range]) -> np.ndarray:
        """Return the positions in these ranges, sorted."""
        filters = [("range", "in", [one.number for one in ranges])]
        parts = [NO_POSITIONS]
        for partition in range(self.num_partitions):
            with self.output.open(self._file(partition)) as stream:
                table = pq.read_table(stream, filters=filters, use_threads=False)
            parts.append(np.column_stack([column.to_numpy() for column in table.columns]))
        positions = np.concatenate(parts)
        return positions[np.lexsort(positions.T[::-1])]

    def _file(self, partition: int) -> str:
        return f"{STAGING}/{self.name}-{partition:05d}.parquet"


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


def _read_tables(folder: Folder, name: str) -> Iterator[pa.Table]:
    """Yield the rows of a file of `write_tables`, in parts."""
    with open_tables(folder, name) as reader:
        for number in range(reader.num_record_batches):
            yield pa.Table.from_batches([reader.get_batch(number)])


@dataclass(frozen=True)
class RangeTask:
    """Reads and writes the ranges of an artifact; holds what they share."""

    config: CorpusConfig
    output: Folder
    shared: SharedResults

    def read(self, range: Range, documents: Iterable[RawDocument] | None = None) -> RangeReport:
        """Read the documents of a range, those of its files unless given, if nobody has; return the
        report."""
        if (plain := self.shared.read(range.key)) is None:
            share = self.config.sources[range.source].share
            builder = RangeBuilder(self.config, self._source(range), share)
            if documents is None:
                documents = read_range(range, self.config)
            folder, tables = self.shared[range.key], builder.tables(documents)
            files = {_TEXT_FILE: write_tables(folder, _TEXT_FILE, TEXT_SCHEMA, tables)}
            # Apart from reading, which holds a large document several times.
            passages = map(overlap.tabulate_passages, _read_tables(folder, _TEXT_FILE))
            schema = overlap.PASSAGES_SCHEMA
            files[_PASSAGES_FILE] = write_tables(folder, _PASSAGES_FILE, schema, passages)
            files[_KEYS_FILE] = write_tables(folder, _KEYS_FILE, KEYS_SCHEMA, [builder.keys])
            plain = builder.report.to_plain()
            self.shared.write(range.key, plain, files)
        return replace(RangeReport.from_plain(plain), results=[range.key])

    def keys(self, range: Range) -> pa.Table:
        """Return the keys of a range that was read."""
        with open_tables(self.shared[range.key], _KEYS_FILE) as reader:
            return reader.read_all().combine_chunks()

    def tables(self, range: Range, file: str = _TEXT_FILE) -> Iterator[pa.Table]:
        """Yield the documents of a range that was read, or what another file holds for each of
        them."""
        return _read_tables(self.shared[range.key], file)

    def write_training(
        self, range: Range, duplicates: np.ndarray, split: HeldOutSplit
    ) -> RangeReport:
        """Write the training files of a range, and stage its held-out documents; return the report.
        `duplicates` are positions (`PositionFiles`), also of other ranges."""
        duplicates = duplicates[duplicates[:, 0] == range.number, 1:]
        rules = ("minimum_characters", "held_out_fraction", "shard_megabytes")
        facts = {
            "text": range.key,
            "split": repr(split),
            "duplicates": _digest(duplicates),
            "rules": {name: getattr(self.config, name) for name in rules},
        }
        result = fingerprint(facts, KEY_CHARACTERS)
        if (report := self.shared.read(result)) is None:
            folder, source = self.shared[result], self._source(range)
            tables = self.tables(range)
            shards = write_training_shards(source, tables, duplicates, self.config, split, folder)
            held_out = write_tables(folder, _HELD_OUT_FILE, TEXT_SCHEMA, [shards.held_out])
            files = {_HELD_OUT_FILE: held_out}
            passages = overlap.hash_passages(shards.held_out["sentences"].to_pylist()).hashes
            for name, array in (
                (_HELD_OUT_PASSAGES, passages),
                (_TRAIN_ROWS, shards.is_training),
                (_CUT_PASSAGES, shards.cut_passages),
            ):
                folder.write_bytes(name, array.tobytes())
                files[name] = _digest(array)
            report = shards.report.to_plain()
            self.shared.write(result, report, files | shards.report.sha256)
        self.output.write_bytes(_TRAIN_FILE.format(range.number), result.encode(), durable=False)
        return self._place_shards(result, range, report)

    def _place_shards(self, result: str, range: Range, plain: dict[str, Any]) -> RangeReport:
        """Put the shards of a result into the artifact under the number of the range."""
        report = RangeReport.from_plain(plain)
        files, sha256 = [], {}
        for file in report.files:
            name = file.file.replace(file.split, f"{file.split}-{range.number:05d}")
            self.output.link_file(self.shared[result], file.file, name)
            files.append(file.model_copy(update={"file": name}))
            sha256[name] = report.sha256[file.file]
        return replace(report, files=files, sha256=sha256, results=[result])

    def _training(self, range: Range) -> Folder:
        return self.shared[self.output.read_bytes(_TRAIN_FILE.format(range.number)).decode()]

    def held_out_passages(self, range: Range) -> np.ndarray:
        """Return the hashes of the passages of a range's held-out documents, (N,) uint64."""
        return np.frombuffer(self._training(range).read_bytes(_HELD_OUT_PASSAGES), np.uint64)

    def count_held_out_passages(self, range: Range) -> int:
        """Return the number of hashes in `held_out_passages`, which are not read."""
        return self._training(range).size(_HELD_OUT_PASSAGES) // np.uint64().itemsize

    def training_passages(self, range: Range) -> Iterator[tuple[overlap.Passages, np.ndarray]]:
        """Yield the passages of a range's documents in parts, and which of these documents, (D,),
        are training documents."""
        training = self._training(range)
        is_training, begin = np.frombuffer(training.read_bytes(_TRAIN_ROWS), bool), 0
        for table in self.tables(range, _PASSAGES_FILE):
            yield overlap.read_passages(table), is_training[begin : begin + table.num_rows]
            begin += table.num_rows
        cut = np.frombuffer(training.read_bytes(_CUT_PASSAGES), np.uint64)
        yield overlap.Passages(cut, np.array([len(cut)])), np.ones(1, bool)

    def write_held_out(self, range: Range, passages: np.ndarray, keep_repeats: bool) -> RangeReport:
        """Write the validation files of a range; return the report. `passages` are positions
        (`PositionFiles`) of what stands in training, of all ranges."""
        passages = passages[passages[:, 0] == range.number, 1]
        training = self._training(range)
        facts = [training.uri.rpartition("/")[2], _digest(passages), keep_repeats]
        result = fingerprint(facts, KEY_CHARACTERS)
        if (plain := self.shared.read(result)) is None:
            with open_tables(training, _HELD_OUT_FILE) as reader:
                table = reader.read_all()
            files = _SplitFiles(VALIDATION, self._source(range), self.config, self.shared[result])
            if len(passages):
                table = self._mark_repeats(table, passages, files.report, keep_repeats)
            files.add(table)
            report = files.close()
            plain = report.to_plain()
            self.shared.write(result, plain, report.sha256)
        return self._place_shards(result, range, plain)

    def _mark_repeats(
        self, table: pa.Table, passages: np.ndarray, report: RangeReport, keep_repeats: bool
    ) -> pa.Table:
        """Count the held-out text that stands in training; leave it out unless `keep_repeats`."""
        marks = overlap.mark_sentences(table, passages)
        shorter, too_short = overlap.keep_sentences(table, ~marks, self.config.minimum_characters)
        stays = np.ones(table.num_rows, bool)
        stays[too_short] = False
        new = shorter.filter(pa.array(stays))
        old_bytes, new_bytes = (sum(one["bytes"].to_pylist()) for one in (table, new))
        report.repeated_bytes = old_bytes - new_bytes
        report.repeats_stay = keep_repeats
        if keep_repeats:
            return table
        for row in too_short.tolist():
            text = table["sentences"][row].as_py()
            report.drop(overlap.STANDS_IN_TRAINING, table["id"][row].as_py(), text)
        return new

    def _source(self, range: Range) -> str:
        return source_names(self.config.sources)[range.source]


def _digest(numbers: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(numbers).tobytes()).hexdigest()
