"""Fitting in rounds, each one or more Ray tasks: saved after every round, resumed from the last.

    tokens ──> counts of words ──> start ──> round, save ──> round, save ──> ... ──> model

A round follows from its number and the weights before it, so a killed and resumed run ends with the
same bytes as an undisturbed one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from rungwise.core.errors import DataError, UserError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.models.word_vectors import sparse_sums
from rungwise.models.word_vectors.sparse_sums import SparseSums
from rungwise.models.word_vectors.vector_family import Weights, WordVectorModel
from rungwise.pretraining.config import AsynchronousConfig, CooccurrenceConfig, FitConfig
from rungwise.pretraining.counts import counted
from rungwise.pretraining.summary import PretrainSummary
from rungwise.tokens.summary import TokensSummary
from rungwise.tokens.text import TokenisedText
from rungwise.training.tensor_files import MODEL

_STATE, _ROUND, _SECONDS = ".state.safetensors", "round", "seconds"
Losses = tuple[float, int]  # their sum, and their number


class WeightedFamily(Protocol):
    """A family whose weights are learnt in rounds."""

    def start(self, counts_V: NDArray[np.int64], seed: int) -> Weights:
        """The weights before the first round; a word whose count is 0 is left out."""
        ...

    def model(self, weights: Weights) -> WordVectorModel:
        """The model of the weights."""
        ...


def word_counts(artifact: Artifact, minimum: int, context: Context) -> NDArray[np.int64]:
    """How often each token (V,) occurs in the training split; 0 for special tokens and those below
    `minimum`. Raises DataError if fewer than two are left."""
    tokens = TokensSummary.of(artifact)

    def count(text: TokenisedText) -> SparseSums:
        found = np.bincount(text.ids)
        return SparseSums(np.flatnonzero(found), found[found > 0])

    table = counted(artifact, count, sparse_sums.split, sparse_sums.merge, context)
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


def fit(
    config: FitConfig[AsynchronousConfig | CooccurrenceConfig],
    artifact: Artifact,
    output: Folder,
    context: Context,
    *,
    began: float,
    start: Callable[[], Weights],
    rounds: int,
    take: Callable[[int, Weights], Weights],
    losses: Callable[[Weights], Losses],
) -> PretrainSummary:
    """Run the remaining rounds, write `model.safetensors`, and return the summary. `began` is when
    counting began, by the monotonic clock; a resumed run has counted before."""
    settings, tokens = config.pretrain, TokensSummary.of(artifact)
    _say_if_it_waits(settings.threads, context)
    if saved := _saved(output):
        weights, done, seconds = saved
        began = time.monotonic() - seconds
    else:
        weights, done = start(), 0
    for number in range(done, rounds):
        weights = take(number, weights)
        at = {_ROUND: number + 1, _SECONDS: time.monotonic() - began}
        state = weights | {name: np.array([value]) for name, value in at.items()}
        output.write_bytes(_STATE, safetensors.numpy.save(state))
        context.report.progress(number + 1, rounds)
    loss = mean_loss(*losses(weights))
    tensors = config.model.model(weights).to_tensors()  # pyright: ignore[reportAttributeAccessIssue]
    output.write_bytes(MODEL, safetensors.numpy.save(tensors))
    parameters = sum(array.size for array in tensors.values())
    output.remove(_STATE)
    objective, threads = config.objective, settings.threads
    again = "" if threads == 1 else f"  {threads} threads: not repeatable to the bit"
    return PretrainSummary(
        fitting=settings.kind,
        model=config.model,
        objective=objective.name,
        parameters=parameters,
        vocab_size=tokens.vocab_size,
        tokens=tokens.tokens.train * settings.epochs,
        epochs=float(settings.epochs),
        unigram_entropy=tokens.unigram_entropy,
        final={"loss": loss, objective.tokens.loss_key: loss},
        seconds=time.monotonic() - began,
        headline=f"{parameters / 1e6:.1f} M parameters  {objective.tokens.name.lower()} loss "
        f"{loss:.3f} a {objective.tokens.unit}{again}",
    )


def mean_loss(total: float, count: int) -> float:
    """The mean of `count` losses. Raises DataError if there are none, UserError if they are not
    finite."""
    if not count:
        raise DataError(
            "expected sentences with two words or more to measure a loss on, found none; lower "
            "pretrain.minimum_count, or add text"
        )
    if not math.isfinite(total):
        raise UserError("the loss is not finite; lower pretrain.learning_rate")
    return total / count


def in_threads(work: Callable[[Any], Losses], shares: Iterable[Any]) -> Losses:
    """Work on shares in threads; returns the sum of their losses."""
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(work, shares))
    return sum(total for total, _ in found), sum(count for _, count in found)


def writable(arrays: Iterable[NDArray[Any]]) -> list[NDArray[Any]]:
    """Copies, because Ray hands read-only arrays to a task."""
    return [np.array(array) for array in arrays]


def _say_if_it_waits(threads: int, context: Context) -> None:
    import ray

    most = max(node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"])
    if threads > most:
        context.report.note(
            f"pretrain.threads is {threads}, and no machine here has more than {most:.0f} CPUs: "
            "this waits for one that has; or lower it"
        )


def _saved(output: Folder) -> tuple[Weights, int, float] | None:
    """The weights of a killed run, the number of rounds done, and their seconds."""
    if not output.exists(_STATE):
        return None
    state = safetensors.numpy.load(output.read_bytes(_STATE))
    seconds = state.pop(_SECONDS, np.zeros(1))  # earlier versions wrote none
    return state, int(state.pop(_ROUND)[0]), float(seconds[0])
