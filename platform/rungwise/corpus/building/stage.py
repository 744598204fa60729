"""The corpus stage on Ray Data: read and clean; compare keys; write the documents that stay.

    ranges ── read ──> staged files ── keys ──> duplicates ── write ──> training files
                                                                   └──> held-out documents
    held-out documents ── passages ──> what stands in training ── write ──> validation files

Text stays where it was read to: keys alone (digests, names, signature bands, hashes of passages)
are shuffled by value into partitions. The driver holds a report per range, a filter of bits of at
most 256 MiB (overlap.py), and, of a few documents or of a few huge ones, their keys (held_out.py).
The result depends on the ranges, not on tasks or workers."""

import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rungwise.cluster import tasks
from rungwise.core.errors import DataError
from rungwise.core.stages.artifact import SharedResults, note_used
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.corpus import config as configs
from rungwise.corpus.building.held_out import choose_split, fraction_threshold
from rungwise.corpus.building.range_task import NO_POSITIONS, STAGING, PositionFiles, RangeTask
from rungwise.corpus.cleaning import duplicates, overlap
from rungwise.corpus.cleaning.duplicates import DocumentDecision
from rungwise.corpus.config import CorpusConfig, DocumentRules, Range
from rungwise.corpus.document import RawDocument
from rungwise.corpus.readers.streams import estimate_unpacked_bytes
from rungwise.corpus.summary import CORPUS, CorpusSummary, RangeReport, summarise_reports

_BAND_ROW_BYTES = 40  # of near-duplicate bands, without the signature
_FILTER_FILE = f"{STAGING}/filter"
# Bytes compared by one task. More bytes than the most partitions hold make them larger: a write
# task reads from every partition.
_PARTITION_BYTES = 128 << 20
_MOST_PARTITIONS = 256


@dataclass(frozen=True)
class DocumentComparison:
    """Compares the ranges of a corpus, of which a task reads a pack."""

    task: RangeTask
    packs: tasks.Packs[Range]

    def find_duplicates(self, num_documents: int) -> tuple[list[DocumentDecision], PositionFiles]:
        """Return the decisions on all partitions, without positions, and the files of these."""
        task, config = self.task, self.task.config  # not self, which holds all ranges
        moved_bytes = 2 * num_documents * duplicates.ROW_BYTES
        num_partitions = choose_partitions(moved_bytes)
        threshold = fraction_threshold(config.held_out_fraction)

        def rows(pack: list[Range]) -> Iterator[pa.Table]:
            for range in pack:
                yield duplicates.key_rows(task.keys(range), range.number, num_partitions)

        def decide(partition: pa.Table) -> tuple[np.ndarray, Any]:
            decision = duplicates.decide(partition, config.deduplicate, threshold)
            return decision.duplicates, decision[1:]

        keys = tasks.map_packs(self.packs, rows)
        if config.near_duplicates:
            keys = tasks.unite(keys, self._marks(num_documents, num_partitions))
        answers, files = self._decide("duplicates", keys, moved_bytes, decide)
        return [DocumentDecision(NO_POSITIONS, *answer) for answer in answers], files

    def find_overlap(self) -> PositionFiles:
        """Return the files of the held-out passages that stand in training."""
        task, ranges = self.task, [range for pack in self.packs for range in pack]
        passages = sum(map(task.count_held_out_passages, ranges))
        members = overlap.make_filter(passages)
        for range in ranges:
            overlap.add_hashes(members, task.held_out_passages(range))
        task.output.write_bytes(_FILTER_FILE, members.tobytes())
        moved_bytes = 2 * passages * overlap.ROW_BYTES
        num_partitions = choose_partitions(moved_bytes)

        def rows(pack: list[Range]) -> Iterator[pa.Table]:
            members = np.frombuffer(task.output.read_bytes(_FILTER_FILE), np.uint8)
            for range in pack:
                hashes = overlap.select_common(task.training_passages(range), members)
                yield overlap.passage_rows(hashes, overlap.TRAINING, num_partitions)
                hashes = task.held_out_passages(range)
                yield overlap.passage_rows(hashes, range.number, num_partitions)

        def decide(partition: pa.Table) -> tuple[np.ndarray, Any]:
            return overlap.find_passages(partition), None

        return self._decide("overlap", tasks.map_packs(self.packs, rows), moved_bytes, decide)[1]

    def _decide(
        self,
        name: str,
        keys: tasks.Rows,
        moved_bytes: float,
        decide: Callable[[pa.Table], tuple[np.ndarray, Any]],
    ) -> tuple[list[Any], PositionFiles]:
        """Apply `decide` to each partition of `keys`: return its answers, and the files of the
        positions."""
        num_partitions = choose_partitions(moved_bytes)
        files = PositionFiles(self.task.output, name, num_partitions)

        def write(partition: pa.Table) -> pa.Table:
            # Empty if there are no keys at all.
            numbers = partition["partition"].to_pylist()[:1]
            answers = []
            for number in numbers:
                positions, answer = decide(partition)
                files.write(number, positions)
                answers.append(json.dumps(answer))
            return pa.table(
                {"partition": pa.array(numbers, pa.int64()), "answer": pa.array(answers, "str")}
            )

        groups = tasks.group_parts(keys, "partition", num_partitions, moved_bytes, write)
        rows = list(tasks.list_rows(groups))
        for empty in set(range(num_partitions)) - {row["partition"] for row in rows}:
            files.write(empty, NO_POSITIONS)
        return [json.loads(row["answer"]) for row in rows], files

    def _marks(self, num_documents: int, num_key_partitions: int) -> tasks.Rows:
        """Return rows that mark the near-duplicates among all documents."""
        task, row_bytes = self.task, duplicates.PERMUTATIONS + _BAND_ROW_BYTES
        moved_bytes = num_documents * duplicates.BANDS * row_bytes
        num_partitions = choose_partitions(moved_bytes)

        def rows(pack: list[Range]) -> Iterator[pa.Table]:
            for range in pack:
                yield duplicates.band_rows(task.keys(range), range.number, num_partitions)

        def mark(partition: pa.Table) -> pa.Table:
            return duplicates.mark_rows(duplicates.mark_duplicates(partition), num_key_partitions)

        bands = tasks.map_packs(self.packs, rows)
        return tasks.group_parts(bands, "partition", num_partitions, moved_bytes, mark)


