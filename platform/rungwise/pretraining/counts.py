"""Fitting by counting: every shard is counted, the counts are added up, a model follows from them.

    shards ──> count, split in parts ──> merge of each part ────> merge, estimate ──> tensors
               Ray Data: a shard a row   Ray Data: a part a group   this task

No gradient and no steps, so nothing is resumed: a run that was killed counts again. A sum does not
depend on who counted what, so neither does a byte of the model. What is counted, and how a model
follows, the family says (`CountedFamily`).
"""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa
import safetensors.numpy
from numpy.typing import NDArray

from rungwise.core.artifact import Artifact, find_input
from rungwise.core.context import Context
from rungwise.core.errors import UserError, from_text, to_text
from rungwise.core.storage import Folder
from rungwise.models.capabilities import LanguageModel
from rungwise.models.perplexity import perplexity
from rungwise.pretraining.config import PretrainStageConfig
from rungwise.pretraining.summary import PretrainSummary
from rungwise.tokenizer import SpecialIds
from rungwise.tokens.summary import TokensSummary
from rungwise.tokens.text import TokensFile, closed_documents
from rungwise.training.checkpoint import MODEL

_PARTS = 16  # that the counts of a shard are split in, to be merged side by side
Tensors = Mapping[str, NDArray[Any]]


class CountedModel(LanguageModel, Protocol):
    """A language model that is made of arrays."""

    def to_tensors(self) -> dict[str, NDArray[Any]]:
        """The model as arrays by name."""
        ...


class CountedFamily(Protocol):
    """A family whose model follows from counts of documents; a table holds counts."""

    def count(
        self, ids: NDArray[np.unsignedinteger], offsets: NDArray[np.integer], special: SpecialIds
    ) -> Any:
        """The table of one shard of documents, each closed by the end symbol."""
        ...

    def split(self, table: Any, parts: int) -> Sequence[Any]:
        """The table in parts that can be merged apart."""
        ...

    def merge(self, tables: Sequence[Any]) -> Any:
        """The sum of tables, the same for any grouping."""
        ...

    def estimate(self, table: Any, vocab_size: int, special: SpecialIds) -> CountedModel:
        """The model of all counts."""
        ...

    def from_tensors(self, tensors: Tensors, special: SpecialIds) -> CountedModel:
        """The model whose `to_tensors` these are."""
        ...


def pretrain_by_counts(
    config: PretrainStageConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> PretrainSummary:
    """Count the training split, leave `model.safetensors`, and measure the held-out split.

    Raises DataError if the corpus is too small.
    """
    began = time.monotonic()
    artifact, objective = inputs["tokens"], config.objective
    tokens = TokensSummary.of(artifact)
    family = cast(CountedFamily, config.model)
    table = _counted(family, artifact, tokens, context)
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


def load_counted(config: PretrainStageConfig, pretrain: Artifact) -> CountedModel:
    """The model that a finished fit by counting left."""
    family = cast(CountedFamily, config.model)
    special = TokensSummary.of(find_input(pretrain, "tokens")).special
    return family.from_tensors(safetensors.numpy.load(pretrain.folder.read_bytes(MODEL)), special)


def _counted(
    family: CountedFamily, artifact: Artifact, tokens: TokensSummary, context: Context
) -> Any:
    """The table of the whole training split."""
    import ray.data

    from rungwise.cluster.session import quiet_ray_data

    quiet_ray_data()
    special, files = tokens.special, tokens.files_of("train")

    def count(batch: pa.Table) -> pa.Table:
        parts: list[list[Any]] = [[] for _ in range(_PARTS)]
        try:
            for name in batch["file"].to_pylist():
                table = family.count(*_closed_documents(artifact, name, special), special)
                for part, piece in zip(parts, family.split(table, _PARTS), strict=True):
                    part.append(piece)
        except UserError as error:
            return _rows([0], [b""], to_text(error))
        return _rows(range(_PARTS), [pickle.dumps(family.merge(pieces)) for pieces in parts])

    def merge(group: pa.Table) -> pa.Table:
        failed = group["error"].drop_null()
        if len(failed):
            return _rows([0], [b""], failed[0].as_py())
        tables = [pickle.loads(one) for one in group["table"].to_pylist()]
        return _rows([group["part"][0].as_py()], [pickle.dumps(family.merge(tables))])

    counted = ray.data.from_items([{"file": row.file} for row in files]).map_batches(
        count, batch_size=1, batch_format="pyarrow"
    )
    merged = []
    for row in counted.groupby("part").map_groups(merge, batch_format="pyarrow").iter_rows():
        if row["error"] is not None:
            raise from_text(row["error"])
        merged.append(pickle.loads(row["table"]))
        context.report.progress(len(merged), _PARTS)
    return family.merge(merged)


def _rows(parts: Sequence[int], tables: list[bytes], error: str | None = None) -> pa.Table:
    return pa.table(
        {
            "part": pa.array(parts, pa.int32()),
            "table": pa.array(tables, pa.large_binary()),
            "error": pa.array([error] * len(tables), pa.string()),
        }
    )


def _closed_documents(
    artifact: Artifact, file: str, special: SpecialIds
) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]:
    """The ids of a file's documents, each closed by the end symbol, and where each begins."""
    (end,) = special.require("end")
    return closed_documents(TokensFile(artifact.folder.local(file)).text(), end)


def _held_out(artifact: Artifact, tokens: TokensSummary) -> Iterator[list[int]]:
    for row in tokens.files_of("validation"):
        ids, starts = _closed_documents(artifact, row.file, tokens.special)
        flat = ids.tolist()
        for begin, end in itertools.pairwise(starts.tolist()):
            yield flat[begin:end]
