"""Fitting by co-occurrence: Ray Data counts pairs of words, then one task learns from the counts.

    shards ──> counts of pairs ──> cells ──> epoch over all, shuffled ──> next epoch

V vocabulary
"""

from __future__ import annotations

import time
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rungwise.core.randomness import bits
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.models.fitting import Losses, PairsFamily, Weights
from rungwise.models.word_vectors import sparse_sums
from rungwise.models.word_vectors.sparse_sums import SparseSums
from rungwise.pretraining.config import CooccurrenceConfig, FitConfig
from rungwise.pretraining.counts import count_split
from rungwise.pretraining.rounds import Rounds, copy_arrays, count_tokens, fit, run_threads
from rungwise.pretraining.summary import PretrainSummary
from rungwise.tokens.summary import TokensSummary
from rungwise.tokens.text import TokenisedText


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
    counts_V = count_tokens(artifact, settings.minimum_count, context)

    def count(text: TokenisedText) -> SparseSums:
        return family.count(text, counts_V)

    table = count_split(artifact, count, sparse_sums.split_sums, sparse_sums.merge_sums, context)
    cells = ray.put(family.cells(table, TokensSummary.of(artifact).vocab_size))
    del table
    epoch = ray.remote(num_cpus=settings.threads)(_run_epoch)

    def learn(number: int, weights: Weights) -> Weights:
        seed = int(bits(settings.seed, number))
        how = (settings.learning_rate, seed, settings.threads)
        return ray.get(epoch.remote(family, cells, weights, *how))[0]

    def measure(weights: Weights) -> Losses:
        return ray.get(epoch.remote(family, cells, weights, 0.0, 0, 1))[1]

    rounds = Rounds(counts_V, settings.epochs, learn, measure, began)
    return fit(config, artifact, output, context, rounds)


def _run_epoch(
    family: PairsFamily, cells: Any, weights: Weights, rate: float, seed: int, threads: int
) -> tuple[Weights, Losses]:
    """Return the weights and losses after one pass over all cells."""
    weights = dict(zip(weights, copy_arrays(weights.values()), strict=True))
    cells = copy_arrays(cells)
    order = np.random.default_rng(seed).permutation(len(cells[0]))

    def learn(part: NDArray[np.int64]) -> Losses:
        return family.read(weights, cells, part, rate)

    return weights, run_threads(learn, np.array_split(order, threads))
