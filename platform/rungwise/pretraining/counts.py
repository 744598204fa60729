"""Fitting by counting: count every shard, sum the counts, estimate a model from them.

    shards ──> count, split in parts ──> merge of each part ────> merge, estimate ──> tensors
               Ray Data: a shard a row   Ray Data: a part a group   this task

There are no steps to resume: a killed run counts again. Sums do not depend on who counted what, so
the model is the same to the byte. The family defines what is counted and how the model is estimated
(`CountedFamily`).
"""

import dataclasses
import itertools
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa
import safetensors.numpy

from rungwise.cluster.tasks import is_small
from rungwise.core.errors import UserError, from_text, to_text
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.core.tokens import TokenisedText
from rungwise.models.fitting import CountedFamily
from rungwise.models.trained.perplexity import perplexity
from rungwise.pretraining.config import CountsConfig, FitConfig
from rungwise.pretraining.summary import PretrainSummary
from rungwise.tokens.summary import TokensSummary
from rungwise.tokens.text import TokensFile, close_documents
from rungwise.training.tensor_files import MODEL

_BYTES_A_TOKEN = 64  # of a table, at most: its n-grams of each order with their counts
_PARTS = 16  # into which the counts of a shard are split, to be merged in parallel
Table = TypeVar("Table")


def pretrain_by_counts(
    config: FitConfig[CountsConfig], inputs: dict[str, Artifact], output: Folder, context: Context
) -> PretrainSummary:
    """Count the training split, write `model.safetensors`, and measure on the held-out split.
    Raises DataError if the corpus is too small."""
    began = time.monotonic()
    artifact, objective = inputs["tokens"], config.objective
    tokens = TokensSummary.of(artifact)
    family = cast(CountedFamily, config.model)

    def count(text: TokenisedText) -> Any:
        return family.count(text, tokens.special)

    table = count_split(artifact, count, family.split, family.merge, context)
    model = family.estimate(table, tokens.vocab_size, tokens.special)
    tensors = model.to_tensors()
    output.write_bytes(MODEL, safetensors.numpy.save(tensors))
    (end,) = tokens.special.require("end")
    held_out = perplexity(model, list(_documents(artifact, end)), tokens.text_bytes.validation)
    nats = held_out.nats_per_token
    parameters = sum(array.size for name, array in tensors.items() if name.startswith("log"))
    return PretrainSummary(
        fitting="counts",
        model=config.model,
        objective=objective.name,
        parameters=parameters,
        vocab_size=tokens.vocab_size,
        tokens=tokens.tokens.train + tokens.documents.train,
        epochs=1.0,
        unigram_loss=tokens.unigram_loss,
        final={
            "loss": nats,
            objective.tokens.loss_key: nats,
            "perplexity": held_out.perplexity,
            "bits_per_byte": held_out.bits_per_byte,
        },
        seconds=time.monotonic() - began,
        headline=f"{parameters / 1e6:.1f} M parameters  validation {objective.tokens.key} "
        f"{nats:.3f} (unigram {tokens.unigram_loss:.2f})  "
        f"{held_out.bits_per_byte:.3f} bits per byte",
    )


def read_text(artifact: Artifact, file: str, first_document: int = 0) -> TokenisedText:
    """Map a file of tokens into memory; `first_document` is the number of its first document."""
    text = TokensFile(artifact.folder.local(file)).text()
    return dataclasses.replace(text, first_document=first_document)


def count_split(
    artifact: Artifact,
    count: Callable[[TokenisedText], Table],
    split: Callable[[Table, int], Sequence[Table]],
    merge: Callable[[Sequence[Table]], Table],
    context: Context,
) -> Table:
    """Count the whole training split; the functions are those of `CountedFamily`."""
    tokens = TokensSummary.of(artifact)
    files = tokens.split_files("train")
    numbers = itertools.accumulate((row.documents for row in files), initial=0)
    items = [
        {"file": row.file, "first_document": number}
        for row, number in zip(files, numbers, strict=False)
    ]

    if is_small(tokens.text_bytes.train):
        tables = [split(count(read_text(artifact, **item)), _PARTS) for item in items]
        return merge([merge(pieces) for pieces in zip(*tables, strict=True)])

    import ray.data

    from rungwise.cluster.session import quiet_ray_data
    from rungwise.cluster.shuffle import group_parts, list_rows

    quiet_ray_data()

    def count_files(batch: pa.Table) -> pa.Table:
        parts: list[list[Any]] = [[] for _ in range(_PARTS)]
        try:
            for item in batch.to_pylist():
                table = count(read_text(artifact, **item))
                for part, piece in zip(parts, split(table, _PARTS), strict=True):
                    part.append(piece)
        except UserError as error:
            return _table_rows([0], [b""], to_text(error))
        return _table_rows(range(_PARTS), [pickle.dumps(merge(pieces)) for pieces in parts])

    def merge_part(group: pa.Table) -> pa.Table:
        errors = group["error"].drop_null()
        if len(errors):
            return _table_rows([0], [b""], errors[0].as_py())
        tables = [pickle.loads(table) for table in group["table"].to_pylist()]
        return _table_rows([group["part"][0].as_py()], [pickle.dumps(merge(tables))])

    pieces = ray.data.from_items(items).map_batches(
        count_files, batch_size=1, batch_format="pyarrow"
    )
    tables = []
    moved_bytes = tokens.tokens.train * _BYTES_A_TOKEN
    for row in list_rows(group_parts(pieces, "part", _PARTS, moved_bytes, merge_part)):
        if row["error"] is not None:
            raise from_text(row["error"])
        tables.append(pickle.loads(row["table"]))
        context.report.progress(len(tables), _PARTS)
    return merge(tables)


def _table_rows(parts: Sequence[int], tables: list[bytes], error: str | None = None) -> pa.Table:
    return pa.table(
        {
            "part": pa.array(parts, pa.int32()),
            "table": pa.array(tables, pa.large_binary()),
            "error": pa.array([error] * len(tables), pa.string()),
        }
    )


def _documents(artifact: Artifact, end: int) -> Iterator[list[int]]:
    """Yield the ids of each held-out document, closed by the end symbol."""
    for row in TokensSummary.of(artifact).split_files("validation"):
        ids, starts = close_documents(read_text(artifact, row.file), end)
        for document in np.split(ids, starts[1:-1]):
            yield document.tolist()
