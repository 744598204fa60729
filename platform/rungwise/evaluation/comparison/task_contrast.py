"""Contrasts of variants on tasks, with the luck of examples, of fine-tuning and of pretraining.

    evaluate of each task and label budget ──> Runs of each variant ──> contrast_tasks ──> Contrast

A variant's runs are seeds of fine-tuning, several for each of its pretrainings. Variants that share
pretrainings (a model tuned and the same model frozen) share their luck; so do runs at several label
budgets, and on several tasks. With one pretraining, runs on a task are paired by their seed of
fine-tuning, and what is lucky on one task is not on another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.summary import SummaryPart
from rungwise.evaluation.comparison.predictions import run_sums
from rungwise.evaluation.comparison.summary import EvaluateSummary, independent_scores
from rungwise.evaluation.statistics import Contrast, Estimate, combine, example_variance
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import TaskSummary
from rungwise.tasks.kinds.kind import TaskKind
from rungwise.tasks.scoring.metrics import metric_range

Term = tuple[float, "Runs"]  # a weight and what it weighs


@dataclass(frozen=True)
class Runs:
    """The runs of a variant on a task: sums (P S, N, k) seed by seed of each pretraining, of which
    `kind` gives the metric. `pretrained` is the fingerprint of the first one; None for random
    weights."""

    variant: str
    kind: TaskKind
    sums: NDArray[np.float64]
    pretrainings: int
    pretrained: str | None

    def values(self) -> list[float]:
        """Scores without a common luck: per pretraining, or per seed if there is one."""
        return independent_scores(
            self.kind.value(self.sums.sum(axis=1)).tolist(), self.pretrainings
        )


def read_runs(evaluation: Artifact, task: Artifact) -> dict[str, Runs]:
    """The runs of every variant of an evaluation."""
    summary, kind = EvaluateSummary.of(evaluation), task_kind(TaskSummary.of(task).info)
    sums = run_sums(evaluation, task)
    runs = {}
    for name, variant in summary.variants.items():
        seeds = [row.seed for row in summary.rows if row.variant == name]
        runs[name] = Runs(
            variant=name,
            kind=kind,
            sums=np.stack([sums[name, seed] for seed in seeds]),
            pretrainings=summary.pretrainings(name),
            pretrained=variant.pretraining and variant.pretraining.fingerprint,
        )
    return runs


def contrast_tasks(tasks: Sequence[Sequence[Term]]) -> Contrast:
    """A weighted sum of scores, averaged over tasks. The terms of a task are on the same examples.
    Raises ValueError without tasks."""
    if not tasks:
        raise ValueError("expected at least one task to contrast, found none")
    groups: dict[str, NDArray[np.float64]] = {}
    names: dict[str | None, str] = {}
    examples = []
    for place, terms in enumerate(tasks):
        weights = np.array([weight / len(runs.sums) for weight, runs in terms for _ in runs.sums])
        kind = terms[0][1].kind
        variance = example_variance(
            np.concatenate([runs.sums for _, runs in terms]),
            lambda totals, w=weights, k=kind: k.value(totals) @ w,
            seed=place,
        )
        examples.append((variance / len(tasks) ** 2, terms[0][1].sums.shape[1]))
        for weight, runs in terms:
            own = weight / len(tasks) * np.array(runs.values())
            group = _find_group(runs, names) if runs.pretrainings > 1 else f"task {place}"
            groups[group] = groups.get(group, 0.0) + own
    trainings = [group.tolist() for group in groups.values()]
    return combine(sum(float(np.mean(each)) for each in trainings), trainings, examples)


def _find_group(runs: Runs, names: dict[str | None, str]) -> str:
    """The group whose luck runs of several pretrainings share: that of the variant on other tasks,
    or of another use of its weights. `names` has the groups of variants and weights so far."""
    group = names.get(runs.variant) or names.get(runs.pretrained) or runs.variant
    names[runs.variant] = group
    if runs.pretrained is not None:
        names[runs.pretrained] = group
    return group


class TaskMean(SummaryPart):
    """The judged score of a variant averaged over tasks, and how far it is behind the best one,
    with 95 % intervals; the best one is behind by None."""

    mean: Estimate
    behind: Estimate | None
    pretrainings: int


def average_tasks(tasks: Mapping[str, Mapping[str, Runs]]) -> dict[str, TaskMean]:
    """The mean of every variant that was tried on all tasks, the best first."""
    common = set.intersection(*(set(runs) for runs in tasks.values())) if tasks else set()
    bounds = [metric_range(next(iter(runs.values())).kind.info.metric) for runs in tasks.values()]
    means = {
        variant: contrast_tasks([[(1.0, runs[variant])] for runs in tasks.values()])
        for variant in common
    }
    order = sorted(means, key=lambda variant: -means[variant].mean)
    averages = {}
    for variant in order:
        mean, best, behind = means[variant], order[0], None
        if variant != best:
            behind = contrast_tasks(
                [[(1.0, runs[best]), (-1.0, runs[variant])] for runs in tasks.values()]
            ).estimate()
        low, high = (sum(each) / len(each) for each in zip(*bounds, strict=True))
        averages[variant] = TaskMean(
            mean=mean.estimate(low, high),
            behind=behind,
            pretrainings=next(iter(tasks.values()))[variant].pretrainings,
        )
    return averages
