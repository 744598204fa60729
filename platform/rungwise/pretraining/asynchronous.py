"""Asynchronous fitting: words are read one after the other, each a step, by one model or several.

    round ──┬──> replica 0 reads its share of the text ──┬──> average ──> next round
            └──> replica 1, on any machine ──────────────┘

The text of an epoch is cut by tokens into a stretch for each round and replica, sentences whole; a
task maps the files of its stretch into memory. Parameter mixing: McDonald et al. 2010,
"Distributed Training Strategies for the Structured Perceptron".

V vocabulary
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, cast

import numpy as np
import ray
from numpy.typing import NDArray

from rungwise.core.artifact import Artifact
from rungwise.core.context import Context
from rungwise.core.randomness import bits
from rungwise.core.storage import Folder
from rungwise.models.word_vectors import Stretch, Weights
from rungwise.pretraining.config import AsynchronousConfig, PretrainStageConfig
from rungwise.pretraining.rounds import (
    Losses,
    WeightedFamily,
    fit,
    in_threads,
    word_counts,
    writable,
)
from rungwise.pretraining.summary import PretrainSummary
from rungwise.tokens.summary import TokensRow, TokensSummary
from rungwise.tokens.text import TokensFile


class ReadingFamily(WeightedFamily, Protocol):
    """A family that learns while it reads."""

    def plan(self, counts_V: NDArray[np.int64]) -> Sequence[NDArray[Any]]:
        """Tables that reading needs and that follow from the counts of words."""
        ...

    def read(
        self,
        weights: Weights,
        plan: Sequence[NDArray[Any]],
        text: Stretch,
        rates: tuple[float, float],
        seed: int,
    ) -> Losses:
        """Learn from sentences, the weights in place, the rate going from the first to the second;
        with rates of 0 measure only."""
        ...


def pretrain_asynchronously(
    config: PretrainStageConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> PretrainSummary:
    """Read the training split in rounds, leave `model.safetensors`, measure on held-out text.

    Raises DataError if the corpus is too small.
    """
    artifact, settings = inputs["tokens"], config.pretrain
    assert isinstance(settings, AsynchronousConfig)
    family, per_epoch = cast(ReadingFamily, config.model), settings.rounds_per_epoch
    counts_V = word_counts(artifact, settings.minimum_count, context)
    plan, rounds = ray.put(family.plan(counts_V)), settings.epochs * per_epoch
    slope = settings.minimum_rate - settings.learning_rate

    def rate(number: int) -> float:
        return settings.learning_rate + slope * number / rounds

    def take(number: int, weights: Weights) -> Weights:
        read = ray.remote(num_cpus=settings.threads)(_read)
        shared, rates = ray.put(weights), (rate(number), rate(number + 1))
        tasks = []
        for replica in range(settings.replicas):
            share = (
                number % per_epoch * settings.replicas + replica,
                per_epoch * settings.replicas,
            )
            seed = int(bits(settings.seed, number, replica)) >> 1
            tasks.append(
                read.remote(
                    *(family, artifact, "train", share, plan, shared, rates),
                    *(seed, settings.threads),
                )
            )
        return _mean([weights for weights, _ in ray.get(tasks)])

    def losses(weights: Weights) -> Losses:
        read = ray.remote(num_cpus=1)(_read)
        at = (family, artifact, "validation", (0, 1), plan, weights, (0.0, 0.0), settings.seed, 1)
        return ray.get(read.remote(*at))[1]

    return fit(
        config,
        artifact,
        output,
        context,
        start=lambda: family.start(counts_V, settings.seed),
        rounds=rounds,
        take=take,
        losses=losses,
    )


def _read(
    family: ReadingFamily,
    artifact: Artifact,
    split: str,
    share: tuple[int, int],  # which stretch, of how many
    plan: Sequence[NDArray[Any]],
    weights: Weights,
    rates: tuple[float, float],
    seed: int,
    threads: int,
) -> tuple[Weights, Losses]:
    """Read one stretch of a split; the weights after it."""
    weights = dict(zip(weights, writable(weights.values()), strict=True))
    plan = writable(plan)

    def learn(part: tuple[Stretch, tuple[float, float], int]) -> Losses:
        return family.read(weights, plan, *part)

    found: list[Losses] = []
    files = TokensSummary.of(artifact).files_of(split)
    for number, (stretch, begin, end) in enumerate(_stretches(artifact, files, share)):
        first, last = (rates[0] + (rates[1] - rates[0]) * done for done in (begin, end))
        # Threads share a file, so each goes through the rates of all of it.
        parts = _parts(stretch, threads)
        seeds = [int(bits(seed, number, part)) >> 1 for part in range(len(parts))]
        found.append(
            in_threads(
                learn, [(part, (first, last), at) for part, at in zip(parts, seeds, strict=True)]
            )
        )
    return weights, (sum(total for total, _ in found), sum(count for _, count in found))


def _stretches(
    artifact: Artifact, files: Sequence[TokensRow], share: tuple[int, int]
) -> Iterator[tuple[Stretch, float, float]]:
    """The sentences of a share, file by file, with what part of the share has been read when they
    begin and end."""
    number, of = share
    total = sum(row.tokens for row in files)
    low, high = number * total // of, (number + 1) * total // of
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


def _parts(stretch: Stretch, count: int) -> list[Stretch]:
    """A stretch in `count` parts of about as many tokens."""
    ends = stretch.starts[[stretch.first, stretch.last]]
    cuts = np.searchsorted(stretch.starts, np.linspace(ends[0], ends[1], count + 1)).tolist()
    cuts[0], cuts[-1] = stretch.first, stretch.last
    return [stretch._replace(first=a, last=b) for a, b in itertools.pairwise(cuts)]


def _mean(replicas: Sequence[Weights]) -> Weights:
    """The average of each array, added up in the order of the replicas."""
    if len(replicas) == 1:
        return replicas[0]
    return {
        name: np.mean([weights[name] for weights in replicas], axis=0, dtype=np.float32)
        for name in replicas[0]
    }
