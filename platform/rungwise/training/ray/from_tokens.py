"""Fitting from the tokens themselves, by Ray tasks.

counts          count every shard, sum the counts, estimate a model from them
asynchronous    in rounds, word by word over the text
cooccurrence    in epochs over counted pairs of words, or at once
interpolation   a gate between two models of earlier stages, on text set aside

A round follows from its number and the weights before it, so a killed and resumed run ends with the
same bytes; where nothing is left to resume, it counts again, to the same bytes.

V vocabulary
"""

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import ray
import safetensors.numpy
from numpy.typing import NDArray

from rungwise.cluster.tasks import pack_items
from rungwise.core.errors import ConfigError, DataError, UserError
from rungwise.core.randomness import bits
from rungwise.core.stages.artifact import Artifact, Inputs
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.core.tokens import TokenisedText
from rungwise.models import fitting
from rungwise.models.fitting import Losses, Weights
from rungwise.models.ngram_model import SparseSums, merge_sums, split_sums
from rungwise.models.trained.capabilities import LanguageModel
from rungwise.tokenizer.token_stage import TokensSummary
from rungwise.tokenizer.token_text import TokensFile, split_documents
from rungwise.training.fit_config import (
    AsynchronousConfig,
    CooccurrenceConfig,
    CountsConfig,
    FitConfig,
    InterpolationConfig,
)
from rungwise.training.initial import INITIAL, ImportSummary, find_tokens
from rungwise.training.pretrained import load_model, load_word_vectors, measure_held_out, read_split
from rungwise.training.summary import PretrainSummary
from rungwise.training.tensor_files import MODEL, create_arrays, map_arrays

# The counts of a shard are split into parts, which tasks merge: a billion tokens into 66, so that a
# task needs 7 to 9 GB, by the text (from benchmarks/ngrams.py at ten million tokens). Ray's
# store holds objects by their square.
_LEAST_PARTS, _MOST_PARTS, _TOKENS_A_PART = 4, 128, 16_000_000
Table = TypeVar("Table")


def pretrain_by_counts(
    config: FitConfig[CountsConfig], inputs: Inputs, output: Folder, context: Context
) -> PretrainSummary:
    """Count, or take the counts that are given, write `model.safetensors`, and measure. Raises
    DataError for too little text, ConfigError for counts of another model."""
    began = time.monotonic()
    artifact, objective = inputs["tokens"], config.objective
    tokens = TokensSummary.of(artifact)
    family = cast(fitting.CountedFamily, config.model)
    initial = inputs.get(INITIAL)
    with output.staged(MODEL) as path:
        create = functools.partial(create_arrays, path)
        if initial is None:
            special, split, merge = tokens.special, family.split, family.merge
            parts, tasks = count_parts(
                artifact, lambda text: family.count(text, special), split, merge, context
            )
            tensors = family.estimate(parts, tasks, create, tokens.vocab_size, special)
        elif isinstance(config.model, fitting.FileFamily):
            config.model.check_given(ImportSummary.of(initial).model)
            tensors = fitting.fill_arrays(create, map_arrays(initial.folder.local(MODEL)))
        else:
            raise ConfigError(
                f"model.kind is {config.model.kind}, which takes no counts that are given; leave "
                "out initial"
            )
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
) -> tuple[list[list[Any]], fitting.Tasks]:
    """Count the whole training split; the functions are those of `CountedFamily`. Returns the
    handles of the tables whose sum is each part, and the tasks that know them."""
    summary = TokensSummary.of(artifact)
    files = summary.split_files("train")
    numbers = itertools.accumulate((row.documents for row in files), initial=0)
    items = list(zip((row.file for row in files), numbers, strict=False))
    packs = pack_items(items, [row.text_bytes for row in files])
    tasks, parts = fitting.HERE, 1
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


class RayTasks(fitting.Tasks):
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


DOCUMENTS = "documents.safetensors"  # a row for each training document
_STATE, _ROUND, _SECONDS = ".state.safetensors", "round", "seconds"


