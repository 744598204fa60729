"""The corpus stage on Ray Data: read and clean; compare keys; write the documents that stay.

    ranges ── read ──> staged files ── keys ──> duplicates ── write ──> training files
                                                                   └──> held-out documents
    held-out documents ── passages ──> what stands in training ── write ──> validation files

Each range (range_builder.py) is read, and later written, by one task; a task takes several ranges.
Text stays where it was read to. The driver holds a report per range, a filter of bits for passages
of at most 256 MiB (overlap.py), and nothing else that grows with documents.

The result depends on the ranges, which follow from the config and the files, not on tasks or
workers. A killed stage resumes with the remaining ranges (range_task.py).

Compare the documents of all ranges on Ray Data: keys are shuffled by value into partitions.

Digests, names, signature bands, digests of paragraphs and hashes of held-out passages are rows of
at most fifty bytes. One task decides each partition and writes the positions of what it found, for
the tasks that write shards.
"""

import json
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rungwise.cluster.tasks import (
    Packs,
    Rows,
    group_parts,
    is_small,
    list_rows,
    map_packs,
    pack_items,
    run_tasks,
    unite,
)
from rungwise.core.errors import DataError
from rungwise.core.stages.context import Context
from rungwise.core.stages.notes import SharedResults, note_used, read_note, write_note
from rungwise.core.storage.folder import Folder
from rungwise.core.storage.object_store import is_remote
from rungwise.corpus.building.held_out import (
    Bucket,
    add_buckets,
    choose_split,
    count_buckets,
    fraction_threshold,
)
from rungwise.corpus.building.pieces import name_pieces
from rungwise.corpus.building.range_builder import Range, list_ranges
from rungwise.corpus.building.range_task import NO_POSITIONS, STAGING, PositionFiles, RangeTask
from rungwise.corpus.config import CorpusConfig, source_key, source_names
from rungwise.corpus.deduplication import documents, near_duplicates, overlap, paragraphs
from rungwise.corpus.deduplication.documents import DocumentDecision, Position
from rungwise.corpus.deduplication.near_duplicates import NearDuplicateConfig
from rungwise.corpus.readers.streams import estimate_unpacked_bytes
from rungwise.corpus.summary import CorpusSummary, RangeReport, repeats_most, summarise_reports

# A row of near-duplicate bands, without its signature.
_BAND_ROW_BYTES = 40
_FILTER_FILE = f"{STAGING}/filter"
# Text of a word with its blank, or of a character of Chinese and its like: each begins a passage.
_BYTES_A_PASSAGE = 3
# Bytes compared by one task. More bytes than the most partitions hold make them larger: a write
# task reads from every partition.
_PARTITION_BYTES = 64 << 20
_MOST_PARTITIONS = 256


