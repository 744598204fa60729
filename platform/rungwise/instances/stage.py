"""Instances stage on Ray Data: a row is a shard to be built; a task builds a few, one by one.

The driver holds one manifest row a shard and nothing that grows with tokens. A job that is killed
leaves its shards and their markers, and the next attempt takes them; the manifest is written last
and stands for them all.
"""

from __future__ import annotations

import dataclasses
import heapq
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rungwise.core.artifact import Artifact
from rungwise.core.context import Context
from rungwise.core.errors import DataError, UserError
from rungwise.core.stage import StageType
from rungwise.core.storage import Folder
from rungwise.core.summary import PerSplit
from rungwise.corpus.build import failure_text, raise_failure
from rungwise.corpus.summary import CorpusFile, CorpusSummary
from rungwise.instances.contexts import ContextsConfig
from rungwise.instances.kinds import KINDS, AnyInstancesConfig, identity, outside
from rungwise.instances.masked import MaskedConfig, masked_headline
from rungwise.instances.masked_pairs import MaskedPairsConfig
from rungwise.instances.shard_task import MARKERS, ShardSpec, ShardTask
from rungwise.instances.summary import InstancesSummary, ShardFile
from rungwise.tokenizer import EncoderChoice, TokenizerSummary, choose, load
from rungwise.tokenizer.proof import sample_of

MANIFEST = "manifest.json"
TOKEN_COUNTS = "token_counts.npy"  # of the training split, by id
_SPLITS = ("train", "validation")
_HISTOGRAM_SHARDS = 16  # each shard is a fair sample, so the first tell the token frequencies
# Ray Data takes 0.1 to 0.2 s to schedule a task: this much text is some five seconds of work.
_TASK_BYTES = 96e6


