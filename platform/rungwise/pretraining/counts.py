"""Fitting by counting: count every shard, sum the counts, estimate a model from them.

    shards ──> count, split in parts ──> merge of each part ────> merge, estimate ──> tensors
               Ray Data: a shard a row   Ray Data: a part a group   this task

There are no steps to resume: a killed run counts again. Sums do not depend on who counted what, so
the model is the same to the byte. The family defines what is counted and how the model is estimated
(`CountedFamily`).
"""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import pyarrow as pa
import safetensors.numpy
from numpy.typing import NDArray

from rungwise.core.errors import UserError, from_text, to_text
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.models.trained.capabilities import LanguageModel
from rungwise.models.trained.perplexity import perplexity
from rungwise.pretraining.config import CountsConfig, FitConfig
from rungwise.pretraining.summary import PretrainSummary
from rungwise.tokenizer import SpecialIds
from rungwise.tokens.summary import TokensSummary
from rungwise.tokens.text import TokenisedText, TokensFile, close_documents
from rungwise.training.tensor_files import MODEL

_BYTES_A_TOKEN = 64  # of a table, at most: its n-grams of each order with their counts
_PARTS = 16  # into which the counts of a shard are split, to be merged in parallel
Table = TypeVar("Table")


class CountedModel(LanguageModel, Protocol):
    """A language model made of arrays."""

    def to_tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays of the model by name."""
        ...


class CountedFamily(Protocol):
    """A family whose model is estimated from counts of documents; a table holds counts."""

    def count(
        self, ids: NDArray[np.unsignedinteger], offsets: NDArray[np.integer], special: SpecialIds
    ) -> Any:
        """The table of one shard of documents, each closed by the end symbol."""
        ...

    def split(self, table: Any, parts: int) -> Sequence[Any]:
        """Split the table into parts that can be merged separately."""
        ...

    def merge(self, tables: Sequence[Any]) -> Any:
        """The sum of tables, the same for any grouping."""
        ...

    def estimate(self, table: Any, vocab_size: int, special: SpecialIds) -> CountedModel:
        """Estimate the model from all counts."""
        ...


def pretrain_by_counts(
    config: FitConfig[CountsConfig],
    inputs: dict[str, Artifact],
    output: Folder,
    context: Context,
) -> PretrainSummary:
    """Count the training split, write `model.safetensors`, and measure on the held-out split.
    Raises DataError if the corpus is too small."""
    began = time.monotonic()
    artifact, objective = inputs["tokens"], config.objective
    tokens = TokensSummary.of(artifact)
    family = cast(CountedFamily, config.model)
    special = tokens.special
    (end,) = special.require("end")

    def count(text: TokenisedText) -> Any:
        return family.count(*close_documents(text, end), special)

    table = counted(artifact, count, family.split, family.merge, context)
    model = family.estimate(table, tokens.vocab_size, tokens.special)
    tensors = model.to_tensors()
    output.write_bytes(MODEL, safetensors.numpy.save(tensors))
    held_out = list(_held_out(artifact, tokens))
    measured = perplexity(model, held_out, tokens.text_bytes.validation)
    nats = measured.nats_per_token
    parameters = sum(array.size for name, array in tensors.items() if name.startswith("log"))
    return PretrainSummary(
        fitting="counts",
        model=config.model,
        objective=objective.name,
        parameters=parameters,
        vocab_size=tokens.vocab_size,
        tokens=tokens.tokens.train + tokens.documents.train,
        epochs=1.0,
        unigram_entropy=tokens.unigram_entropy,
        final={
            "loss": nats,
            objective.tokens.loss_key: nats,
            "perplexity": measured.perplexity,
            "bits_per_byte": measured.bits_per_byte,
        },
        seconds=time.monotonic() - began,
        headline=f"{parameters / 1e6:.1f} M parameters  validation {objective.tokens.key} "
        f"{nats:.3f} (unigram {tokens.unigram_entropy:.2f})  "
        f"{measured.bits_per_byte:.3f} bits per byte",
    )


def counted(
    artifact: Artifact,
    count: Callable[[TokenisedText], Table],
    split: Callable[[Table, int], Sequence[Table]],
    merge: Callable[[Sequence[Table]], Table],
    context: Context,
) -> Table:
    """The table of the whole training split; the functions are those of `CountedFamily`."""
    import ray.data

    from rungwise.cluster.session import quiet_ray_data
    from rungwise.cluster.shuffle import by_part

    quiet_ray_data()
    tokens = TokensSummary.of(artifact)
    files = tokens.files_of("train")

    def count_files(batch: pa.Table) -> pa.Table:
        parts: list[list[Any]] = [[] for _ in range(_PARTS)]
        try:
            for name in batch["file"].to_pylist():
                table = count(TokensFile(artifact.folder.local(name)).text())
                for part, piece in zip(parts, split(table, _PARTS), strict=True):
                    part.append(piece)
        except UserError as error:
            return _rows([0], [b""], to_text(error))
        return _rows(range(_PARTS), [pickle.dumps(merge(pieces)) for pieces in parts])

    def merge_part(group: pa.Table) -> pa.Table:
        failed = group["error"].drop_null()
        if len(failed):
            return _rows([0], [b""], failed[0].as_py())
        tables = [pickle.loads(one) for one in group["table"].to_pylist()]
        return _rows([group["part"][0].as_py()], [pickle.dumps(merge(tables))])

    pieces = ray.data.from_items([{"file": row.file} for row in files]).map_batches(
        count_files, batch_size=1, batch_format="pyarrow"
    )
    merged = []
    moved_bytes = tokens.tokens.train * _BYTES_A_TOKEN
    for row in by_part(pieces, "part", _PARTS, moved_bytes, merge_part).iter_rows():
        if row["error"] is not None:
            raise from_text(row["error"])
        merged.append(pickle.loads(row["table"]))
        context.report.progress(len(merged), _PARTS)
    return merge(merged)


def _rows(parts: Sequence[int], tables: list[bytes], error: str | None = None) -> pa.Table:
    return pa.table(
        {
            "part": pa.array(parts, pa.int32()),
            "table": pa.array(tables, pa.large_binary()),
            "error": pa.array([error] * len(tables), pa.string()),
        }
    )


def _held_out(artifact: Artifact, tokens: TokensSummary) -> Iterator[list[int]]:
    for row in tokens.files_of("validation"):
        (end,) = tokens.special.require("end")
        ids, starts = close_documents(TokensFile(artifact.folder.local(row.file)).text(), end)
        flat = ids.tolist()
        for begin, end in itertools.pairwise(starts.tolist()):
            yield flat[begin:end]