@dataclass(frozen=True)
class DocumentComparison:
    """Compares the ranges of a corpus. `packs` are the numbers of the ranges that a task reads,
    `group_of`, (ranges,), the group of each range, equal within a pack."""

    task: RangeTask
    packs: Packs[int]
    group_of: np.ndarray

    def find_duplicates(self, num_documents: int) -> tuple[list[DocumentDecision], PositionFiles]:
        """Return the decisions on all partitions, without positions, and the files of these."""
        config = self.task.config
        moved_bytes = 2 * num_documents * documents.ROW_BYTES
        num_partitions = choose_partitions(moved_bytes)
        threshold = fraction_threshold(config.held_out_fraction)

        def rows(numbers: list[int]) -> Iterator[pa.Table]:
            for number in numbers:
                yield documents.key_rows(self.task.keys(number), number, num_partitions)

        def decide(partition: pa.Table) -> tuple[np.ndarray, Any]:
            decision = documents.decide(partition, config.deduplicate, threshold)
            return decision.duplicates, decision[1:]

        keys = map_packs(self.packs, rows)
        if config.near_duplicates is not None:
            marks = self._marks(config.near_duplicates, num_documents, num_partitions)
            keys = unite(keys, marks)
        answers, files = self._decide("duplicates", keys, moved_bytes, decide)
        decisions: list[DocumentDecision] = []
        for count, size, held_out, smallest, same_name in answers:
            pair = same_name and (Position(*same_name[0]), Position(*same_name[1]))
            decisions.append(DocumentDecision(NO_POSITIONS, count, size, held_out, smallest, pair))
        return decisions, files

    def find_repeats(self, text_bytes: float, duplicates: PositionFiles) -> PositionFiles:
        """Return the files of the repeated paragraphs in the documents that stay."""
        config = self.task.config.duplicate_paragraphs
        if config is None:
            return PositionFiles(self.task.output, "repeats", 0, self.group_of)
        # An upper bound: a paragraph has at least so many bytes, a character of Chinese, which
        # counts as five, three.
        moved_bytes = text_bytes / (0.6 * config.minimum_characters) * paragraphs.ROW_BYTES
        num_partitions = choose_partitions(moved_bytes)

        def rows(numbers: list[int]) -> Iterator[pa.Table]:
            positions = duplicates.read(int(self.group_of[numbers[0]]))
            for number in numbers:
                yield paragraphs.paragraph_rows(
                    self.task.tables(number),
                    positions[positions[:, 0] == number, 1],
                    number,
                    config.minimum_characters,
                    num_partitions,
                )

        def decide(partition: pa.Table) -> tuple[np.ndarray, Any]:
            return paragraphs.find_repeats(partition, config.maximum_occurrences), None

        return self._decide("repeats", map_packs(self.packs, rows), moved_bytes, decide)[1]

    def find_overlap(self, numbers: Iterable[int], num_bytes: int) -> PositionFiles:
        """Return the files of the held-out passages that stand in training.

        `numbers` are those of all ranges; `num_bytes` of text are held out.
        """
        passages = num_bytes // _BYTES_A_PASSAGE
        members = overlap.HashFilter.for_hashes(passages)
        for number in numbers:
            members.add(self.task.held_out_passages(number))
        self.task.output.write_bytes(_FILTER_FILE, members.to_bytes())
        moved_bytes = 2 * passages * overlap.ROW_BYTES
        num_partitions = choose_partitions(moved_bytes)

        def rows(numbers: list[int]) -> Iterator[pa.Table]:
            members = overlap.HashFilter.from_bytes(self.task.output.read_bytes(_FILTER_FILE))
            for number in numbers:
                hashes = overlap.select_common(self.task.training_passages(number), members)
                yield overlap.passage_rows(hashes, overlap.TRAINING, num_partitions)
                hashes = self.task.held_out_passages(number)
                yield overlap.passage_rows(hashes, number, num_partitions)

        def decide(partition: pa.Table) -> tuple[np.ndarray, Any]:
            return overlap.find_passages(partition), None

        return self._decide("overlap", map_packs(self.packs, rows), moved_bytes, decide)[1]

    def _decide(
        self,
        name: str,
        keys: Rows,
        moved_bytes: float,
        decide: Callable[[pa.Table], tuple[np.ndarray, Any]],
    ) -> tuple[list[Any], PositionFiles]:
        """Apply `decide` to each partition of `keys`: return its answers, and the files of the
        positions."""
        num_partitions = choose_partitions(moved_bytes)
        files = PositionFiles(self.task.output, name, num_partitions, self.group_of)

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

        groups = group_parts(keys, "partition", num_partitions, moved_bytes, write)
        rows = list(list_rows(groups))
        files.write_empty(set(range(num_partitions)) - {row["partition"] for row in rows})
        return [json.loads(row["answer"]) for row in rows], files

    def _marks(
        self, config: NearDuplicateConfig, num_documents: int, num_key_partitions: int
    ) -> Rows:
        """Return rows that mark the near-duplicates among all documents."""
        row_bytes = config.permutations + _BAND_ROW_BYTES
        moved_bytes = num_documents * near_duplicates.choose_banding(config).bands * row_bytes
        num_partitions = choose_partitions(moved_bytes)

        def rows(numbers: list[int]) -> Iterator[pa.Table]:
            for number in numbers:
                yield near_duplicates.band_rows(self.task.keys(number), number, num_partitions)

        def mark(partition: pa.Table) -> pa.Table:
            marks = near_duplicates.mark_duplicates(partition, config.similarity)
            return documents.mark_rows(marks, num_key_partitions)

        bands = map_packs(self.packs, rows)
        return group_parts(bands, "partition", num_partitions, moved_bytes, mark)


def choose_partitions(moved_bytes: float) -> int:
    """Return the number of partitions for so many bytes of rows."""
    return min(max(1, math.ceil(moved_bytes / _PARTITION_BYTES)), _MOST_PARTITIONS)


