"""Write the documents of one range to its files: leave out duplicates, split, leave out held-out
text that stands in training, count.

Documents keep their order. The files of a split are `{split}-{range}.parquet`, or several ending in
`-{part}` if the range holds more text than a shard may.
"""

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc  # type checkers miss functions made at run time
import pyarrow.parquet as pq

from rungwise.core.storage.folder import Folder, file_digest
from rungwise.corpus.building.held_out import HeldOutSplit, split_documents
from rungwise.corpus.building.range_builder import TEXT_SCHEMA
from rungwise.corpus.config import DocumentRules
from rungwise.corpus.deduplication.documents import REASONS
from rungwise.corpus.deduplication.overlap import STANDS_IN_TRAINING, mark_sentences
from rungwise.corpus.deduplication.paragraphs import keep_sentences, remove_paragraphs
from rungwise.corpus.document import SCHEMA
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
