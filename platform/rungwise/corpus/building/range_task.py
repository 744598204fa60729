"""Process one range: read it to staged files and report its keys, then write its shards, those of
the training split first.

Text stays in its range; only keys are compared with other ranges (stage.py). What a range gives
depends on nothing else but what the comparison says of it, and is a shared result
(core/stages/notes.py), which a stage that was killed, or of a corpus that has grown, finds again:

    of pieces of a range         text.arrow         all documents, uncompressed, in source order
                                 keys.arrow         their keys
    of the range in training     train.parquet      its shards, or train-{part}.parquet
                                 held-out.arrow     its held-out documents
                                 held-out.passages  hashes of their passages
                                 train.passages     those of the others
    of its held-out documents    validation.parquet its shards, likewise

The passes leave files for each other in `{output}/staging`:

    {range}.read.json             the rows of results that are a range
    {range}.train                 the result of writing it
    tests                         hashes of test texts
    filter                        the passages of all held-out documents, as bits
    duplicates-{partition}.arrow  rows of duplicate documents, a record batch per group of ranges
    repeats-{partition}.arrow     repeated paragraphs, likewise
    overlap-{partition}.arrow     held-out passages that stand in training, likewise

Every file appears whole or not at all.

Write the documents of one range to its files: leave out duplicates, split, leave out held-out
text that stands in training, count.

Documents keep their order. The files of a split are `{split}-{range}.parquet`, or several ending in
`-{part}` if the range holds more text than a shard may.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc  # type checkers miss functions made at run time
import pyarrow.parquet as pq

from rungwise.core.configuration.canonical import fingerprint
from rungwise.core.stages.notes import SharedResults
from rungwise.core.storage.folder import Folder, file_digest
from rungwise.corpus.building.held_out import HeldOutSplit, digest_split, split_documents
from rungwise.corpus.building.pieces import KEY_CHARACTERS
from rungwise.corpus.building.range_builder import (
    KEYS_SCHEMA,
    TEXT_SCHEMA,
    Piece,
    Range,
    RangeBuilder,
    read_range,
)
from rungwise.corpus.cleaning.decontamination import NgramHashes, hash_test_texts
from rungwise.corpus.config import CorpusConfig, DocumentRules, source_names
from rungwise.corpus.deduplication.documents import REASONS
from rungwise.corpus.deduplication.overlap import STANDS_IN_TRAINING, hash_passages, mark_sentences
from rungwise.corpus.deduplication.paragraphs import keep_sentences, remove_paragraphs
from rungwise.corpus.document import SCHEMA, RawDocument
from rungwise.corpus.files import list_test_files
from rungwise.corpus.summary import SPLITS, CorpusFile, RangeReport

TRAIN, VALIDATION = SPLITS

REPEATED = "duplicate paragraphs"
_ROWS_A_GROUP = 4096
_LABELS_OF_A_RANGE = 100


class TrainingShards(NamedTuple):
    """The report of writing training files, the held-out documents, and the hashes, (N,) uint64, of
    the passages of the others."""

    report: RangeReport
    held_out: pa.Table
    passages: np.ndarray


class ShardWriter:
    """Writes the files of a range in `output`, none for a split without documents.

    `split` says which documents are held out.
    """

    def __init__(self, rules: DocumentRules, split: HeldOutSplit, output: Folder) -> None:
        self._rules = rules
        self._split = split
        self._output = output

    def write_training(
        self, source: str, tables: Iterable[pa.Table], duplicates: np.ndarray, repeats: np.ndarray
    ) -> TrainingShards:
        """Write the training files of a range.

        `tables` come from `RangeBuilder`; `duplicates`, (N, 2), holds row and index of the reason,
        `repeats`, (N, 2), row and paragraph, both sorted.
        """
        report = RangeReport(source=source)
        files = self._files(TRAIN, report)
        parts, passages = [TEXT_SCHEMA.empty_table()], [np.empty(0, np.uint64)]
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
            training = table.filter(pa.array(~held_out))
            files.add(training)
            passages.append(hash_passages(training["sentences"].to_pylist()))
            parts.append(table.filter(pa.array(held_out)))
        files.close()
        return TrainingShards(report, pa.concat_tables(parts), np.concatenate(passages))

    def write_held_out(
        self, source: str, table: pa.Table, passages: np.ndarray, keep_repeats: bool
    ) -> RangeReport:
        """Write the validation files of a range; count the text that stands in training, and leave
        it out unless `keep_repeats`. `passages`, (N,), index `hash_passages`."""
        report = RangeReport(source=source)
        files = self._files(VALIDATION, report)
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

    def _files(self, split: str, report: RangeReport) -> "_SplitFiles":
        limit_bytes = int(self._rules.shard_megabytes * 1e6)
        return _SplitFiles(split, limit_bytes, self._output, report)


def _select_rows(positions: np.ndarray, begin: int, num_rows: int) -> np.ndarray:
    here = positions[np.searchsorted(positions[:, 0], begin) :]
    return here[: np.searchsorted(here[:, 0], begin + num_rows)] - [begin, 0]


class _SplitFiles:
    """Collects the documents of one split and writes a file whenever it is full."""

    def __init__(self, split: str, limit_bytes: int, output: Folder, report: RangeReport) -> None:
        self._split = split
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
                self._flush(f"{self._split}-{self._parts:02d}.parquet")

    def close(self) -> None:
        if self._tables:
            part = f"-{self._parts:02d}" if self._parts else ""
            self._flush(f"{self._split}{part}.parquet")
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
_READ_FILE, _TRAIN_FILE = STAGING + "/{:05d}.read.json", STAGING + "/{:05d}.train"
_TEXT_FILE, _KEYS_FILE = "text.arrow", "keys.arrow"
_HELD_OUT_FILE, _HELD_OUT_PASSAGES = "held-out.arrow", "held-out.passages"
_TRAIN_PASSAGES = "train.passages"


class _Rows(NamedTuple):
    """Rows of a result: the documents of pieces that follow each other."""

    result: str
    first: int
    end: int


@dataclass(frozen=True)
class RangeTask:
    """Reads and writes the ranges of an artifact; holds what they share."""

    config: CorpusConfig
    output: Folder
    shared: SharedResults

    def read(self, range: Range, documents: Iterable[RawDocument] | None = None) -> RangeReport:
        """Stage the documents of a range, those of its files unless given; read the pieces that
        have not been read; return the report."""
        pieces = range.pieces or (Piece(str(range.number), range.files),)
        results = {key: self.shared.read(key) for key in {piece.result for piece in pieces} - {""}}
        missing = [piece for piece in pieces if not _holds(results.get(piece.result), piece)]
        own = fingerprint([piece.key for piece in missing], KEY_CHARACTERS)
        if missing:
            results[own] = self.shared.read(own) or self._read_pieces(
                own, range, missing, documents
            )
        result_of = {piece.key: piece.result for piece in pieces}
        result_of |= {piece.key: own for piece in missing}
        report, rows = RangeReport(source=self._source(range)), list[_Rows]()
        for piece in pieces:
            key = result_of[piece.key]
            entry = results[key][piece.key]
            report.add(RangeReport.from_plain(entry["report"]))
            report.results[piece.key] = key
            if rows and (rows[-1].result, rows[-1].end) == (key, entry["first"]):
                rows[-1] = rows[-1]._replace(end=entry["end"])
            else:
                rows.append(_Rows(key, entry["first"], entry["end"]))
        self.output.write_bytes(_READ_FILE.format(range.number), json.dumps(rows).encode())
        return report

    def _read_pieces(
        self,
        result: str,
        range: Range,
        pieces: Sequence[Piece],
        documents: Iterable[RawDocument] | None,
    ) -> dict[str, Any]:
        """Read pieces to a result; return its content: rows and report of each piece."""
        content: dict[str, Any] = {}
        keys: list[pa.Table] = []
        share = self.config.sources[range.source].share

        def tables() -> Iterator[pa.Table]:
            first = 0
            for piece in pieces:
                builder = RangeBuilder(self.config, self._source(range), self._tests, share)
                own = replace(range, files=piece.files)
                source = read_range(own, self.config) if documents is None else documents
                yield from builder.tables(source)
                keys.append(builder.keys)
                end = first + builder.keys.num_rows
                report = builder.report.to_plain()
                content[piece.key] = {"first": first, "end": end, "report": report}
                first = end

        folder = self.shared[result]
        files = {_TEXT_FILE: write_tables(folder, _TEXT_FILE, TEXT_SCHEMA, tables())}
        files[_KEYS_FILE] = write_tables(folder, _KEYS_FILE, KEYS_SCHEMA, keys)
        self.shared.write(result, content, files)
        return content

    def _rows(self, number: int) -> list[_Rows]:
        content = self.output.read_bytes(_READ_FILE.format(number))
        return [_Rows(*rows) for rows in json.loads(content)]

    def keys(self, number: int) -> pa.Table:
        """Return the keys of a staged range."""
        tables = []
        for rows in self._rows(number):
            with open_tables(self.shared[rows.result], _KEYS_FILE) as reader:
                tables.append(reader.read_all()[rows.first : rows.end])
        return pa.concat_tables(tables).combine_chunks()

    def tables(self, number: int) -> Iterator[pa.Table]:
        """Yield the documents of a staged range."""
        for rows in self._rows(number):
            with open_tables(self.shared[rows.result], _TEXT_FILE) as reader:
                place = 0
                for number in range(reader.num_record_batches):
                    batch = reader.get_batch(number)
                    first, end = max(rows.first - place, 0), max(rows.end - place, 0)
                    place += batch.num_rows
                    if part := batch[first:end]:
                        yield pa.Table.from_batches([part])

    def document_id(self, number: int, row: int) -> str:
        for table in self.tables(number):
            if row < table.num_rows:
                return table["id"][row].as_py()
            row -= table.num_rows
        raise IndexError(row)

    def write_training(
        self, range: Range, duplicates: np.ndarray, repeats: np.ndarray, split: HeldOutSplit
    ) -> RangeReport:
        """Write the training files of a range, and stage its held-out documents; return the report.

        `duplicates` and `repeats` are positions (`PositionFiles`), also of other ranges.
        """
        duplicates, repeats = (
            positions[positions[:, 0] == range.number, 1:] for positions in (duplicates, repeats)
        )
        rules = self.config.model_dump(
            include={"minimum_characters", "held_out_fraction", "shard_megabytes"}
        )
        facts = {
            "pieces": [piece.key for piece in range.pieces] or range.number,
            "split": digest_split(self.keys(range.number), split),
            "positions": [_digest(duplicates), _digest(repeats)],
            "rules": rules,
        }
        result = fingerprint(facts, KEY_CHARACTERS)
        if (report := self.shared.read(result)) is None:
            report = self._write_training(result, range, duplicates, repeats, split)
        self.output.write_bytes(_TRAIN_FILE.format(range.number), result.encode())
        return self._place_shards(result, range, report)

    def _write_training(
        self,
        result: str,
        range: Range,
        duplicates: np.ndarray,
        repeats: np.ndarray,
        split: HeldOutSplit,
    ) -> dict[str, Any]:
        folder = self.shared[result]
        shards = ShardWriter(self.config, split, folder).write_training(
            self._source(range), self.tables(range.number), duplicates, repeats
        )
        held_out = write_tables(folder, _HELD_OUT_FILE, TEXT_SCHEMA, [shards.held_out])
        files = {**shards.report.sha256, _HELD_OUT_FILE: held_out}
        hashes = hash_passages(shards.held_out["sentences"].to_pylist())
        for name, passages in ((_HELD_OUT_PASSAGES, hashes), (_TRAIN_PASSAGES, shards.passages)):
            folder.write_bytes(name, passages.tobytes())
            files[name] = _digest(passages)
        self.shared.write(result, shards.report.to_plain(), files)
        return shards.report.to_plain()

    def _place_shards(self, result: str, range: Range, plain: dict[str, Any]) -> RangeReport:
        """Put the shards of a result into the artifact under the number of the range."""
        report = RangeReport.from_plain(plain)
        names = {
            file.file: file.file.replace(file.split, f"{file.split}-{range.number:05d}")
            for file in report.files
        }
        for file, name in names.items():
            self.output.link_file(self.shared[result], file, name)
        files = [file.model_copy(update={"file": names[file.file]}) for file in report.files]
        sha256 = {names[file]: digest for file, digest in report.sha256.items()}
        return replace(report, files=files, sha256=sha256, results={result: result})

    def _training(self, number: int) -> Folder:
        return self.shared[self.output.read_bytes(_TRAIN_FILE.format(number)).decode()]

    def held_out_passages(self, number: int) -> np.ndarray:
        """Return the hashes of the passages of a range's held-out documents, (N,) uint64."""
        return np.frombuffer(self._training(number).read_bytes(_HELD_OUT_PASSAGES), np.uint64)

    def training_passages(self, number: int) -> np.ndarray:
        """Return the hashes of the passages of a range's training documents, (N,) uint64."""
        return np.frombuffer(self._training(number).read_bytes(_TRAIN_PASSAGES), np.uint64)

    def write_held_out(
        self, range: Range, passages: np.ndarray, split: HeldOutSplit, keep_repeats: bool
    ) -> RangeReport:
        """Write the validation files of a range; return the report.

        `passages` are positions (`PositionFiles`) of what stands in training, of all ranges.
        """
        passages = passages[passages[:, 0] == range.number, 1]
        training = self._training(range.number)
        facts = [training.uri.rpartition("/")[2], _digest(passages), keep_repeats]
        result = fingerprint(facts, KEY_CHARACTERS)
        if (plain := self.shared.read(result)) is None:
            with open_tables(training, _HELD_OUT_FILE) as reader:
                documents = reader.read_all()
            report = ShardWriter(self.config, split, self.shared[result]).write_held_out(
                self._source(range), documents, passages, keep_repeats
            )
            plain = report.to_plain()
            self.shared.write(result, plain, report.sha256)
        return self._place_shards(result, range, plain)

    def stage_tests(self) -> str:
        """Stage the hashes of the test texts, if any, for `read`; return their digest."""
        config = self.config.decontaminate
        if config is None:
            return ""
        hashes = hash_test_texts(list_test_files(config), config.ngram).hashes
        self.output.write_bytes(_TESTS_FILE, hashes.tobytes())
        return _digest(hashes)

    @cached_property
    def _tests(self) -> NgramHashes | None:
        config = self.config.decontaminate
        if config is None:
            return None
        hashes = np.frombuffer(self.output.read_bytes(_TESTS_FILE), np.uint64)
        return NgramHashes(hashes, config.ngram)

    def _source(self, range: Range) -> str:
        return source_names(self.config.sources)[range.source]


def _digest(numbers: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(numbers).tobytes()).hexdigest()


def _holds(content: dict[str, Any] | None, piece: Piece) -> bool:
    """Whether a result holds a piece. What could not be read is named with the path of its file, at
    which another corpus may not have found it."""
    if content is None or piece.key not in content:
        return False
    skipped = content[piece.key]["report"]["skipped"]
    return {part["file"] for part in skipped} <= {file.uri for file in piece.files}