def count_tokens(
    artifact: Artifact, settings: AsynchronousConfig | CooccurrenceConfig, context: Context
) -> NDArray[np.int64]:
    """Count tokens (V,), 0 for rare and special ones. Raises DataError for fewer than two."""
    tokens, minimum = TokensSummary.of(artifact), settings.minimum_count

    def count(text: TokenisedText) -> SparseSums:
        counts = np.bincount(text.ids)
        return SparseSums(np.flatnonzero(counts), counts[counts > 0])

    parts, tasks = count_parts(artifact, count, split_sums, merge_sums, context)
    table = fitting.merge_parts(parts, tasks, merge_sums)
    counts_V = np.zeros(tokens.vocab_size, np.int64)
    counts_V[table.keys] = table.sums
    counts_V[list(tokens.special.ids)] = 0
    counts_V[counts_V < minimum] = 0
    if np.count_nonzero(counts_V) < 2:
        raise DataError(
            f"expected tokens that the training split has {minimum} times, found "
            f"{np.count_nonzero(counts_V)}; lower pretrain.minimum_count, or add text"
        )
    return counts_V


PassesFit = FitConfig[AsynchronousConfig | CooccurrenceConfig]


@dataclass(frozen=True)
class Rounds:
    """A fit in rounds: `learn` takes a round's number and the weights, `measure` the weights."""

    counts: NDArray[np.int64]  # (V,) of tokens
    number: int
    learn: Callable[[int, Weights], Weights]
    measure: Callable[[Weights], Losses]
    began: float  # when counting began, by the monotonic clock


def fit(
    config: PassesFit, artifact: Artifact, output: Folder, context: Context, rounds: Rounds
) -> PretrainSummary:
    """Run the remaining rounds, write `model.safetensors` and the vectors of documents if there are
    any, and return the summary. The seconds of a resumed run include those before. Raises DataError
    for no losses, UserError if they are not finite."""
    settings, tokens = config.pretrain, TokensSummary.of(artifact)
    family = cast(fitting.WeightedFamily, config.model)
    began, first = rounds.began, 0
    if output.exists(_STATE):  # of a killed run
        weights = safetensors.numpy.load(output.read_bytes(_STATE))
        first = int(weights.pop(_ROUND)[0])
        began = time.monotonic() - float(weights.pop(_SECONDS)[0])
    else:
        weights = family.start(rounds.counts, tokens.documents.train, settings.seed)
    for number in range(first, rounds.number):
        weights = rounds.learn(number, weights)
        progress = {_ROUND: number + 1, _SECONDS: time.monotonic() - began}
        arrays = weights | {name: np.array([value]) for name, value in progress.items()}
        output.write_bytes(_STATE, safetensors.numpy.save(arrays))
        context.report.progress(number + 1, rounds.number)
    total, count = rounds.measure(weights)
    if not count:
        raise DataError(
            "expected sentences with two words or more to measure a loss on, found none; lower "
            "pretrain.minimum_count, or add text"
        )
    if not math.isfinite(total):
        raise UserError("the loss is not finite; lower pretrain.learning_rate")
    model, vectors = family.model(weights, rounds.counts), family.document_vectors(weights)
    solution = fitting.Solution(model, total / count, vectors)
    summary = finish(config, artifact, output, solution, began)
    output.remove(_STATE)
    return summary


def finish(
    config: PassesFit, artifact: Artifact, output: Folder, solution: fitting.Solution, began: float
) -> PretrainSummary:
    """Write `model.safetensors`, and the vectors of documents if there are any."""
    tokens, epochs = TokensSummary.of(artifact), config.pretrain.passes(config.model)
    tensors, loss = solution.model.to_tensors(), solution.loss
    output.write_bytes(MODEL, safetensors.numpy.save(tensors))
    if solution.documents is not None:
        output.write_bytes(DOCUMENTS, safetensors.numpy.save({"documents": solution.documents}))
    parameters = sum(array.size for array in tensors.values() if array.dtype.kind == "f")
    objective = config.objective
    return PretrainSummary(
        fitting=config.pretrain.kind,
        model=config.model,
        objective=objective.name,
        parameters=parameters,
        vocab_size=tokens.vocab_size,
        tokens=tokens.tokens.train * epochs,
        epochs=float(epochs),
        unigram_loss=tokens.unigram_loss,
        final={"loss": loss, objective.tokens.loss_key: loss},
        seconds=time.monotonic() - began,
        headline=f"{parameters / 1e6:.1f} M parameters  {objective.tokens.name.lower()} loss "
        f"{loss:.3f} a {objective.tokens.unit}",
    )


Plan = Sequence[NDArray[Any]]


