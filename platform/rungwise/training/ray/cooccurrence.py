"""Fitting by co-occurrence: Ray Data counts pairs of words, then one task learns from the counts.

    shards ──> counts of pairs ──> cells ──> epoch over all, shuffled ──> next epoch
                                        └──> vectors, where they are calculated at once

V vocabulary
"""

import time
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rungwise.core.randomness import bits
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.core.tokens import TokenisedText
from rungwise.models.fitting import (
    CooccurrenceFamily,
    Losses,
    PairsFamily,
    RefiningFamily,
    Solution,
    SolvedFamily,
    Weights,
    merge_parts,
)
from rungwise.tokenizer.token_stage import TokensSummary
from rungwise.training.fit_config import CooccurrenceConfig, FitConfig
from rungwise.training.initial import INITIAL
from rungwise.training.pretrained import load_word_vectors
from rungwise.training.ray.counts import count_parts
from rungwise.training.ray.rounds import Rounds, copy_arrays, count_tokens, finish, fit, run_threads
from rungwise.training.summary import PretrainSummary

_EPOCHS, _LEARNING_RATE = 25, 0.05


def pretrain_by_cooccurrence(
    config: FitConfig[CooccurrenceConfig],
    inputs: dict[str, Artifact],
    output: Folder,
    context: Context,
) -> PretrainSummary:
    """Count the training split, learn from the cells, write `model.safetensors`. The loss is on the
    cells learnt from. Raises DataError if the corpus is too small."""
    import ray

    began = time.monotonic()
    artifact, settings = inputs["tokens"], config.pretrain
    tokens = TokensSummary.of(artifact)
    family = cast(CooccurrenceFamily, config.model)
    counts_V = count_tokens(artifact, settings, context)

    def count(text: TokenisedText) -> Any:
        return family.count(text, counts_V)

    parts, tasks = count_parts(artifact, count, family.split, family.merge, context)
    table = merge_parts(parts, tasks, family.merge)
    cells = ray.put(family.cells(table, tokens.vocab_size))
    del table
    if isinstance(family, SolvedFamily | RefiningFamily):
        vectors = None
        if INITIAL in inputs:
            vectors = load_word_vectors(inputs[INITIAL]).vectors(range(tokens.vocab_size))
        solve = ray.remote(num_cpus=settings.threads)(_solve)
        counts = (counts_V, tokens.documents.train)
        solution = ray.get(solve.remote(family, vectors, cells, *counts, settings.seed))
        return finish(config, artifact, output, solution, 1, began)
    learner = cast(PairsFamily, family)
    epoch = ray.remote(num_cpus=settings.threads)(_run_epoch)
    rate = _LEARNING_RATE if settings.learning_rate is None else settings.learning_rate

    def learn(number: int, weights: Weights) -> Weights:
        seed = int(bits(settings.seed, number))
        how = (rate, seed, settings.threads)
        return ray.get(epoch.remote(learner, cells, weights, *how))[0]

    def measure(weights: Weights) -> Losses:
        return ray.get(epoch.remote(learner, cells, weights, 0.0, 0, 1))[1]

    epochs = settings.epochs or _EPOCHS
    rounds = Rounds(counts_V, epochs, epochs, learn, measure, began)
    return fit(config, artifact, output, context, rounds)


def _solve(
    family: SolvedFamily | RefiningFamily,
    vectors: NDArray[np.float32] | None,
    cells: Any,
    counts_V: NDArray[np.int64],
    documents: int,
    seed: int,
) -> Solution:
    if isinstance(family, SolvedFamily):
        return family.solve(cells, counts_V, documents, seed)
    assert vectors is not None, "no step of vectors before"
    return family.refine(vectors, cells, counts_V, seed)


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
