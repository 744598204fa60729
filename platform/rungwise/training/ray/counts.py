"""Fitting by counting: count every shard, sum the counts, estimate a model from them.

There are no steps to resume: a killed run counts again, to the same bytes.
"""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import ray

from rungwise.cluster.tasks import pack_items
from rungwise.core.errors import ConfigError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.core.tokens import TokenisedText
from rungwise.models.family import Family
from rungwise.models.fitting import HERE, CountedFamily, FileFamily, Tasks, Weights, fill_arrays
from rungwise.models.trained.capabilities import LanguageModel
from rungwise.tokenizer.token_stage import TokensSummary
from rungwise.tokenizer.token_text import TokensFile
from rungwise.training.fit_config import CountsConfig, FitConfig
from rungwise.training.initial import INITIAL, ImportSummary
from rungwise.training.pretrained import measure_held_out
from rungwise.training.summary import PretrainSummary
from rungwise.training.tensor_files import MODEL, create_arrays, map_arrays

# The counts of a shard are split into parts, which tasks merge: a billion tokens into 66, so that a
# task needs 7 to 9 GB, by the text (from benchmarks/ngrams.py at ten million tokens). Ray's
# store holds objects by their square.
_LEAST_PARTS, _MOST_PARTS, _TOKENS_A_PART = 4, 128, 16_000_000
Table = TypeVar("Table")


def pretrain_by_counts(
    config: FitConfig[CountsConfig], inputs: dict[str, Artifact], output: Folder, context: Context
) -> PretrainSummary:
    """Count, or take the counts that are given, write `model.safetensors`, and measure. Raises
    DataError for too little text, ConfigError for counts of another model."""
    began = time.monotonic()
    artifact, objective = inputs["tokens"], config.objective
    tokens = TokensSummary.of(artifact)
    family = cast(CountedFamily, config.model)
    initial = inputs.get(INITIAL)
    with output.staged(MODEL) as path:
        create = functools.partial(create_arrays, path)
        if initial is None:
            parts, tasks = count_parts(
                artifact,
                lambda text: family.count(text, tokens.special),
                family.split,
                family.merge,
                context,
            )
            tensors = family.estimate(parts, tasks, create, tokens.vocab_size, tokens.special)
        else:
            tensors = fill_arrays(create, _load_given(config.model, initial))
    seconds = time.monotonic() - began
    model = cast(LanguageModel, family.from_tensors(tensors, tokens.special))
    final = measure_held_out(model, artifact, objective)
    parameters = sum(array.size for name, array in tensors.items() if name.startswith("log"))
    return PretrainSummary(
        fitting="counts",
        model=config.model,
        objective=objective.name,
        parameters=parameters,
        vocab_size=tokens.vocab_size,
        tokens=0 if initial else tokens.tokens.train + tokens.documents.train,
        epochs=0.0 if initial else 1.0,
        unigram_loss=tokens.unigram_loss,
        final=dict(final),
        seconds=seconds,
        headline=f"{parameters / 1e6:.1f} M parameters  validation {objective.tokens.key} "
        f"{final['loss']:.3f} (unigram {tokens.unigram_loss:.2f})  "
        f"{final['bits_per_byte']:.3f} bits per byte",
    )


def _load_given(model: Family, given: Artifact) -> Weights:
    """Return the arrays of counts that are given. Raises ConfigError if `model` is another."""
    if not isinstance(model, FileFamily):
        raise ConfigError(
            f"model.kind is {model.kind}, which takes no counts that are given; leave out initial"
        )
    model.check_given(ImportSummary.of(given).model)
    return map_arrays(given.folder.local(MODEL))


def read_text(artifact: Artifact, file: str, first_document: int = 0) -> TokenisedText:
    """Map a file of tokens into memory; `first_document` is the number of its first document."""
    text = TokensFile(artifact.folder.local(file)).text()
    return dataclasses.replace(text, first_document=first_document)


def count_parts(
    artifact: Artifact,
    count: Callable[[TokenisedText], Table],
    split: Callable[[Table, int], Sequence[Table]],
    merge: Callable[[Sequence[Table]], Table],
    context: Context,
) -> tuple[list[list[Any]], Tasks]:
    """Count the whole training split; the functions are those of `CountedFamily`. Returns the
    handles of the tables whose sum is each part, and the tasks that know them."""
    summary = TokensSummary.of(artifact)
    files = summary.split_files("train")
    numbers = itertools.accumulate((row.documents for row in files), initial=0)
    items = list(zip((row.file for row in files), numbers, strict=False))
    packs = pack_items(items, [row.text_bytes for row in files])
    tasks, parts = HERE, 1
    if not packs.small:
        tasks = RayTasks()
        parts = min(_MOST_PARTS, _LEAST_PARTS + summary.tokens.train // _TOKENS_A_PART)

    def count_pack(pack: Sequence[tuple[str, int]]) -> list[Table]:
        tables = [split(count(read_text(artifact, *item)), parts) for item in pack]
        return [merge(pieces) for pieces in zip(*tables, strict=True)]

    tables = [tasks.call(parts, count_pack, pack) for pack in packs]
    for number, pieces in enumerate(tables, start=1):
        tasks.wait(pieces[0])
        context.report.progress(number, len(tables))
    return [list(pieces) for pieces in zip(*tables, strict=True)], tasks


class RayTasks(Tasks):
    """Runs functions as tasks of Ray, which keeps their results in its object store."""

    def call(
        self, number: int, function: Callable[..., Sequence[Any]], *arguments: Any
    ) -> Sequence[Any]:
        def run(*values: Any) -> Any:
            results = function(*values)
            return results if number > 1 else results[0]

        handles: Any = ray.remote(num_cpus=1, num_returns=number)(run).remote(*arguments)
        return handles if number > 1 else [handles]

    def get(self, handle: Any) -> Any:
        return ray.get(handle)

    def wait(self, handle: Any) -> None:
        ray.wait([handle], fetch_local=False)
