"""Asynchronous fitting: words are read one by one, each a step, by one model or several replicas.

    round ──┬──> replica 0 reads its share of the text ──┬──> average ──> next round
            └──> replica 1, on any machine ──────────────┘

The text of an epoch is cut by tokens, between sentences, into a stretch for each round and replica;
a task memory-maps the files of its stretch. Parameter mixing: McDonald et al. 2010, "Distributed
Training Strategies for the Structured Perceptron".

V vocabulary
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from rungwise.core.randomness import bits
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.models.word_vectors.vector_family import Stretch, Weights
from rungwise.pretraining.config import AsynchronousConfig, FitConfig
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
from rungwise.tokens.text import TokensFile


class ReadingFamily(WeightedFamily, Protocol):
    """A family that learns while it reads."""

    def plan(self, counts_V: NDArray[np.int64]) -> Sequence[NDArray[Any]]:
        """Tables that reading needs, derived from the counts of words."""
        ...

    def read(
        self,
        weights: Weights,
        plan: Sequence[NDArray[Any]],
        text: Stretch,
        rates: tuple[float, float],
        seed: int,
    ) -> Losses:
        """Learn from sentences, updating `weights` in place, while the rate goes from the first to
        the second; with rates of 0 only measure."""
        ...


def pretrain_asynchronously(
    config: FitConfig[AsynchronousConfig],
    inputs: dict[str, Artifact],
    output: Folder,
    context: Context,
) -> PretrainSummary:
    """Read the training split in rounds, write `model.safetensors`, measure on held-out text.
    Raises DataError if the corpus is too small."""
    import ray

    began = time.monotonic()
    artifact, settings = inputs["tokens"], config.pretrain
    family = cast(ReadingFamily, config.model)
    counts_V = word_counts(artifact, settings.minimum_count, context)
    plan = ray.put(family.plan(counts_V))
    replicas, per_epoch = settings.replicas, settings.rounds_per_epoch
    rounds = settings.epochs * per_epoch
    read = ray.remote(_read)

    def rate(number: int) -> float:
        slope = settings.minimum_rate - settings.learning_rate
        return settings.learning_rate + slope * number / rounds

    def take(number: int, weights: Weights) -> Weights:
        shared, at = ray.put(weights), (rate(number), rate(number + 1))
        first, of = number % per_epoch * replicas, per_epoch * replicas
        seeds = [int(bits(settings.seed, number, replica)) >> 1 for replica in range(replicas)]
        tasks = [
            read.options(num_cpus=settings.threads).remote(
                _Share("train", first + replica, of, at, seed, settings.threads),
                family,
                artifact,
                plan,
                shared,
            )
            for replica, seed in enumerate(seeds)
        ]
        return mean([weights for weights, _ in ray.get(tasks)])

    def losses(weights: Weights) -> Losses:
        share = _Share("validation", 0, 1, (0.0, 0.0), settings.seed, 1)
        return ray.get(read.remote(share, family, artifact, plan, weights))[1]

    return fit(
        config,
        artifact,
        output,
        context,
        began=began,
        start=lambda: family.start(counts_V, settings.seed),
        rounds=rounds,
        take=take,
        losses=losses,
    )


class _Share(NamedTuple):
    """A task's part of the text, stretch `number` of `of` of a split, and how to read it."""

    split: str
    number: int
    of: int
    rates: tuple[float, float]
    seed: int
    threads: int


def _read(
    share: _Share,
    family: ReadingFamily,
    artifact: Artifact,
    plan: Sequence[NDArray[Any]],
    weights: Weights,
) -> tuple[Weights, Losses]:
    weights = dict(zip(weights, writable(weights.values()), strict=True))
    plan, (first, last) = writable(plan), share.rates

    def learn(part: tuple[Stretch, int], at: tuple[float, float]) -> Losses:
        return family.read(weights, plan, part[0], at, part[1])

    found: list[Losses] = []
    for file, (stretch, begin, end) in enumerate(_stretches(artifact, share)):
        # Threads share a file, and each goes through the rates of the whole file.
        at = (first + (last - first) * begin, first + (last - first) * end)
        each = [
            (part, int(bits(share.seed, file, number)) >> 1)
            for number, part in enumerate(parts(stretch, share.threads))
        ]
        found.append(in_threads(functools.partial(learn, at=at), each))
    return weights, (sum(total for total, _ in found), sum(count for _, count in found))


def _stretches(artifact: Artifact, share: _Share) -> Iterator[tuple[Stretch, float, float]]:
    """The sentences of a share, file by file, with the fraction of it read before and after."""
    files = TokensSummary.of(artifact).files_of(share.split)
    total = sum(row.tokens for row in files)
    low, high = (number * total // share.of for number in (share.number, share.number + 1))
    passed = 0
    for row in files:
        if passed < high and passed + row.tokens > low:
            text = TokensFile(artifact.folder.local(row.file)).text()
            begins = text.starts[:-1] + passed
            first, last = (int(at) for at in np.searchsorted(begins, [low, high]))
            ends = text.starts[[first, last]] + passed
            begin, end = (ends - low) / max(1, high - low)
            yield Stretch(text.ids.astype(np.int32), text.starts, first, last), begin, end
        passed += row.tokens


def parts(stretch: Stretch, count: int) -> list[Stretch]:
    """Split a stretch into `count` parts of about as many tokens each."""
    ends = stretch.starts[[stretch.first, stretch.last]]
    cuts = np.searchsorted(stretch.starts, np.linspace(ends[0], ends[1], count + 1)).tolist()
    cuts[0], cuts[-1] = stretch.first, stretch.last
    return [stretch._replace(first=a, last=b) for a, b in itertools.pairwise(cuts)]


def mean(replicas: Sequence[Weights]) -> Weights:
    """The mean of each array, summed in the order of the replicas."""
    if len(replicas) == 1:
        return replicas[0]
    return {
        name: np.stack([weights[name] for weights in replicas]).mean(axis=0, dtype=np.float32)
        for name in replicas[0]
    }
