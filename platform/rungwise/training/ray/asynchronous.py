"""Asynchronous fitting: words are read one by one, each a step, by one model or several replicas.

    round ──┬──> replica 0 reads its share of the text ──┬──> average ──> next round
            └──> replica 1, on any machine ──────────────┘

The text of an epoch is cut by tokens, between the units of the family, into a stretch for each
round and replica; a task memory-maps the files of its stretch. Parameter mixing: McDonald et al.
2010, "Distributed Training Strategies for the Structured Perceptron".

V vocabulary
"""

import functools
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from rungwise.core.randomness import bits
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.models.fitting import Losses, ReadingFamily, Stretch, Weights
from rungwise.tokenizer.token_stage import TokensSummary
from rungwise.training.fit_config import AsynchronousConfig, FitConfig
from rungwise.training.ray.counts import read_text
from rungwise.training.ray.rounds import (
    Rounds,
    copy_arrays,
    count_tokens,
    fit,
    run_threads,
    sum_losses,
)
from rungwise.training.summary import PretrainSummary

Plan = Sequence[NDArray[Any]]


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
        shares = [
            _Share(
                "train",
                first + replica,
                parts,
                rates,
                int(bits(settings.seed, number, replica)) >> 1,
                settings.threads,
            )
            for replica in range(replicas)
        ]
        tasks = [
            task.options(num_cpus=settings.threads).remote(share, family, artifact, plan, shared)
            for share in shares
        ]
        return family.average(weights, [weights for weights, _ in ray.get(tasks)])

    def measure(weights: Weights) -> Losses:
        share = _Share("validation", 0, 1, (0.0, 0.0), settings.seed, 1)
        return ray.get(task.remote(share, family, artifact, plan, weights))[1]

    rounds = Rounds(counts_V, number_of_rounds, settings.epochs, learn, measure, began)
    return fit(config, artifact, output, context, rounds)


class _Share(NamedTuple):
    """A task's part of a split, one of `parts`, and how to read it."""

    split: str
    number: int
    parts: int
    rates: tuple[float, float]
    seed: int
    threads: int


def _read_share(
    share: _Share, family: ReadingFamily, artifact: Artifact, plan: Plan, weights: Weights
) -> tuple[Weights, Losses]:
    weights = dict(zip(weights, copy_arrays(weights.values()), strict=True))
    plan, (first, last) = copy_arrays(plan), share.rates

    def learn(rates: tuple[float, float], part: tuple[Stretch, int]) -> Losses:
        stretch, seed = part
        return family.read(weights, plan, stretch, rates, seed)

    losses: list[Losses] = []
    for file, (stretch, begin, end) in enumerate(_stretches(share, family, artifact)):
        # Threads share a file, and each goes through the rates of the whole file.
        rates = (first + (last - first) * begin, first + (last - first) * end)
        parts = [
            (part, int(bits(share.seed, file, number)) >> 1)
            for number, part in enumerate(cut(stretch, share.threads))
        ]
        losses.append(run_threads(functools.partial(learn, rates), parts))
    return weights, sum_losses(losses)


def _stretches(
    share: _Share, family: ReadingFamily, artifact: Artifact
) -> Iterator[tuple[Stretch, float, float]]:
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


def cut(stretch: Stretch, count: int) -> list[Stretch]:
    """Cut a stretch into `count` parts of about as many tokens each."""
    ends = stretch.starts[[stretch.first, stretch.last]]
    cuts = np.searchsorted(stretch.starts, np.linspace(ends[0], ends[1], count + 1)).tolist()
    cuts[0], cuts[-1] = stretch.first, stretch.last
    return [stretch._replace(first=a, last=b) for a, b in itertools.pairwise(cuts)]
