"""Instances stage on Ray Data: one shard for each file of tokens and each pass over it.

The driver holds one manifest row per shard and nothing that grows with tokens. A killed job leaves
its shards and their markers for the next attempt; the manifest is written last and replaces the
markers.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from rungwise.cluster.build_files import MARKERS, FileRow, build_files
from rungwise.core.plural import counted
from rungwise.core.randomness import bits
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.stages.notes import read_note, write_note
from rungwise.core.stages.summary import PerSplit
from rungwise.core.storage.folder import Folder
from rungwise.instances.kind import Kind
from rungwise.instances.shard_task import ShardOrder, ShardTask
from rungwise.instances.summary import InstancesSummary, ShardFile
from rungwise.tokens.summary import TokensRow, TokensSummary

MANIFEST = "manifest.json"
SUMMARY_FILE = ".summary.json"
_SPLITS = ("train", "validation")
_LENDERS = 31  # random stream
_MOST_LENDERS = 8


def build_instances(
    config: Kind, inputs: dict[str, Artifact], output: Folder, context: Context
) -> InstancesSummary:
    """Build every shard of both splits. Raises DataError if a shard breaks the contract, if a split
    has only one document for NSP, or if the tokenizer lacks a special token that the kind needs."""
    if note := read_note(output, SUMMARY_FILE):  # killed between the last shard and the record
        summary = InstancesSummary.model_validate(note)
    else:
        summary = _build_all(config, inputs["tokens"], output, context)
        output.write_bytes(MANIFEST, summary.model_dump_json().encode())
        files = {row.file: row.sha256 for row in summary.files}
        write_note(output, SUMMARY_FILE, summary.model_dump(mode="json"), files)
        output.remove(MARKERS)
    return summary.model_copy(update={"sha256": {row.file: row.sha256 for row in summary.files}})


def _build_all(
    config: Kind, artifact: Artifact, output: Folder, context: Context
) -> InstancesSummary:
    tokens = TokensSummary.of(artifact)
    config.check_documents(tokens.documents)
    task = ShardTask(
        config, artifact.folder, output, tokens.vocab_size, tokens.special, tokens.labels
    )

    def report_row(row: FileRow, done: int) -> None:
        shares = config.statistics(row)
        context.report.metrics(
            {f"contract/{name}": float(value) for name, value in shares.items()}, step=done
        )

    orders = list_orders(config, tokens.files)
    return _summary(task, tokens, build_files(orders, task, output, context.report, report_row))


def list_orders(config: Kind, files: Sequence[TokensRow]) -> list[ShardOrder]:
    """An order for each file with text and each pass over it."""
    rows = [row for row in files if row.documents]
    orders = [
        ShardOrder(row.file, row.split, row.source, row.text_bytes, number)
        for row in rows
        for number in range(config.passes)
    ]
    if not config.needs_other_documents:
        return orders
    files_of = {split: [row.file for row in rows if row.split == split] for split in _SPLITS}
    return [
        dataclasses.replace(order, lenders=_lenders(order, files_of[order.split], config.seed))
        for order in orders
    ]


def _lenders(order: ShardOrder, files: Sequence[str], seed: int) -> tuple[str, ...]:
    """Other files of the split, drawn for this shard: a random B should be from anywhere in the
    corpus, and one file holds neighbouring documents of a source."""
    draws = bits(seed, _LENDERS, order.stream, np.arange(_MOST_LENDERS)) % np.uint64(len(files))
    names = {files[int(draw)] for draw in draws} - {order.read}
    return tuple(sorted(names or set(files[:2]) - {order.read}))


def _summary(task: ShardTask, tokens: TokensSummary, rows: list[FileRow]) -> InstancesSummary:
    config = task.config
    totals = _totals(rows)
    statistics = config.statistics(totals)
    headline = f"{counted(totals['instances'], 'instance')}  {totals['tokens'] / 1e6:.1f} M tokens"
    if more := config.headline(totals, statistics):
        headline += f"  {more}"
    files = tuple(ShardFile(**{key: row[key] for key in ShardFile.model_fields}) for row in rows)
    return InstancesSummary(
        kind=config.kind,
        sequence_length=config.length,
        files=files,
        vocab_size=tokens.vocab_size,
        special=tokens.special,
        instances=PerSplit.sum_rows(files, "instances"),
        tokens=totals["tokens"],
        text_bytes=tokens.text_bytes,
        statistics=statistics,
        length_histogram=totals["length_histogram"],
        unigram_loss=tokens.unigram_loss,
        labels=tokens.labels,
        headline=headline,
    )


def _totals(rows: list[FileRow]) -> dict[str, Any]:
    """Counts over all shards: sums, but maxima for `most_*`."""
    totals: dict[str, Any] = {}
    for key, value in rows[0].items():
        if key.startswith("most_"):
            totals[key] = max(row[key] for row in rows)
        elif isinstance(value, int):
            totals[key] = sum(row[key] for row in rows)
    totals["length_histogram"] = np.sum([row["length_histogram"] for row in rows], axis=0).tolist()
    return totals