def pretrain_asynchronously(
    config: FitConfig[AsynchronousConfig], inputs: Inputs, output: Folder, context: Context
) -> PretrainSummary:
    """Read in rounds, write `model.safetensors`, measure. Raises DataError for too little text."""
    began = time.monotonic()
    artifact, settings = inputs["tokens"], config.pretrain
    family = cast(fitting.ReadingFamily, config.model)
    counts_V = count_tokens(artifact, settings, context)
    plan = ray.put(family.plan(counts_V))
    replicas, per_epoch = settings.replicas, settings.rounds_per_epoch
    number_of_rounds = settings.epochs * per_epoch
    task = ray.remote(_read_share)

    def rate(number: int) -> float:
        slope = settings.minimum_rate - settings.learning_rate
        return settings.learning_rate + slope * number / number_of_rounds

    def learn(number: int, weights: Weights) -> Weights:
        shared, rates = ray.put(weights), (rate(number), rate(number + 1))
        first, parts = number % per_epoch * replicas, per_epoch * replicas
        seeds = [int(bits(settings.seed, number, replica)) >> 1 for replica in range(replicas)]
        shares = [_Share("train", first + n, parts, rates, seed) for n, seed in enumerate(seeds)]
        tasks = [task.remote(share, family, artifact, plan, shared) for share in shares]
        return family.average(weights, [weights for weights, _ in ray.get(tasks)])

    def measure(weights: Weights) -> Losses:
        share = _Share("validation", 0, 1, (0.0, 0.0), settings.seed)
        return ray.get(task.remote(share, family, artifact, plan, weights))[1]

    rounds = Rounds(counts_V, number_of_rounds, learn, measure, began)
    return fit(config, artifact, output, context, rounds)


class _Share(NamedTuple):
    """A task's part of a split, one of `parts`, and how to read it."""

    split: str
    number: int
    parts: int
    rates: tuple[float, float]
    seed: int


def _read_share(
    share: _Share, family: fitting.ReadingFamily, artifact: Artifact, plan: Plan, weights: Weights
) -> tuple[Weights, Losses]:
    # Copies, because Ray hands read-only arrays to a task.
    weights = {name: np.array(array) for name, array in weights.items()}
    plan, (first, last) = [np.array(array) for array in plan], share.rates
    losses: list[Losses] = []
    for file, (stretch, begin, end) in enumerate(_stretches(share, family, artifact)):
        rates = (first + (last - first) * begin, first + (last - first) * end)
        seed = int(bits(share.seed, file, 0)) >> 1
        losses.append(family.read(weights, plan, stretch, rates, seed))
    totals, counts = zip((0, 0), *losses, strict=True)
    return weights, (sum(totals), sum(counts))


