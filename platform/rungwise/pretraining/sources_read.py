"""How much of each source a run read, derived from its last position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from rungwise.core.stages.artifact import Artifact
from rungwise.instances.summary import InstancesSummary
from rungwise.models.family import Family
from rungwise.pretraining.summary import SourceRead
from rungwise.training.config import GradientConfig
from rungwise.training.curriculum import order_of, steps_read


def sources_read(
    model: Family,
    settings: GradientConfig,
    turns: Sequence[tuple[int, Artifact]],
    steps: int,
    tokens: int,
) -> tuple[SourceRead, ...]:
    """Count what the first `steps` steps, of `tokens` tokens in all, read of each source.

    Instances are exact. Tokens are divided by the mean length of a source's instances, which is
    exact after whole epochs.
    """
    instances: Counter[str] = Counter()
    lengths: Counter[str] = Counter()
    epochs: dict[str, float] = {}
    for count, artifact in steps_read(turns, steps):
        summary = InstancesSummary.of(artifact)
        files, there = summary.files_of("train"), summary.instances_by_source("train")
        names = sorted(there)
        groups = np.array([names.index(row.source) for row in files])
        order = order_of(model, settings, summary)
        rows = order.rows_read(count * settings.global_batch_size, groups).tolist()
        for name, read in zip(names, rows, strict=True):
            held = sum(row.tokens for row in files if row.source == name)
            instances[name] += read
            lengths[name] += read * held // max(1, there[name])
            epochs[name] = epochs.get(name, 0.0) + read / max(1, there[name])
    return tuple(
        SourceRead(
            source=name,
            instances=instances[name],
            tokens=tokens * lengths[name] // max(1, lengths.total()),
            epochs=epochs[name],
        )
        for name in sorted(epochs)
    )
