"""Fitting in rounds, each one or more Ray tasks: saved after every round, resumed from the last.

    tokens ──> counts of words ──> start ──> round, save ──> round, save ──> ... ──> model

A round follows from its number and the weights before it, so a killed and resumed run ends with the
same bytes as an undisturbed one.
"""

import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from rungwise.core.errors import DataError, UserError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.core.tokens import TokenisedText
from rungwise.models.fitting import Losses, Solution, WeightedFamily, Weights, merge_parts
from rungwise.models.ngram_model import SparseSums, merge_sums, split_sums
from rungwise.tokenizer.token_stage import TokensSummary
from rungwise.training.fit_config import AsynchronousConfig, CooccurrenceConfig, FitConfig
from rungwise.training.ray.counts import count_parts
from rungwise.training.summary import PretrainSummary
from rungwise.training.tensor_files import MODEL

DOCUMENTS = "documents.safetensors"  # a row for each training document
_STATE, _ROUND, _SECONDS = ".state.safetensors", "round", "seconds"


def count_tokens(
    artifact: Artifact, settings: AsynchronousConfig | CooccurrenceConfig, context: Context
) -> NDArray[np.int64]:
    """Count each token (V,) of the training split; 0 for special tokens and those below
    `minimum_count`. Raises DataError if fewer than two remain."""
    _warn_if_it_waits(settings.threads, context)
    tokens, minimum = TokensSummary.of(artifact), settings.minimum_count

    def count(text: TokenisedText) -> SparseSums:
        counts = np.bincount(text.ids)
        return SparseSums(np.flatnonzero(counts), counts[counts > 0])

    parts, tasks = count_parts(artifact, count, split_sums, merge_sums, context)
    table = merge_parts(parts, tasks, merge_sums)
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


@dataclass(frozen=True)
class Rounds:
    """A fit in rounds: the functions `learn`, of a round's number and the weights before
    it, and `measure`, of the weights."""

    counts: NDArray[np.int64]  # (V,) of tokens
    number: int
    epochs: int  # passes over the text or its cells
    learn: Callable[[int, Weights], Weights]
    measure: Callable[[Weights], Losses]
    began: float  # when counting began, by the monotonic clock


def fit(
    config: FitConfig[AsynchronousConfig | CooccurrenceConfig],
    artifact: Artifact,
    output: Folder,
    context: Context,
    rounds: Rounds,
) -> PretrainSummary:
    """Run the remaining rounds, write `model.safetensors` and the vectors of documents if there are
    any, and return the summary. The seconds of a resumed run include those before."""
    settings, tokens = config.pretrain, TokensSummary.of(artifact)
    family = cast(WeightedFamily, config.model)
    began, first = rounds.began, 0
    if state := _load_state(output):
        weights, first, seconds = state
        began = time.monotonic() - seconds
    else:
        weights = family.start(rounds.counts, tokens.documents.train, settings.seed)
    for number in range(first, rounds.number):
        weights = rounds.learn(number, weights)
        progress = {_ROUND: number + 1, _SECONDS: time.monotonic() - began}
        arrays = weights | {name: np.array([value]) for name, value in progress.items()}
        output.write_bytes(_STATE, safetensors.numpy.save(arrays))
        context.report.progress(number + 1, rounds.number)
    loss = mean_loss(*rounds.measure(weights))
    model, vectors = family.model(weights, rounds.counts), family.document_vectors(weights)
    solution = Solution(model, loss, vectors)
    summary = finish(config, artifact, output, solution, rounds.epochs, began)
    output.remove(_STATE)
    return summary


def finish(
    config: FitConfig[AsynchronousConfig | CooccurrenceConfig],
    artifact: Artifact,
    output: Folder,
    solution: Solution,
    epochs: int,
    began: float,
) -> PretrainSummary:
    """Write `model.safetensors`, and the vectors of documents if there are any."""
    settings, tokens = config.pretrain, TokensSummary.of(artifact)
    tensors, loss = solution.model.to_tensors(), solution.loss
    output.write_bytes(MODEL, safetensors.numpy.save(tensors))
    if solution.documents is not None:
        output.write_bytes(DOCUMENTS, safetensors.numpy.save({"documents": solution.documents}))
    parameters = sum(array.size for array in tensors.values() if array.dtype.kind == "f")
    objective, threads = config.objective, settings.threads
    warning = "" if threads == 1 else f"  {threads} threads: not repeatable to the bit"
    return PretrainSummary(
        fitting=settings.kind,
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
        f"{loss:.3f} a {objective.tokens.unit}{warning}",
    )


def mean_loss(total: float, count: int) -> float:
    """Return the mean of `count` losses. Raises DataError if there are none, UserError if they are
    not finite."""
    if not count:
        raise DataError(
            "expected sentences with two words or more to measure a loss on, found none; lower "
            "pretrain.minimum_count, or add text"
        )
    if not math.isfinite(total):
        raise UserError("the loss is not finite; lower pretrain.learning_rate")
    return total / count


def run_threads(work: Callable[[Any], Losses], shares: Iterable[Any]) -> Losses:
    """Work on shares in threads; return the sum of their losses."""
    with ThreadPoolExecutor() as pool:
        return sum_losses(pool.map(work, shares))


def sum_losses(losses: Iterable[Losses]) -> Losses:
    totals, counts = zip((0, 0), *losses, strict=True)
    return sum(totals), sum(counts)


def copy_arrays(arrays: Iterable[NDArray[Any]]) -> list[NDArray[Any]]:
    """Copy arrays, because Ray hands read-only ones to a task."""
    return [np.array(array) for array in arrays]


def _warn_if_it_waits(threads: int, context: Context) -> None:
    import ray

    most = max(node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"])
    if threads > most:
        context.report.note(
            f"pretrain.threads is {threads}, and no machine here has more than {most:.0f} CPUs: "
            "this waits for one that has; or lower it"
        )


def _load_state(output: Folder) -> tuple[Weights, int, float] | None:
    """Load the weights of a killed run, the number of its rounds, and their seconds."""
    if not output.exists(_STATE):
        return None
    state = safetensors.numpy.load(output.read_bytes(_STATE))
    return state, int(state.pop(_ROUND)[0]), float(state.pop(_SECONDS)[0])