def choose_partitions(moved_bytes: float) -> int:
    """Return the number of partitions for so many bytes of rows."""
    return min(max(1, math.ceil(moved_bytes / _PARTITION_BYTES)), _MOST_PARTITIONS)


def build_corpus(
    config: CorpusConfig, inputs: dict[str, Any], output: Folder, context: Context
) -> CorpusSummary:
    """Build the corpus of `config` in `output`. Raises DataError or ConfigError for faults that the
    user can mend, wherever on the cluster."""
    task = RangeTask(config, output, SharedResults.beside(output))
    ranges = configs.name_ranges(configs.list_ranges(config), config, CORPUS.version)
    packs = tasks.pack_items(ranges, [_text_bytes(range) for range in ranges])
    by_number: dict[int, RangeReport] = {}
    documents = num_bytes = 0
    for number, report in _run(packs, lambda pack: map(task.read, pack)):
        by_number[number] = report
        context.report.progress(len(by_number), 3 * len(ranges))
        documents += report.documents
        num_bytes += _text_bytes(ranges[number])
        metrics = {"read/documents": documents, "read/bytes": num_bytes}
        context.report.metrics(metrics, step=len(by_number))
    reports = [by_number[range.number] for range in ranges]
    _refuse_damage(config, ranges, reports)
    if not documents:
        _refuse_too_few(config, summarise_reports(reports))

    def progress(done: int) -> None:
        context.report.progress(len(ranges) + done, 3 * len(ranges))

    reports = write_documents(task, packs, reports, progress)
    summary = summarise_reports(reports, config.held_out_fraction)
    _refuse_too_few(config, summary)
    note_used(output, {key: key for report in reports for key in report.results})
    output.remove(STAGING)
    return summary


def write_documents(
    task: RangeTask,
    packs: tasks.Packs[Range],
    reports: Sequence[RangeReport],
    progress: Callable[[int], None] = lambda done: None,
) -> list[RangeReport]:
    """Compare the documents of ranges that have been read, and write those that stay. `reports` are
    those of reading, to which those of writing are added; `progress` is told how many files were
    written."""
    config, ranges = task.config, {range.number: range for pack in packs for range in pack}
    comparison = DocumentComparison(task, packs)
    decisions, copies = comparison.find_duplicates(sum(one.documents for one in reports))
    for decision in decisions:
        if decision.same_name:
            _refuse_same_name(task, ranges[decision.same_name[0]], decision.same_name[1])

    def read_keys() -> pa.Table:
        positions = copies.read(list(ranges.values()))
        tables = []
        for range in ranges.values():
            tables.append(task.keys(range).select(["split", "bytes", "can_be_cut"]))
            first, end = np.searchsorted(positions[:, 0], [range.number, range.number + 1])
            stays = np.ones(tables[-1].num_rows, bool)
            stays[positions[first:end, 1]] = False
            tables[-1] = tables[-1].filter(pa.array(stays))
        return pa.concat_tables(tables)

    split = choose_split(config.held_out_fraction, decisions, read_keys)

    def write(
        files: PositionFiles, work: Callable[[Range, np.ndarray], RangeReport], done: int
    ) -> dict[int, RangeReport]:
        def write_pack(pack: list[Range]) -> Iterator[RangeReport]:
            positions = files.read(pack)
            return (work(range, positions) for range in pack)

        written: dict[int, RangeReport] = {}
        for number, report in _run(packs, write_pack):
            written[number] = report
            progress(done + len(written))
        return written

    training = write(copies, functools.partial(task.write_training, split=split), 0)
    repeats = comparison.find_overlap()

    def write_held_out(keep_repeats: bool) -> dict[int, RangeReport]:
        work = functools.partial(task.write_held_out, keep_repeats=keep_repeats)
        return write(repeats, work, len(ranges))

    held_out = write_held_out(config.overlap == "keep")
    total = RangeReport("")
    for report in held_out.values():
        total.add(report)
    if not total.repeats_stay and total.repeated_bytes > sum(file.bytes for file in total.files):
        held_out = write_held_out(keep_repeats=True)
        files = {file for report in held_out.values() for file in report.sha256}
        for file in total.sha256.keys() - files:
            task.output.remove(file)
    written = [one for number in sorted(ranges) for one in (training[number], held_out[number])]
    return [*reports, *written]