def _stretches(
    share: _Share, family: fitting.ReadingFamily, artifact: Artifact
) -> Iterator[tuple[fitting.Stretch, float, float]]:
    """Yield what a share has of each file, with the fraction of the share before and after it."""
    files = TokensSummary.of(artifact).split_files(share.split)
    total = sum(row.tokens for row in files)
    low, high = (number * total // share.parts for number in (share.number, share.number + 1))
    tokens = documents = 0  # of the files before
    for row in files:
        if tokens < high and tokens + row.tokens > low:
            whole = family.units(read_text(artifact, row.file, documents))
            starts = whole.starts + tokens
            first, last = (int(unit) for unit in np.searchsorted(starts[:-1], [low, high]))
            begin, end = (starts[[first, last]] - low) / max(1, high - low)
            yield whole._replace(first=first, last=last), begin, end
        tokens += row.tokens
        documents += row.documents


_LEARNING_RATE = 0.05


def pretrain_by_cooccurrence(
    config: FitConfig[CooccurrenceConfig], inputs: Inputs, output: Folder, context: Context
) -> PretrainSummary:
    """Count, then learn from the cells, on which the loss is. Raises DataError for little text."""
    began = time.monotonic()
    artifact, settings = inputs["tokens"], config.pretrain
    tokens = TokensSummary.of(artifact)
    family = cast(fitting.CooccurrenceFamily, config.model)
    counts_V = count_tokens(artifact, settings, context)
    parts, tasks = count_parts(
        artifact, lambda text: family.count(text, counts_V), family.split, family.merge, context
    )
    table = fitting.merge_parts(parts, tasks, family.merge)
    cells = ray.put(family.cells(table, tokens.vocab_size))
    del table
    if isinstance(family, fitting.SolvedFamily | fitting.RefiningFamily):
        remote: Any = ray.remote
        call = remote(lambda solve, *values: solve(*values))
        if isinstance(family, fitting.SolvedFamily):
            values = (cells, counts_V, tokens.documents.train, settings.seed)
            handle = call.remote(family.solve, *values)
        else:
            vectors = load_word_vectors(inputs[INITIAL]).vectors(range(tokens.vocab_size))
            handle = call.remote(family.refine, vectors, cells, counts_V, settings.seed)
        solution: Any = ray.get(handle)
        return finish(config, artifact, output, solution, began)
    learner = cast(fitting.PairsFamily, family)
    epoch = ray.remote(_run_epoch)
    rate = _LEARNING_RATE if settings.learning_rate is None else settings.learning_rate

    def learn(number: int, weights: Weights) -> Weights:
        seed = int(bits(settings.seed, number))
        return ray.get(epoch.remote(learner, cells, weights, rate, seed))[0]

    def measure(weights: Weights) -> Losses:
        return ray.get(epoch.remote(learner, cells, weights, 0.0, 0))[1]

    rounds = Rounds(counts_V, settings.passes(config.model), learn, measure, began)
    return fit(config, artifact, output, context, rounds)


def _run_epoch(
    family: fitting.PairsFamily, cells: Any, weights: Weights, rate: float, seed: int
) -> tuple[Weights, Losses]:
    """Return the weights and losses after one pass over all cells."""
    weights = {name: np.array(array) for name, array in weights.items()}
    cells = [np.array(array) for array in cells]
    order = np.random.default_rng(seed).permutation(len(cells[0]))
    return weights, family.read(weights, cells, order, rate)


_MOST_TOKENS = 50_000  # that the gate is fitted on; it has some two hundred numbers


def pretrain_by_interpolation(
    config: FitConfig[InterpolationConfig], inputs: Inputs, output: Folder, context: Context
) -> PretrainSummary:
    """Fit the gate, write and measure the model. Raises DataError if no document is set aside."""
    began = time.monotonic()
    artifact, objective = inputs["tokens"], config.objective
    tokens = TokensSummary.of(artifact)
    parts = {name: PretrainSummary.of(inputs[name]) for name in ("counts", "network")}
    (end,) = tokens.special.require("end")
    family = cast(fitting.MixingFamily, config.model)
    model: Any = family.mix(
        load_model(inputs["counts"], tokens.special),
        load_model(inputs["network"], tokens.special),
        _draw_unread(artifact, find_tokens(inputs["counts"]), end),
        config.pretrain.seed,
    )
    with output.staged(MODEL) as path:
        fitting.fill_arrays(lambda shapes: create_arrays(path, shapes), model.to_tensors())
    seconds = time.monotonic() - began
    final = measure_held_out(model, artifact, objective)
    nats = final["loss"]
    gains = {name: each.final[objective.tokens.loss_key] - nats for name, each in parts.items()}
    return PretrainSummary(
        fitting=config.pretrain.kind,
        model=config.model,
        objective=objective.name,
        parameters=sum(each.parameters for each in parts.values()),
        vocab_size=tokens.vocab_size,
        tokens=parts["network"].tokens,
        epochs=parts["network"].epochs,
        unigram_loss=tokens.unigram_loss,
        final=dict(final),
        seconds=seconds + sum(each.seconds for each in parts.values()),
        headline=f"validation {objective.tokens.key} {nats:.3f}, {gains['counts']:.2f} below the "
        f"counts and {gains['network']:.2f} below the network  "
        f"{final['bits_per_byte']:.3f} bits per byte",
    )


def _draw_unread(artifact: Artifact, read: Artifact, end: int) -> list[list[int]]:
    """The training documents that are not among those `read`, up to `_MOST_TOKENS`."""
    names = {name for text in read_split(read, "train") for name in text.documents.tolist()}
    unread: list[list[int]] = []
    tokens = 0
    for text in read_split(artifact, "train"):
        for name, document in zip(text.documents.tolist(), split_documents(text, end), strict=True):
            if name not in names and tokens < _MOST_TOKENS:
                unread.append(document)
                tokens += len(document)
    return unread
