"""The comparison of a run: its variants, and what was evaluated of each task at which label budget.

Stages are found by what they are and by fingerprints, never by their titles: two tasks or variants
that share a stage share its artifact, which then stands under the title of the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rungwise.core.artifact import Artifact
from rungwise.evaluation.compare import input_name
from rungwise.evaluation.statistics import holm
from rungwise.evaluation.summary import EvaluateSummary, PairedDifference
from rungwise.report.style import Series, series
from rungwise.sweep.record import SweepSummary
from rungwise.tasks.examples import TaskSummary


@dataclass(frozen=True)
class TaskResult:
    """One task. `task` and `evaluated` are the summaries of its stages with all labelled examples;
    `by_budget` holds those of every number of examples, from few to all."""

    name: str
    task: TaskSummary
    evaluated: EvaluateSummary
    by_budget: tuple[EvaluateSummary, ...]

    @property
    def metric(self) -> str:
        """The metric that a variant is judged by; higher is better."""
        return self.evaluated.metric

    @property
    def against_first(self) -> list[PairedDifference]:
        """The differences of the first variant from each other one."""
        first = next(iter(self.evaluated.variants))
        return [row for row in self.evaluated.differences if row.first == first]


@dataclass(frozen=True)
class Compared:
    """Everything that was evaluated. The first variant is the one in focus; `looks` are how plots
    and tables mark each."""

    variants: tuple[str, ...]
    tasks: tuple[TaskResult, ...]
    looks: Mapping[str, Series]

    @property
    def p_holm(self) -> dict[str, dict[str, float]]:
        """The bootstrap's p of the first variant against each other one, {task: {variant: p}}, all
        of them corrected as one family."""
        rows = [(task.name, row) for task in self.tasks for row in task.against_first]
        ps: dict[str, dict[str, float]] = {}
        for (task, row), p in zip(rows, holm([row.bootstrap.p for _, row in rows]), strict=True):
            ps.setdefault(task, {})[row.second] = p
        return ps

    @property
    def has_budgets(self) -> bool:
        return any(len(task.by_budget) > 1 for task in self.tasks)


def gather(inputs: Mapping[str, Artifact]) -> Compared | None:
    """From the stages of a run; None if it evaluated nothing."""
    artifacts = of_stage(inputs, "evaluate").values()
    evaluated = [EvaluateSummary.of(artifact) for artifact in artifacts]
    if not evaluated:
        return None
    tasks = []
    for artifact, whole in zip(artifacts, evaluated, strict=True):
        if whole.budget is not None:
            continue
        same = [each for each in evaluated if each.task == whole.task]
        same.sort(key=lambda each: (each.examples.train, each.budget is None))
        data = input_of(artifact, "task", inputs)
        assert data is not None, f"the task {whole.task} is not among the stages"
        tasks.append(TaskResult(whole.task, TaskSummary.of(data), whole, tuple(same)))
    # A task may try some of them alone.
    variants = tuple(dict.fromkeys(name for task in tasks for name in task.evaluated.variants))
    looks = {name: series(place) for place, name in enumerate(variants)}
    return Compared(variants, tuple(tasks), looks)


@dataclass(frozen=True)
class Swept:
    """The sweep of one variant on one task. `settings` are the sweep block, `look` is that of the
    variant in every plot."""

    task: str
    variant: str
    look: Series
    summary: SweepSummary
    settings: Mapping[str, Any]


def sweeps_of(inputs: Mapping[str, Artifact]) -> list[Swept]:
    """Every sweep of a run, tasks and variants in their order."""
    sweeps = []
    for artifact in of_stage(inputs, "evaluate").values():
        evaluated = EvaluateSummary.of(artifact)
        for place, variant in enumerate(evaluated.variants):
            sweep = input_of(artifact, input_name("sweep", variant), inputs)
            if evaluated.budget is None and sweep is not None:
                summary, settings = SweepSummary.of(sweep), sweep.record["config"]["sweep"]
                sweeps.append(Swept(evaluated.task, variant, series(place), summary, settings))
    return sweeps


def of_stage(inputs: Mapping[str, Artifact], stage: str) -> dict[str, Artifact]:
    """The stages of one kind by their titles."""
    return {title: artifact for title, artifact in inputs.items() if artifact.stage == stage}


def input_of(artifact: Artifact, name: str, inputs: Mapping[str, Artifact]) -> Artifact | None:
    """The input `name` of `artifact` among the stages of the run; None if it is not there."""
    read = artifact.record["inputs"].get(name)
    if read is None:
        return None
    return next((a for a in inputs.values() if a.fingerprint == read["fingerprint"]), None)