# The summary of a stage killed between its last file and its record.
_SUMMARY_FILE = ".summary.json"
# A task reads, from each file of positions, those of its group and a footer of a few hundred bytes
# per group: with a group per task, a terabyte of text would have a terabyte of footers.
_MOST_GROUPS = 64
# Work on a range that was read before, as a share of all.
_REUSED = 0.05


def build_corpus(
    config: CorpusConfig, inputs: dict[str, Any], output: Folder, context: Context
) -> CorpusSummary:
    """Build the corpus of `config` in `output`.

    Raises DataError or ConfigError for faults that the user can mend, wherever on the cluster.
    """
    stored = read_note(output, _SUMMARY_FILE)
    if stored is not None:
        summary = CorpusSummary(**stored["summary"], sha256=stored["sha256"])
    else:
        summary = _build(config, output, SharedResults.beside(output), context)
        stored = {"summary": summary.model_dump(mode="json"), "sha256": summary.sha256}
        write_note(output, _SUMMARY_FILE, stored, summary.sha256)
    output.remove(STAGING)
    return summary


def refuse_small(config: CorpusConfig) -> None:
    """Raise what `build_corpus` would raise of so little text that it takes a moment to build."""
    if any(is_remote(uri) for source in config.sources for uri in getattr(source, "paths", ())):
        return
    if is_small(sum(map(_text_bytes, list_ranges(config)))):
        with tempfile.TemporaryDirectory(prefix="rungwise-corpus-") as folder:
            output = Folder.at(folder)
            _build(config, output / "corpus", SharedResults(output), Context())


def _build(
    config: CorpusConfig, output: Folder, shared: SharedResults, context: Context
) -> CorpusSummary:
    task = RangeTask(config, output, shared)
    ranges = name_pieces(list_ranges(config), config, task.stage_tests(), shared.find_used())
    packs = pack_items(ranges, [_work_bytes(range) for range in ranges])
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

    reports = write_documents(task, packs, reports, num_bytes, progress)
    summary = summarise_reports(reports, config.held_out_fraction)
    _refuse_too_few(config, summary)
    note_used(output, {part: key for one in reports for part, key in one.results.items()})
    return summary


def write_documents(
    task: RangeTask,
    packs: Packs[Range],
    reports: Sequence[RangeReport],
    num_bytes: float,
    progress: Callable[[int], None] = lambda done: None,
) -> list[RangeReport]:
    """Compare the documents of ranges that have been read, `num_bytes` in all, and write those that
    stay. `reports` are those of reading, to which those of writing are added; `progress` is told
    how many files were written."""
    config, ranges = task.config, {range.number: range for pack in packs for range in pack}
    group_of = group_ranges(packs)
    comparison = DocumentComparison(task, packs.map(lambda range: range.number), group_of)
    decisions, duplicates = comparison.find_duplicates(sum(one.documents for one in reports))
    for decision in decisions:
        if decision.same_name:
            _refuse_same_name(task, ranges, *decision.same_name)
    repeats = comparison.find_repeats(num_bytes, duplicates)

    def count(longest: int, begin: int, width: int) -> list[Bucket]:
        def buckets(pack: list[Range]) -> Iterator[list[Bucket]]:
            positions = duplicates.read(int(group_of[pack[0].number]))
            for range in pack:
                rows = positions[positions[:, 0] == range.number, 1]
                yield count_buckets(task.keys(range.number), rows, longest, begin, width)

        return add_buckets(run_tasks(packs, buckets))

    split = choose_split(config.held_out_fraction, decisions, count)

    def write_training(pack: list[Range]) -> Iterator[RangeReport]:
        group = int(group_of[pack[0].number])
        positions = duplicates.read(group), repeats.read(group)
        return (task.write_training(range, *positions, split) for range in pack)

    def write(
        work: Callable[[list[Range]], Iterator[RangeReport]], done: int
    ) -> dict[int, RangeReport]:
        written: dict[int, RangeReport] = {}
        for number, report in _run(packs, work):
            written[number] = report
            progress(done + len(written))
        return written

    training = write(write_training, 0)
    overlap = comparison.find_overlap(training, int(config.held_out_fraction * num_bytes))

    def write_held_out(keep_repeats: bool) -> dict[int, RangeReport]:
        def reports(pack: list[Range]) -> Iterator[RangeReport]:
            passages = overlap.read(int(group_of[pack[0].number]))
            return (task.write_held_out(range, passages, split, keep_repeats) for range in pack)

        return write(reports, len(ranges))

    held_out = write_held_out(config.overlap == "keep")
    if repeats_most(held_out.values()):
        parts = held_out
        held_out = write_held_out(keep_repeats=True)
        files = {file for report in held_out.values() for file in report.sha256}
        for report in parts.values():
            for file in report.sha256.keys() - files:
                task.output.remove(file)
    written = [one for number in sorted(ranges) for one in (training[number], held_out[number])]
    return [*reports, *written]