def write_corpus(
    ranges: Iterable[Iterable[RawDocument]], rules: DocumentRules, source: str, output: Folder
) -> CorpusSummary:
    """Write a corpus of documents at hand, each range, all of one source, to its own files in
    `output`, in this process. Raises DataError if two documents have the same id."""
    config = CorpusConfig(sources=(configs.TextSource(name=source, paths=("-",)),), **dict(rules))
    task = RangeTask(config, output, SharedResults(output / STAGING))
    reports, pack = [], []
    for number, documents in enumerate(ranges):
        pack.append(Range(number, 0, (), key=str(number)))
        reports.append(task.read(pack[-1], documents))
    reports = write_documents(task, tasks.Packs([pack], small=True), reports)
    output.remove(STAGING)
    return summarise_reports(reports, rules.held_out_fraction)


def _run(
    packs: tasks.Packs[Range], work: Callable[[list[Range]], Iterator[RangeReport]]
) -> Iterator[tuple[int, RangeReport]]:
    """Run `work` on each pack as a task; yield the number and the report of each range."""

    def reports(pack: list[Range]) -> Iterator[tuple[int, dict[str, Any]]]:
        for range, report in zip(pack, work(pack), strict=True):
            yield range.number, report.to_plain()

    for number, report in tasks.run_tasks(packs, reports):
        yield number, RangeReport.from_plain(report)


def _text_bytes(range: Range) -> float:
    """Return the bytes of text that take as long as this range."""
    return (
        range.num_bytes if range.end is not None else sum(map(estimate_unpacked_bytes, range.files))
    )


def _refuse_damage(config: CorpusConfig, ranges: list[Range], reports: list[RangeReport]) -> None:
    skipped = sum(report.skipped_bytes for report in reports)
    total = sum(range.num_bytes for range in ranges)
    if skipped > config.skip_limit * total:
        first = next(part for report in reports for part in report.skipped)
        count = sum(report.skipped_parts for report in reports)
        parts = "one part" if count == 1 else f"{count:,} parts"
        raise DataError(
            f"{parts} of the files cannot be read, {skipped / total:.2%} of their bytes, more than "
            f"the {config.skip_limit:.2%} of corpus.skip_limit; the first is {first}, or raise the "
            "limit"
        )


def _refuse_same_name(task: RangeTask, range: Range, row: int) -> None:
    source = task.config.sources[range.source]
    name = configs.source_names(task.config.sources)[range.source]
    id_ = pa.concat_tables(task.tables(range))["id"][row].as_py()
    field = "id_field" if getattr(source, "id_field", None) else "paths"
    change = f": change {configs.source_key(range.source, field)}" if range.files else ""
    raise DataError(f"two documents of {name} have the id {id_!r}; ids must differ{change}")


def _refuse_too_few(config: CorpusConfig, summary: CorpusSummary) -> None:
    documents = summary.documents
    if not summary.files:
        reasons = ", ".join(f"{count} {reason}" for reason, count in summary.dropped.items())
        for part in summary.skipped[:1]:
            reasons += f" ({part.file}: {part.detail})"
        raise DataError(
            f"no document long enough: found {reasons or 'nothing'}; lower "
            f"corpus.minimum_characters (now {config.minimum_characters}) or add to corpus.sources"
        )
    if not documents.train or documents.total == 1:
        raise DataError(
            f"too few documents: {documents.train} to train on and {documents.validation} held "
            "out, and it takes one of each, or two for instances of kind masked_pairs; add some, "
            "cut them by corpus.sources.N.documents (blank_line or line), or lower "
            f"corpus.held_out_fraction (now {config.held_out_fraction})"
        )
