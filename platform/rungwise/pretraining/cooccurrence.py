"""Fitting by co-occurrence: Ray Data counts pairs of words, then one task learns from the counts.

    shards ──> counts of pairs ──> cells ──> epoch over all, shuffled ──> next epoch

N cells, V vocabulary
"""

from __future__ import annotations

import time
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from rungwise.core.randomness import bits
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.models.word_vectors import sparse_sums
from rungwise.models.word_vectors.sparse_sums import SparseSums
from rungwise.models.word_vectors.vector_family import Weights
from rungwise.pretraining.config import CooccurrenceConfig, FitConfig
from rungwise.pretraining.counts import counted
from rungwise.pretraining.rounds import (
    Losses,
    WeightedFamily,
    fit,
    in_threads,
    word_counts,
    writable,
)
from rungwise.pretraining.summary import PretrainSummary
from rungwise.tokens.summary import TokensSummary
from rungwise.tokens.text import TokenisedText


class PairsFamily(WeightedFamily, Protocol):
    """A family that learns from how often words occur together."""

    def count(
        self, ids: NDArray[Any], starts: NDArray[np.int64], counts_V: NDArray[np.int64]
    ) -> SparseSums:
        """The pairs of one shard of sentences; a word whose count is 0 is left out."""
        ...

    def cells(self, table: SparseSums, vocab_size: int) -> tuple[NDArray[Any], ...]:
        """The cells of all pairs, as arrays (N,)."""
        ...

    def read(self, weights: Weights, cells: Any, order: NDArray[np.int64], rate: float) -> Losses:
        """Learn from cells in this order, updating `weights` in place; only measure at rate 0."""
        ...


def pretrain_by_cooccurrence(
    config: FitConfig[CooccurrenceConfig],
    inputs: dict[str, Artifact],
    output: Folder,
    context: Context,
) -> PretrainSummary:
    """Count the training split, learn from the cells in epochs, write `model.safetensors`. The loss
    is on the cells learnt from. Raises DataError if the corpus is too small."""
    import ray

    began = time.monotonic()
    artifact, settings = inputs["tokens"], config.pretrain
    family = cast(PairsFamily, config.model)
    counts_V = word_counts(artifact, settings.minimum_count, context)

    def count(text: TokenisedText) -> SparseSums:
        return family.count(text.ids, text.starts, counts_V)

    table = counted(artifact, count, sparse_sums.split, sparse_sums.merge, context)
    cells = ray.put(family.cells(table, TokensSummary.of(artifact).vocab_size))
    del table
    epoch = ray.remote(num_cpus=settings.threads)(_epoch)

    def take(number: int, weights: Weights) -> Weights:
        seed = int(bits(settings.seed, number))
        at = (settings.learning_rate, seed, settings.threads)
        return ray.get(epoch.remote(family, cells, weights, *at))[0]

    def losses(weights: Weights) -> Losses:
        return ray.get(epoch.remote(family, cells, weights, 0.0, 0, 1))[1]

    return fit(
        config,
        artifact,
        output,
        context,
        began=began,
        start=lambda: family.start(counts_V, settings.seed),
        rounds=settings.epochs,
        take=take,
        losses=losses,
    )


def _epoch(
    family: PairsFamily, cells: Any, weights: Weights, rate: float, seed: int, threads: int
) -> tuple[Weights, Losses]:
    """The weights and losses after one pass over all cells."""
    weights = dict(zip(weights, writable(weights.values()), strict=True))
    cells = writable(cells)
    order = np.random.default_rng(seed).permutation(len(cells[0]))

    def learn(part: NDArray[np.int64]) -> Losses:
        return family.read(weights, cells, part, rate)

    return weights, in_threads(learn, np.array_split(order, threads))
