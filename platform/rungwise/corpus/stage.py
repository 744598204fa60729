"""The corpus stage on Ray Data: read, clean and segment; shuffle by shard; deduplicate and write.

    files ── a few tasks of several seconds ──> rows ── groupby(shard) ──> files of ~8 MB of text

The number of shards follows from the bytes of text, so the first half runs to its end (its blocks
stay in the object store, which spills) before the second begins. Ray Data needs 0.1 to 0.2 s to
schedule a task; therefore files are packed into few tasks, by how long each should take. A file is
read by one task, whatever its size.

Near-duplicates are found between the halves: a row for each band of each signature, grouped by
parts of the bands; who is marked there meets its document again where shards are written. The
driver holds references to blocks, never a document, a band or a mark.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import ray
import ray.data
from ray.data.context import ShuffleStrategy
from ray.types import ObjectRef

from rungwise.cluster.session import quiet_ray_data
from rungwise.core.context import Context
from rungwise.core.errors import DataError, UserError, from_text, to_text
from rungwise.core.stage import StageType
from rungwise.core.storage import Folder, SourceFile
from rungwise.corpus import build, near_duplicates, pydocs, readers, shards, signatures
from rungwise.corpus.document import RawDocument
from rungwise.corpus.signatures import NearDuplicateConfig
from rungwise.corpus.sources import (
    CorpusConfig,
    PydocsSource,
    files_of,
    identity,
    key_of,
    outside,
)
from rungwise.corpus.summary import CorpusSummary, summary_of

# Work is measured in bytes of plain text: what else takes as long as so many of them.
_WORK_OF_PYDOCS_BYTE = 2.5
_WORK_OF_GZIP_BYTE = 3.0
_TASKS_WANTED = 8
_MINIMUM_TASK_WORK = 2 << 20
_MAXIMUM_TASK_WORK = 64 << 20
# Ray's default shuffle and its hash shuffle start processes of their own, which takes 4 to 6 s; its
# sort shuffle does 27 MB in 0.7 s, but makes an object for each pair of blocks. What is written is
# the same with all three.
_SORTED_BELOW_BYTES = 4 << 30
# Of the bands of near-duplicates: a row without its signature, and what one task looks at.
_BAND_ROW_BYTES = 32
_PARTITION_BYTES = 64 << 20


def build_corpus(
    config: CorpusConfig, inputs: dict[str, Any], output: Folder, context: Context
) -> CorpusSummary:
    """Build the corpus of `config` in `output`.

    Raises DataError or ConfigError for what the user can mend, wherever on the cluster it arose.
    """
    quiet_ray_data()
    summary = summary_of(shards.merged(_build(config, output, context)))
    _refuse_too_few(config, summary)
    return summary


CORPUS = StageType("corpus", 3, build_corpus, CorpusSummary, identity=identity, outside=outside)


def _build(config: CorpusConfig, output: Folder, context: Context) -> list[dict[str, Any]]:
    tasks = _tasks(config)

    def read(batch: pa.Table) -> Iterator[pa.Table]:
        for task in batch["task"].to_pylist():
            try:
                yield from build.tables(
                    _raw_documents(task, config),
                    config.minimum_characters,
                    deduplicate=config.deduplicate,
                    quality=config.quality,
                    near_duplicates=config.near_duplicates,
                )
            except UserError as error:
                yield build.failure(error)

    documents = ray.data.from_items(
        [{"task": task} for task in tasks], override_num_blocks=len(tasks)
    ).map_batches(read, batch_size=1, batch_format="pyarrow")
    blocks: list[ObjectRef[Any]] = []
    text_bytes = num_signed = 0
    for bundle in documents.iter_internal_ref_bundles():
        for measured, signed, failed in ray.get(
            [_measure.remote(ref) for ref in bundle.block_refs]
        ):
            if failed is not None:
                raise from_text(failed)
            text_bytes += measured
            num_signed += signed
        blocks.extend(bundle.block_refs)
        context.report.progress(len(blocks), 2 * max(len(tasks), len(blocks)))
    if config.near_duplicates is not None:
        blocks.extend(_marks(blocks, num_signed, config.near_duplicates))
    num_shards = max(1, math.ceil(text_bytes / (config.shard_megabytes * 1e6)))

    def with_shard(rows: pa.Table) -> pa.Table:
        shard_numbers = [
            shards.shard_of(digest, num_shards) for digest in rows["digest"].to_pylist()
        ]
        rows = rows.drop_columns(["bands", "signature"])
        return rows.append_column("shard", pa.array(shard_numbers, pa.int64()))

    def write(rows: pa.Table) -> pa.Table:
        try:
            report = shards.write_shard(
                rows,
                rows["shard"][0].as_py(),
                output,
                deduplicate=config.deduplicate,
                held_out_fraction=config.held_out_fraction,
                seed=config.seed,
            )
        except UserError as error:
            report = {"error": to_text(error)}
        return pa.table({"report": [json.dumps(report)]})

    written = (
        _shuffled(blocks, text_bytes)
        .map_batches(with_shard, batch_size=None, batch_format="pyarrow")
        .groupby("shard", num_partitions=num_shards)
        .map_groups(write, batch_format="pyarrow")
    )
    reports = []
    for row in written.iter_rows():
        report = json.loads(row["report"])
        if "error" in report:
            raise from_text(report["error"])
        reports.append(report)
        context.report.progress(num_shards + len(reports), 2 * num_shards)
    return reports


def _marks(
    blocks: list[ObjectRef[Any]], num_signed: int, config: NearDuplicateConfig
) -> list[ObjectRef[Any]]:
    """Blocks of rows that mark the near-duplicates among the documents of `blocks`."""
    row_bytes = config.permutations + _BAND_ROW_BYTES
    moved_bytes = num_signed * signatures.banding(config).bands * row_bytes
    num_partitions = max(1, math.ceil(moved_bytes / _PARTITION_BYTES))

    def split(rows: pa.Table) -> pa.Table:
        return near_duplicates.band_rows(rows, num_partitions)

    def mark(rows: pa.Table) -> pa.Table:
        return build.mark_table(near_duplicates.marks(rows, config.similarity))

    marked = (
        _shuffled(blocks, moved_bytes)
        .map_batches(split, batch_size=None, batch_format="pyarrow")
        .groupby("partition", num_partitions=num_partitions)
        .map_groups(mark, batch_format="pyarrow")
    )
    return [ref for bundle in marked.iter_internal_ref_bundles() for ref in bundle.block_refs]


def _shuffled(blocks: list[ObjectRef[Any]], moved_bytes: int) -> ray.data.Dataset:
    """The rows of `blocks`, to be grouped in the way that is fastest for so many bytes."""
    rows = ray.data.from_arrow_refs(blocks)
    if moved_bytes < _SORTED_BELOW_BYTES:
        rows.context.shuffle_strategy = ShuffleStrategy.SORT_SHUFFLE_PULL_BASED
    return rows


@ray.remote(num_cpus=0.1)
def _measure(rows: pa.Table) -> tuple[int, int, str | None]:
    """The bytes of text in a block, its signatures, and what stopped its reader if anything did."""
    failures = rows["error"].drop_null()
    measured = pc.sum(rows["bytes"]).as_py() or 0  # pyright: ignore[reportAttributeAccessIssue]
    signed = rows.num_rows - rows["signature"].null_count
    return measured, signed, failures[0].as_py() if len(failures) else None


def _tasks(config: CorpusConfig) -> list[str]:
    """Pack the files and modules to read into tasks of about equal work, each as JSON."""
    items: list[tuple[float, int, list[Any]]] = []
    for index, source in enumerate(config.sources):
        if isinstance(source, PydocsSource):
            for module in pydocs.modules(source.packages, key_of(index, "packages")):
                items.append((module.size_bytes * _WORK_OF_PYDOCS_BYTE, index, list(module)))
        else:
            for file in files_of(source, index):
                factor = _WORK_OF_GZIP_BYTE if file.uri.endswith(".gz") else 1.0
                item = [file.uri, file.name, file.size_bytes, file.tag]
                items.append((file.size_bytes * factor, index, item))
    total = sum(work for work, _, _ in items)
    work_a_task = min(max(total / _TASKS_WANTED, _MINIMUM_TASK_WORK), _MAXIMUM_TASK_WORK)
    num_tasks = max(1, min(len(items), round(total / work_a_task)))
    # The largest first, each to the task with the least so far.
    tasks: list[list[tuple[int, list[Any]]]] = [[] for _ in range(num_tasks)]
    least = [(0.0, number) for number in range(num_tasks)]
    for work, index, item in sorted(items, key=lambda entry: -entry[0]):
        so_far, number = heapq.heappop(least)
        tasks[number].append((index, item))
        heapq.heappush(least, (so_far + work, number))
    return [json.dumps(task) for task in tasks]


def _raw_documents(task: str, config: CorpusConfig) -> Iterator[RawDocument]:
    for index, item in json.loads(task):
        source = config.sources[index]
        if isinstance(source, PydocsSource):
            yield from pydocs.read([pydocs.Module(*item)], key_of(index, "packages"))
        else:
            maximum_bytes = int(config.maximum_document_megabytes * 1e6)
            yield from readers.read_file(SourceFile(*item), source, index, maximum_bytes)


def _refuse_too_few(config: CorpusConfig, summary: CorpusSummary) -> None:
    documents = summary.documents
    if not summary.files:
        what = ", ".join(f"{count} {reason}" for reason, count in summary.dropped.items())
        for file in summary.unreadable[:1]:
            what += f" ({file['file']} is {file['reason']})"
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
    for split, direction in (("validation", "raise"), ("train", "lower")):
        if getattr(documents, split) == 0:
            raise DataError(
                f"no document fell into {split}: there are {documents.total} in all and "
                f"corpus.held_out_fraction is {config.held_out_fraction}; {direction} it or add "
                "documents to corpus.sources"
            )
