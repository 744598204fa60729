"""The corpus stage on Ray Data: read and clean; shuffle keys; write the documents left.

    ranges ── read ──> staging files ── keys ──> lost documents ── write ──> files of the ranges

Each range (ranges.py) is read, and later written, by one task; a task takes several ranges. Text
stays where it was read to. Only digests, names and signature bands are compared across the corpus:
rows of some fifty bytes, shuffled by value, each partition decided by one task. The driver holds a
report per range and nothing that grows with documents.

The result depends on the ranges, which follow from the config and the files, not on tasks or
workers. A killed stage resumes with the ranges left (range_task.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import ray.data

from rungwise.cluster.session import quiet_ray_data
from rungwise.cluster.shuffle import by_part
from rungwise.cluster.tasks import over, packed
from rungwise.core.errors import DataError
from rungwise.core.stages.context import Context
from rungwise.core.stages.stage import StageType
from rungwise.core.storage.folder import Folder
from rungwise.corpus.building.range_task import LOST, REPEATED, STAGING, RangeTask, write_places
from rungwise.corpus.building.ranges import Range, list_ranges
from rungwise.corpus.config import CorpusConfig, identity, source_key, source_names
from rungwise.corpus.deduplication import documents as duplicates
from rungwise.corpus.deduplication import near_duplicates, paragraphs, signatures
from rungwise.corpus.deduplication.documents import Decision, Position
from rungwise.corpus.deduplication.signatures import NearDuplicateConfig
from rungwise.corpus.files import outside
from rungwise.corpus.readers.streams import unpacked_bytes
from rungwise.corpus.summary import CorpusSummary, summarise_reports

# The summary of a stage killed between its last file and its record.
_DONE = ".summary.json"
# A row of near-duplicate bands, without its signature.
_BAND_ROW_BYTES = 32
# Bytes compared by one task. More bytes than the most partitions hold make them larger: a write
# task reads from every partition.
_PARTITION_BYTES = 64 << 20
_MOST_PARTITIONS = 256
# A task reads, from each part's file, the places of its group and a footer of a few hundred bytes
# per group: with a group per task, a terabyte of text would have a terabyte of footers.
_MOST_GROUPS = 64


def build_corpus(
    config: CorpusConfig, inputs: dict[str, Any], output: Folder, context: Context
) -> CorpusSummary:
    """Build the corpus of `config` in `output`.

    Raises DataError or ConfigError for faults that the user can mend, wherever on the cluster.
    """
    if output.exists(_DONE):
        done = json.loads(output.read_bytes(_DONE))
        summary = CorpusSummary(**done["summary"], sha256=done["sha256"])
    else:
        quiet_ray_data()
        summary = _build(config, output, context)
        done = {"summary": summary.model_dump(mode="json"), "sha256": summary.sha256}
        output.write_bytes(_DONE, json.dumps(done).encode())
    output.remove(STAGING)
    return summary


CORPUS = StageType(
    "corpus", 6, build_corpus, CorpusSummary, identity=identity, outside=outside, resumes=True
)


def _build(config: CorpusConfig, output: Folder, context: Context) -> CorpusSummary:
    task, ranges = RangeTask(config, output), list_ranges(config)
    task.stage_tests()
    packs = packed(ranges, [_work(range) for range in ranges])
    staged: dict[int, dict[str, Any]] = {}
    documents = num_bytes = 0
    for number, report in over(packs, lambda pack: ((one.number, task.read(one)) for one in pack)):
        staged[number] = report
        context.report.progress(len(staged), 2 * len(ranges))
        documents += report["documents"]
        num_bytes += _work(ranges[number])
        context.report.metrics(
            {"read/documents": documents, "read/bytes": num_bytes}, step=len(staged)
        )
    reports = [staged[range.number] for range in ranges]
    _refuse_damage(config, ranges, reports)
    num_documents = sum(report["documents"] for report in reports)
    if not num_documents:
        _refuse_too_few(config, summarise_reports(reports, []))
    group_of = group_ranges(packs)
    verdicts, num_lost = _verdicts(task, packs, group_of, num_documents)
    for verdict in verdicts:
        if verdict.doubled:
            _refuse_doubled(task, ranges, *verdict.doubled)
    num_repeated = _repeated(task, packs, group_of, num_lost)
    last = duplicates.held_out_threshold(
        config.held_out_fraction,
        sum(verdict.documents for verdict in verdicts),
        [key for verdict in verdicts for key in verdict.held_out],
    )

    def write(pack: list[Range]) -> Iterator[tuple[int, dict[str, Any]]]:
        group = int(group_of[pack[0].number])
        lost = task.places(LOST, num_lost, group)
        repeated = task.places(REPEATED, num_repeated, group)
        return ((one.number, task.write(one, lost, repeated, last)) for one in pack)

    written: dict[int, dict[str, Any]] = {}
    for number, report in over(packs, write):
        written[number] = report
        context.report.progress(len(ranges) + len(written), 2 * len(ranges))
    summary = summarise_reports(reports, [written[range.number] for range in ranges])
    _refuse_too_few(config, summary)
    return summary


def group_ranges(packs: list[list[Range]]) -> np.ndarray:
    """Return the group of each range, (ranges,), equal within a pack."""
    group_of = np.empty(sum(map(len, packs)), np.int64)
    for number, pack in enumerate(packs):
        group_of[[range.number for range in pack]] = number % _MOST_GROUPS
    return group_of


def _verdicts(
    task: RangeTask, packs: list[list[Range]], group_of: np.ndarray, num_documents: int
) -> tuple[list[Decision], int]:
    """Decide each partition of the keys and write who is lost; return outcomes and partition
    count."""
    config = task.config
    numbers = _numbers(packs)
    moved_bytes = 2 * num_documents * duplicates.ROW_BYTES
    num_parts = _num_parts(moved_bytes)

    def rows(batch: pa.Table) -> Iterator[pa.Table]:
        for number in batch["range"].to_pylist():
            yield duplicates.key_rows(task.keys(number), number, num_parts)

    def decide(part: pa.Table) -> pa.Table:
        verdict = duplicates.decide(part, config.deduplicate)
        number = part["partition"][0].as_py()
        write_places(task.output, LOST, number, verdict.lost, group_of)
        return pa.table({"verdict": [json.dumps(verdict[1:])], "part": [number]})

    keys = ray.data.from_arrow(numbers).map_batches(rows, batch_size=None, batch_format="pyarrow")
    if config.near_duplicates is not None:
        marked = _marks(task, numbers, num_documents, num_parts, config.near_duplicates)
        keys = keys.union(marked)
    verdicts: list[Decision] = []
    parts: set[int] = set()
    for row in by_part(keys, "partition", num_parts, moved_bytes, decide).iter_rows():
        documents, held_out, doubled = json.loads(row["verdict"])
        places = doubled and (Position(*doubled[0]), Position(*doubled[1]))
        verdicts.append(Decision(np.empty((0, 3)), documents, held_out, places))
        parts.add(row["part"])
    for part in set(range(num_parts)) - parts:
        write_places(task.output, LOST, part, np.empty((0, 3), np.int64), group_of)
    return verdicts, num_parts


def _repeated(
    task: RangeTask, packs: list[list[Range]], group_of: np.ndarray, num_lost: int
) -> int:
    """Write the repeated paragraphs of the documents left; return the number of parts."""
    config = task.config.duplicate_paragraphs
    if config is None:
        return 0
    num_bytes = sum(_work(range) for pack in packs for range in pack)
    # An upper bound: a paragraph has at least so many bytes.
    moved_bytes = num_bytes / config.minimum_characters * paragraphs.ROW_BYTES
    num_parts = _num_parts(moved_bytes)

    def rows(batch: pa.Table) -> Iterator[pa.Table]:
        numbers = batch["range"].to_pylist()
        lost = task.places(LOST, num_lost, int(group_of[numbers[0]]))
        for number in numbers:
            here, tables = lost[lost[:, 0] == number, 1], task.tables(number)
            yield paragraphs.paragraph_rows(
                tables, here, number, config.minimum_characters, num_parts
            )

    def decide(part: pa.Table) -> pa.Table:
        numbers = part["partition"].to_pylist()[:1]
        for number in numbers:
            repeated = paragraphs.find_repeats(part, config.maximum_occurrences)
            write_places(task.output, REPEATED, number, repeated, group_of)
        return pa.table({"part": pa.array(numbers, pa.int64())})

    dataset = ray.data.from_arrow(_numbers(packs))
    keys = dataset.map_batches(rows, batch_size=None, batch_format="pyarrow")
    decided = by_part(keys, "partition", num_parts, moved_bytes, decide).iter_rows()
    for part in set(range(num_parts)) - {row["part"] for row in decided}:
        write_places(task.output, REPEATED, part, np.empty((0, 3), np.int64), group_of)
    return num_parts


def _numbers(packs: list[list[Range]]) -> list[pa.Table]:
    return [pa.table({"range": [range.number for range in pack]}) for pack in packs]


def _marks(
    task: RangeTask,
    numbers: list[pa.Table],
    num_documents: int,
    num_parts: int,
    config: NearDuplicateConfig,
) -> ray.data.Dataset:
    """Return rows that mark the near-duplicates among all documents."""
    row_bytes = config.permutations + _BAND_ROW_BYTES
    moved_bytes = num_documents * signatures.choose_banding(config).bands * row_bytes
    num_partitions = _num_parts(moved_bytes)

    def bands(batch: pa.Table) -> Iterator[pa.Table]:
        for number in batch["range"].to_pylist():
            yield near_duplicates.band_rows(task.keys(number), num_partitions)

    def mark(rows: pa.Table) -> pa.Table:
        return duplicates.mark_rows(
            near_duplicates.mark_duplicates(rows, config.similarity), num_parts
        )

    rows = ray.data.from_arrow(numbers).map_batches(bands, batch_size=None, batch_format="pyarrow")
    return by_part(rows, "partition", num_partitions, moved_bytes, mark)


def _num_parts(moved_bytes: float) -> int:
    return min(max(1, math.ceil(moved_bytes / _PARTITION_BYTES)), _MOST_PARTITIONS)


def _work(range: Range) -> float:
    """Return the bytes of text that take as long as this range."""
    return range.num_bytes if range.end is not None else sum(map(unpacked_bytes, range.files))


def _refuse_damage(
    config: CorpusConfig, ranges: list[Range], reports: list[dict[str, Any]]
) -> None:
    skipped = sum(report["damaged_bytes"] for report in reports)
    total = sum(range.num_bytes for range in ranges)
    if skipped > config.skip_limit * total:
        first = next(damage for report in reports for damage in report["damage"])
        where = ", ".join(filter(None, (first["file"], first["place"])))
        count = sum(report["damaged"] for report in reports)
        parts = "one part" if count == 1 else f"{count:,} parts"
        raise DataError(
            f"{parts} of the files cannot be read, {skipped / total:.2%} of their bytes, more than "
            f"the {config.skip_limit:.2%} of corpus.skip_limit; the first is {where}: "
            f"{first['detail']}; change {first['key']}, mend the files, or raise the limit"
        )


def _refuse_doubled(task: RangeTask, ranges: list[Range], one: Position, other: Position) -> None:
    source = ranges[one.range].source
    name, id_ = source_names(task.config.sources)[source], task.name_of(*one)
    id_field = getattr(task.config.sources[source], "id_field", None)
    if id_field is None:
        change = f"give one of its {source_key(source, 'paths')} a source of its own"
    else:
        change = f"change {source_key(source, 'id_field')} (now {id_field})"
    raise DataError(
        f"two documents of the source {name!r} have the id {id_!r}, in "
        f"{_file_of(ranges[one.range])} and {_file_of(ranges[other.range])}; {change}"
    )


def _file_of(range: Range) -> str:
    first, last = range.files[0].uri, range.files[-1].uri
    return first if first == last else f"one of {first} to {last}"


def _refuse_too_few(config: CorpusConfig, summary: CorpusSummary) -> None:
    documents = summary.documents
    if not summary.files:
        what = ", ".join(f"{count} {reason}" for reason, count in summary.dropped.items())
        for part in summary.skipped[:1]:
            what += f" ({part.file}: {part.detail})"
        raise DataError(
            f"no document long enough: found {what or 'nothing'}; lower corpus.minimum_characters "
            f"(now {config.minimum_characters}) or add to corpus.sources"
        )
    if documents.total == 1:
        raise DataError(
            "the corpus is one document, and it takes one to train on and one held out, or two of "
            "each for next-sentence pairs; add documents, cut it into several with "
            "corpus.sources.N.documents (blank_line or line), and for fewer than four set "
            "instances.kind=masked_blocks pretrain.objective=mlm"
        )
    if not documents.train:
        raise DataError(
            f"no document fell into train: there are {documents.total} in all and "
            f"corpus.held_out_fraction is {config.held_out_fraction}; lower it or add "
            "documents to corpus.sources"
        )
    if not documents.validation:
        # Documents are drawn before their repeated paragraphs go.
        raise DataError(
            "no document is left in validation: those held out were too short without their "
            "repeated paragraphs; raise corpus.held_out_fraction (now "
            f"{config.held_out_fraction}), change corpus.seed, or set corpus.duplicate_paragraphs "
            "to null"
        )