def _run(
    packs: Packs[Range], work: Callable[[list[Range]], Iterator[RangeReport]]
) -> Iterator[tuple[int, RangeReport]]:
    """Run `work` on each pack as a task; yield the number and the report of each range."""

    def reports(pack: list[Range]) -> Iterator[tuple[int, dict[str, Any]]]:
        for range, report in zip(pack, work(pack), strict=True):
            yield range.number, report.to_plain()

    for number, report in run_tasks(packs, reports):
        yield number, RangeReport.from_plain(report)


def group_ranges(packs: Packs[Range]) -> np.ndarray:
    """Return the group of each range, (ranges,), equal within a pack."""
    group_of = np.empty(sum(map(len, packs)), np.int64)
    for number, pack in enumerate(packs):
        group_of[[range.number for range in pack]] = number % _MOST_GROUPS
    return group_of


def _text_bytes(range: Range) -> float:
    """Return the bytes of text that take as long as this range."""
    return (
        range.num_bytes if range.end is not None else sum(map(estimate_unpacked_bytes, range.files))
    )


def _work_bytes(range: Range) -> float:
    """Return the bytes of text that take as long as what is to be done of this range."""
    num_read = sum(
        file.size_bytes for piece in range.pieces if piece.result for file in piece.files
    )
    share_read = min(1.0, num_read / max(1, range.num_bytes))
    return _text_bytes(range) * (1 - share_read * (1 - _REUSED))


def _refuse_damage(config: CorpusConfig, ranges: list[Range], reports: list[RangeReport]) -> None:
    skipped = sum(report.skipped_bytes for report in reports)
    total = sum(range.num_bytes for range in ranges)
    if skipped > config.skip_limit * total:
        first = next(part for report in reports for part in report.skipped)
        where = ", ".join(filter(None, (first.file, first.place)))
        count = sum(report.skipped_parts for report in reports)
        parts = "one part" if count == 1 else f"{count:,} parts"
        raise DataError(
            f"{parts} of the files cannot be read, {skipped / total:.2%} of their bytes, more than "
            f"the {config.skip_limit:.2%} of corpus.skip_limit; the first is {where}: "
            f"{first.detail}; change {first.key}, mend the files, or raise the limit"
        )


def _refuse_same_name(
    task: RangeTask, ranges: Mapping[int, Range], first: Position, second: Position
) -> None:
    source = ranges[first.range].source
    name, id_ = source_names(task.config.sources)[source], task.document_id(*first)
    id_field = getattr(task.config.sources[source], "id_field", None)
    if not ranges[first.range].files:
        raise DataError(f"two documents of {name} have the id {id_!r}; ids must differ")
    if id_field is None:
        change = f"give one of its {source_key(source, 'paths')} a source of its own"
    else:
        change = f"change {source_key(source, 'id_field')} (now {id_field})"
    raise DataError(
        f"two documents of the source {name!r} have the id {id_!r}, in "
        f"{_describe_files(ranges[first.range])} and {_describe_files(ranges[second.range])}; "
        f"{change}"
    )


def _describe_files(range: Range) -> str:
    first, last = range.files[0].uri, range.files[-1].uri
    return first if first == last else f"one of {first} to {last}"


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
    if documents.total == 1:
        raise DataError(
            "the corpus is one document, too short to hold a part of it out, and it "
            "takes one to train on and one held out, or two of each for instances of kind "
            "masked_pairs; add documents, or cut it into several with corpus.sources.N.documents "
            "(blank_line or line)"
        )
    if not documents.train:
        raise DataError(
            f"no document fell into train: there are {documents.total} in all and "
            f"corpus.held_out_fraction is {config.held_out_fraction}; lower it or add "
            "documents to corpus.sources"
        )
    if not documents.validation:
        # Documents are held out before their repeated paragraphs go.
        raise DataError(
            "no document is left in validation: those held out were too short without their "
            "repeated paragraphs; raise corpus.held_out_fraction (now "
            f"{config.held_out_fraction}), change corpus.seed, or set corpus.duplicate_paragraphs "
            "to null"
        )