def build_instances(
    config: AnyInstancesConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> InstancesSummary:
    """Build every shard of both splits.

    Raises DataError if a shard breaks the contract, or holds one document while NSP is on, and
    ConfigError if the tokenizer lacks a special token that the kind needs.
    """
    if output.exists(MANIFEST):  # killed between the last shard and the record
        summary = InstancesSummary.model_validate_json(output.read_bytes(MANIFEST))
    else:
        summary = _build_all(config, inputs, output, context)
        output.write_bytes(MANIFEST, summary.model_dump_json().encode())
        output.remove(MARKERS)
    return summary.model_copy(update={"sha256": {row.file: row.sha256 for row in summary.files}})


INSTANCES = StageType(
    "instances",
    4,
    build_instances,
    InstancesSummary,
    identity=identity,
    outside=outside,
    resumes=True,
)
LONGER_INSTANCES = dataclasses.replace(INSTANCES, name="longer_instances")


def _build_all(
    config: AnyInstancesConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> InstancesSummary:
    corpus, tokenizer = inputs["corpus"], inputs["tokenizer"]
    text, vocabulary = CorpusSummary.of(corpus), TokenizerSummary.of(tokenizer)
    _enough_documents(config, text.documents)
    _phrases_there(config, text)
    task = ShardTask(
        config,
        corpus.folder,
        tokenizer.folder,
        output,
        vocabulary.vocab_size,
        vocabulary.special,
        _encoder(corpus, tokenizer, context),
    )
    specs = specs_of(config, text.files)
    return _summary(task, specs, _build(task, specs, context), output)


def _encoder(corpus: Artifact, tokenizer: Artifact, context: Context) -> EncoderChoice:
    sample = sample_of(corpus.folder, CorpusSummary.of(corpus).files_of("train"))
    choice = choose(load(tokenizer.folder), context.compute.tokenizer_backend, sample)
    if choice.notice is not None:
        context.report.note(choice.notice)
    return choice


def specs_of(config: AnyInstancesConfig, files: Sequence[CorpusFile]) -> list[ShardSpec]:
    """The shards to build."""
    dupes = config.dupe_factor if isinstance(config, MaskedPairsConfig) else 1
    return [
        ShardSpec(
            row.file,
            row.split,
            row.bytes,
            dupe,
            histogram=dupe == 0 and _number_of(row.file) < _HISTOGRAM_SHARDS,
        )
        for row in files
        for dupe in range(dupes)
        if row.documents
    ]


def _phrases_there(config: AnyInstancesConfig, corpus: CorpusSummary) -> None:
    if (
        isinstance(config, MaskedConfig)
        and config.masking.unit == "phrase"
        and config.mask_units.phrases is None
        and not corpus.spans.total
    ):
        raise DataError(
            "instances.masking.unit is phrase, but the corpus holds no spans and "
            "instances.mask_units.phrases names no list; name spans_field in a jsonl or parquet "
            "source, or give a list, or set instances.masking.unit=whole_word"
        )


def _enough_documents(config: AnyInstancesConfig, documents: PerSplit) -> None:
    fewest = min(documents.train, documents.validation)
    if isinstance(config, MaskedPairsConfig) and fewest < 2:
        raise DataError(
            f"next-sentence pairs need documents to draw B from, but the corpus holds "
            f"{documents.train} for training and {documents.validation} held out; set "
            "instances.kind=masked_blocks (and pretrain.objective=mlm), or add documents"
        )


def _build(task: ShardTask, specs: list[ShardSpec], context: Context) -> list[dict[str, Any]]:
    """Every shard's row of the manifest, in the order of `specs`."""
    import ray
    import ray.data

    from rungwise.cluster.session import quiet_ray_data

    quiet_ray_data()

    def build(batch: pa.Table) -> pa.Table:
        built: list[dict[str, Any]] = []
        for spec in batch.to_pylist():
            try:
                built.append(task.build_once(ShardSpec(**spec)))
            except UserError as error:
                # As a row: Ray Data would put a page of its own words around the message.
                built.append({"error": failure_text(error)})
                break
        return pa.table({"row": [json.dumps(row) for row in built]})

    packs = _packed(specs, int(ray.cluster_resources().get("CPU", 1)))
    dataset = ray.data.from_arrow(
        [pa.Table.from_pylist([vars(spec) for spec in pack]) for pack in packs]
    ).map_batches(build, batch_size=None, batch_format="pyarrow")
    rows: dict[str, dict[str, Any]] = {}
    statistics = KINDS[task.config.kind].statistics
    for answer in dataset.iter_rows():
        row = json.loads(answer["row"])
        if "error" in row:
            raise_failure(row["error"])
        rows[row["file"]] = row
        context.report.progress(len(rows), len(specs))
        shares = statistics(row, task.config)
        context.report.metrics(
            {f"contract/{name}": float(value) for name, value in shares.items()}, step=len(rows)
        )
    return [rows[spec.name] for spec in specs]


def _packed(specs: list[ShardSpec], cpus: int) -> list[list[ShardSpec]]:
    """The shards in packs of about equal work: several seconds each, and every CPU busy."""
    total = sum(spec.text_bytes for spec in specs)
    rounds = max(1, round(total / _TASK_BYTES / cpus))
    count = min(len(specs), rounds * cpus)
    packs: list[list[ShardSpec]] = [[] for _ in range(count)]
    least = [(0, number) for number in range(count)]
    for spec in sorted(specs, key=lambda spec: -spec.text_bytes):
        so_far, number = heapq.heappop(least)
        packs[number].append(spec)
        heapq.heappush(least, (so_far + spec.text_bytes, number))
    return packs


def _summary(
    task: ShardTask, specs: list[ShardSpec], rows: list[dict[str, Any]], output: Folder
) -> InstancesSummary:
    config = task.config
    histogram = {
        split: _histogram((row for row in rows if row["split"] == split), task.vocab_size)
        for split in _SPLITS
    }
    with output.staged(TOKEN_COUNTS) as path, path.open("wb") as stream:
        np.save(stream, histogram["train"])
    totals = _totals(rows)
    statistics = KINDS[config.kind].statistics(totals, config)
    headline = f"{totals['instances']:,} instances  {totals['tokens'] / 1e6:.1f} M tokens"
    if isinstance(config, MaskedConfig):
        headline += f"  {masked_headline(statistics)}"
    files = tuple(ShardFile(**{key: row[key] for key in ShardFile.model_fields}) for row in rows)
    instances = {s: sum(row.instances for row in files if row.split == s) for s in _SPLITS}
    text_bytes = {
        split: sum(s.text_bytes for s in specs if s.split == split and not s.dupe)
        for split in _SPLITS
    }
    return InstancesSummary(
        kind=config.kind,
        sequence_length=None if isinstance(config, ContextsConfig) else config.sequence_length,
        files=files,
        vocab_size=task.vocab_size,
        special=task.special,
        instances=PerSplit(**instances),
        tokens=totals["tokens"],
        text_bytes=PerSplit(**text_bytes),
        statistics=statistics,
        length_histogram=totals["length_histogram"],
        unigram_entropy=entropy(histogram["validation"]),
        headline=headline,
    )


def _totals(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts of all shards: sums, and of what is a maximum the largest."""
    totals: dict[str, Any] = {}
    for key, value in rows[0].items():
        if key.startswith("most_"):
            totals[key] = max(row[key] for row in rows)
        elif isinstance(value, int):
            totals[key] = sum(row[key] for row in rows)
    totals["length_histogram"] = np.sum([row["length_histogram"] for row in rows], axis=0).tolist()
    return totals


def _histogram(rows: Any, vocab_size: int) -> NDArray[np.int64]:
    total = np.zeros(vocab_size, dtype=np.int64)
    for row in rows:
        if "histogram" in row:
            total += np.array(row["histogram"], dtype=np.int64)
    return total


def _number_of(file: str) -> int:
    return int(file.split("-")[1].split(".")[0])


def entropy(counts: NDArray[np.int64]) -> float:
    """Shannon entropy of a histogram, in nats."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum()) + 0.0
