"""Instances stage on Ray Data: a row is a shard of documents; a task reads, builds, checks, writes.

A shard is the unit of work: what comes out depends on its documents, the config and the seed alone,
so the bytes are the same whatever the number of workers. The driver sees one manifest row a shard.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rungwise import tokenizer as tokenizers
from rungwise.artifact import Artifact
from rungwise.config import Config
from rungwise.context import Context
from rungwise.errors import DataError, user_error_in
from rungwise.instances import masked, shards
from rungwise.instances.contract import check
from rungwise.instances.masking import MaskingConfig
from rungwise.storage import Folder

_HISTOGRAM_SHARDS = 16  # each shard is a fair sample, so the first tell the token frequencies
_BATCH_SENTENCES = 4096


class InstancesConfig(Config):
    """Masked pairs as in the paper: MLM, and NSP unless it is turned off."""

    kind: str = Field(default="masked_pairs", pattern="^masked_pairs$")
    sequence_length: int = Field(default=128, ge=8, le=65_535)  # special tokens included
    next_sentence: bool = True
    short_rate: float = Field(default=0.1, ge=0, le=1)  # of instances with a shorter target
    masking: MaskingConfig = MaskingConfig()
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _room_for_predictions(self) -> InstancesConfig:
        wanted = math.floor(self.masking.rate * (self.sequence_length - 3))
        if wanted > self.masking.max_predictions:
            raise ValueError(
                f"masking.rate {self.masking.rate} of sequence_length {self.sequence_length} is "
                f"{wanted} predictions, more than masking.max_predictions "
                f"{self.masking.max_predictions}; raise max_predictions to {wanted + 1}"
            )
        return self


def run(
    config: InstancesConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> dict[str, Any]:
    """Build every shard of both splits.

    Raises DataError if a shard breaks the contract, or holds one document while NSP is on.
    """
    import ray.data

    from rungwise.cluster.session import quiet_ray_data

    quiet_ray_data()
    corpus, tokenizer = inputs["corpus"], inputs["tokenizer"]
    rows = corpus.summary["files"]
    vocab_size = tokenizer.summary["vocab_size"]
    documents = {
        split: sum(row["documents"] for row in rows if row["split"] == split)
        for split in ("train", "validation")
    }
    if config.next_sentence and min(documents.values()) < 2:
        raise DataError(
            f"next-sentence pairs need documents to draw B from, but the corpus holds "
            f"{documents['train']} for training and {documents['validation']} held out; set "
            "instances.next_sentence=false (and pretrain.objective=mlm), or add documents"
        )
    specs = [
        {
            "number": number,
            "file": row["file"],
            "split": row["split"],
            "histogram": int(row["file"].split("-")[1].split(".")[0]) < _HISTOGRAM_SHARDS,
        }
        for number, row in enumerate(rows)
        if row["documents"]
    ]
    build = _Builder(config, corpus.folder, tokenizer.folder, output, vocab_size)
    dataset = ray.data.from_items(specs, override_num_blocks=len(specs)).map_batches(
        build, batch_size=1, batch_format="pyarrow"
    )
    found: list[dict[str, Any]] = []
    try:
        for row in dataset.iter_rows():
            found.append(row)
            context.report.progress(len(found), len(specs))
    except Exception as error:
        mendable = user_error_in(error)
        if mendable is not None:
            raise mendable from None
        raise
    found.sort(key=lambda row: row["file"])
    return _summary(config, found, vocab_size)


class _Builder:
    """What one Ray Data task does with one shard specification."""

    def __init__(
        self,
        config: InstancesConfig,
        corpus: Folder,
        tokenizer: Folder,
        output: Folder,
        vocab_size: int,
    ) -> None:
        self._config = config
        self._corpus = corpus
        self._tokenizer = tokenizer
        self._output = output
        self._vocab_size = vocab_size

    def __call__(self, batch: pa.Table) -> pa.Table:
        return pa.Table.from_pylist([self._build(spec) for spec in batch.to_pylist()])

    def _build(self, spec: dict[str, Any]) -> dict[str, Any]:
        config = self._config
        text = tokenise(self._corpus, spec["file"], self._tokenizer, self._vocab_size)
        # The stream of a shard depends on the seed and its file name, never on who builds it.
        stream = shards.document_hash(spec["file"])
        rng = np.random.Generator(np.random.Philox(key=np.array([config.seed, stream], np.uint64)))
        try:
            built = masked.build(
                text, config.sequence_length, config.next_sentence, config.short_rate, rng
            )
        except DataError as error:
            raise DataError(f"{spec['file']}: {error}") from error
        name = spec["file"].replace(".parquet", ".arrow")
        counts = check(
            built.shard,
            name,
            config.sequence_length,
            self._vocab_size,
            config.next_sentence,
            config.masking,
            config.seed,
        )
        with self._output.staged(name) as path:
            shards.write(built.shard, path)
        histogram = np.bincount(text.ids, minlength=self._vocab_size) if spec["histogram"] else []
        return {
            "file": name,
            "split": spec["split"],
            "sha256": self._output.sha256(name),
            "documents": len(text.documents),
            "truncated": built.pairs_truncated,
            "left_out": built.sentences_left_out,
            "histogram": np.asarray(histogram, dtype=np.int64).tobytes(),
            **counts,
        }


def tokenise(
    corpus: Folder, file: str, tokenizer_folder: Folder, vocab_size: int
) -> masked.TokenisedText:
    """The documents of one corpus file as ids; sentences without a token are left out."""
    tokenizer = tokenizers.load(tokenizer_folder)
    table = pq.read_table(corpus.local(file), columns=["id", "sentences"]).combine_chunks()
    column = table.column("sentences").chunk(0)
    sentences: list[str] = column.flatten().to_pylist()
    first = np.concatenate([[0], np.cumsum(column.value_lengths().to_numpy())])
    pieces: list[list[int]] = []
    for begin in range(0, len(sentences), _BATCH_SENTENCES):
        batch = sentences[begin : begin + _BATCH_SENTENCES]
        encodings = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        pieces.extend(encoding.ids for encoding in encodings)
    lengths = np.fromiter((len(piece) for piece in pieces), np.int64, len(pieces))
    ids = np.fromiter(
        (token for piece in pieces for token in piece), shards.id_type(vocab_size), lengths.sum()
    )
    filled = lengths > 0
    before = np.concatenate([[0], np.cumsum(filled)])
    first = before[first]
    held = np.diff(first) > 0
    names = table.column("id").to_pylist()
    return masked.TokenisedText(
        ids=ids,
        starts=np.concatenate([[0], np.cumsum(lengths[filled])]),
        first_sentence=np.concatenate([first[:-1][held], first[-1:]]),
        documents=[name for name, keep in zip(names, held, strict=True) if keep],
    )


def _summary(
    config: InstancesConfig, rows: list[dict[str, Any]], vocab_size: int
) -> dict[str, Any]:
    histogram = {
        split: _total(row["histogram"] for row in rows if row["split"] == split)
        for split in ("train", "validation")
    }
    files = [
        {key: row[key] for key in ("file", "split", "instances", "tokens", "documents")}
        for row in rows
    ]
    totals = {
        key: sum(row[key] for row in rows)
        for key in (
            "instances",
            "tokens",
            "is_next",
            "candidates",
            "selected",
            "to_mask",
            "to_random",
            "kept",
            "truncated",
            "left_out",
        )
    }
    statistics = {
        "selected_share": totals["selected"] / totals["candidates"],
        "mask_share": totals["to_mask"] / totals["selected"],
        "random_share": totals["to_random"] / totals["selected"],
        "kept_share": totals["kept"] / totals["selected"],
        "is_next_share": totals["is_next"] / totals["instances"],
        "truncated_share": totals["truncated"] / totals["instances"],
        "sentences_left_out": totals["left_out"],
        "fill": totals["tokens"] / (totals["instances"] * config.sequence_length),
        "length_histogram": np.sum([row["length_histogram"] for row in rows], axis=0).tolist(),
    }
    per_split = {
        split: sum(row["instances"] for row in rows if row["split"] == split)
        for split in ("train", "validation")
    }
    nsp = f"  nsp {statistics['is_next_share']:.1%}" if config.next_sentence else ""
    return {
        "files": files,
        "sha256": {row["file"]: row["sha256"] for row in rows},
        "vocab_size": vocab_size,
        "sequence_length": config.sequence_length,
        "next_sentence": config.next_sentence,
        "instances": per_split,
        "tokens": totals["tokens"],
        "statistics": statistics,
        # Of held-out tokens, in nats: what the best guess without context would cost.
        "unigram_entropy": entropy(histogram["validation"]),
        "headline": f"{totals['instances']:,} instances  {totals['tokens'] / 1e6:.1f} M tokens  "
        f"mlm {statistics['selected_share']:.1%} ({statistics['mask_share'] * 100:.1f}/"
        f"{statistics['random_share'] * 100:.1f}/{statistics['kept_share'] * 100:.1f}){nsp}",
    }


def _total(histograms: Any) -> NDArray[np.int64]:
    arrays = [np.frombuffer(data, dtype=np.int64) for data in histograms if data]
    return np.sum(arrays, axis=0) if arrays else np.zeros(1, dtype=np.int64)


def entropy(counts: NDArray[np.int64]) -> float:
    """Shannon entropy of a histogram, in nats."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())
