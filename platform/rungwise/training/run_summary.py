"""The summary of a finished run by gradient, from what its leading worker brings back."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.training.config import GradientFit
from rungwise.training.curriculum import DataPhase, count_epochs, count_steps
from rungwise.training.initial import build_model, compare_tensors
from rungwise.training.summary import (
    Attempt,
    GradientRun,
    PretrainSummary,
    Prolonged,
    ReadLength,
    SourceRead,
)
from rungwise.training.throughput import COUNTING_RULE, Costs, Progress, totals


@dataclass(frozen=True)
class RunOutcome:
    """The result of the leading worker."""

    progress: Progress
    costs: Costs
    device: str
    bfloat16: bool


def summarise(
    config: GradientFit,
    turns: Sequence[DataPhase],
    initial: Artifact | None,
    outcome: RunOutcome,
    context: Context,
) -> PretrainSummary:
    """Summarise a run."""
    settings, objective, progress = config.pretrain, config.objective, outcome.progress
    compute, instances = context.compute, turns[-1].summary
    model = build_model(config, instances.vocab_size, meta=True)
    parameters = sum(p.numel() for p in model.parameters())
    first, last = progress.validation[0], progress.validation[-1]
    part, pair = objective.tokens, objective.pair
    accuracy = f"  {pair.key} accuracy {last[pair.accuracy_key]:.1%}" if pair else ""
    unigram = f" (unigram {instances.unigram_loss:.2f})" if objective.predicts_text else ""
    before = f" from {first[part.loss_key]:.3f}" if initial else ""
    return PretrainSummary(
        fitting="gradient",
        model=config.model,
        objective=objective.name,
        parameters=parameters,
        vocab_size=instances.vocab_size,
        tokens=progress.tokens,
        epochs=count_epochs(config, turns, progress.step),
        unigram_loss=instances.unigram_loss,
        final=last,
        seconds=progress.seconds,
        began_with=compare_tensors(model, initial) if initial else None,
        gradient=GradientRun(
            steps=progress.step,
            history=tuple(progress.history),
            validation=tuple(progress.validation),
            timings=tuple(progress.timings),
            data=tuple((step, digest) for step, digest in progress.data),
            data_hash=progress.data_hash,
            skipped_steps=tuple(progress.skipped),
            spikes=tuple(progress.spikes),
            prolonged=tuple(Prolonged(**row) for row in progress.prolonged),
            attempts=tuple(Attempt(**row) for row in progress.attempts),
            stopped_early=progress.step < settings.steps,
            device=outcome.device,
            bfloat16=outcome.bfloat16,
            parallel=compute.parallel if progress.attempts[-1]["workers"] > 1 else "one worker",
            lengths=tuple(
                ReadLength(from_step=turn.first_step, sequence_length=turn.length)
                for turn in (turns[:1] if objective.members else turns)
            ),
            sources=count_sources(config, turns, progress.step, progress.tokens),
            flops_per_token=progress.flops / max(1, progress.tokens),
            flops_rule=COUNTING_RULE,
            throughput=totals(progress, outcome.costs),
        ),
        headline=f"{parameters / 1e6:.1f} M parameters  validation {part.key} "
        f"{last[part.loss_key]:.3f}{before}{unigram}{accuracy}",
    )


def count_sources(
    config: GradientFit, turns: Sequence[DataPhase], steps: int, tokens: int
) -> tuple[SourceRead, ...]:
    """Count what the first `steps` steps, of `tokens` tokens in all, read of each source.

    Instances are exact. Tokens are divided by the mean length of a source's instances, which is
    exact after whole epochs.
    """
    instances: Counter[str] = Counter()
    lengths: Counter[str] = Counter()
    epochs: dict[str, float] = {}
    for turn, count in count_steps(turns, steps):
        files = turn.summary.split_files("train")
        sizes = turn.summary.instances_by_source("train")
        names = sorted(sizes)
        groups = np.array([names.index(row.source) for row in files])
        size = turn.config(config).pretrain.global_batch_size
        rows = turn.order(config).rows_read(count * size, groups)
        for name, number in zip(names, rows.tolist(), strict=True):
            whole = sum(row.tokens for row in files if row.source == name)
            instances[name] += number
            lengths[name] += number * whole // max(1, sizes[name])
            epochs[name] = epochs.get(name, 0.0) + number / max(1, sizes[name])
    return tuple(
        SourceRead(
            source=name,
            instances=instances[name],
            tokens=tokens * lengths[name] // max(1, lengths.total()),
            epochs=epochs[name],
        )
        for name in sorted(epochs)
    )
