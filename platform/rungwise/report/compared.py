"""The comparison of a run: its variants, and the evaluations of each task at each label budget.

Stages are found by kind and fingerprint, never by title: tasks or variants that share a stage share
its artifact, which is listed only under the title of the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rungwise.core.stages.artifact import Artifact
from rungwise.evaluation.comparison.compare import input_name
from rungwise.evaluation.comparison.summary import EvaluateSummary, PairedDifference
from rungwise.evaluation.statistics import holm
from rungwise.report.style import Series, series
from rungwise.sweep.record import SweepSummary
from rungwise.tasks.kinds.examples import TaskSummary


@dataclass(frozen=True)
class TaskResult:
    """One task. `task` and `evaluated` summarise its stages with all labelled examples;
    `by_budget` has the evaluation at every number of examples, ascending."""

    name: str
    task: TaskSummary
    evaluated: EvaluateSummary
    by_budget: tuple[EvaluateSummary, ...]

    @property
    def metric(self) -> str:
        """The metric that variants are judged by; higher is better."""
        return self.evaluated.metric

    @property
    def against_first(self) -> list[PairedDifference]:
        """The task's first variant minus each other one; empty if it has no other."""
        first = next(iter(self.evaluated.variants))
        return [row for row in self.evaluated.differences if row.first == first]


@dataclass(frozen=True)
class Compared:
    """Everything that was evaluated. The first variant is the one in focus; `looks` has the colour,
    marker and line of each."""

    variants: tuple[str, ...]
    tasks: tuple[TaskResult, ...]
    looks: Mapping[str, Series]

    @property
    def p_holm(self) -> dict[str, dict[str, float]]:
        """Bootstrap p-values of a task's first variant against each other, {task: {variant: p}},
        Holm-corrected as one family over all tasks."""
        rows = [(task.name, row) for task in self.tasks for row in task.against_first]
        ps: dict[str, dict[str, float]] = {}
        for (task, row), p in zip(rows, holm([row.bootstrap.p for _, row in rows]), strict=True):
            ps.setdefault(task, {})[row.second] = p
        return ps

    @property
    def judged(self) -> list[TaskResult]:
        """The tasks with two variants or more."""
        return [task for task in self.tasks if task.against_first]

    @property
    def has_budgets(self) -> bool:
        return any(len(task.by_budget) > 1 for task in self.tasks)


def gather(inputs: Mapping[str, Artifact]) -> Compared | None:
    """Collect the evaluations of a run; None if there are none."""
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
    # A task may use only some of the variants.
    variants = tuple(dict.fromkeys(name for task in tasks for name in task.evaluated.variants))
    looks = {name: series(place) for place, name in enumerate(variants)}
    return Compared(variants, tuple(tasks), looks)


@dataclass(frozen=True)
class Swept:
    """The sweep of one variant on one task. `settings` is the sweep block of the recipe, `look` how
    plots draw the variant."""

    task: str
    variant: str
    look: Series
    summary: SweepSummary
    settings: Mapping[str, Any]


def sweeps_of(inputs: Mapping[str, Artifact], looks: Mapping[str, Series]) -> list[Swept]:
    """Every sweep of a run, in the order of tasks and variants."""
    sweeps = []
    for artifact in of_stage(inputs, "evaluate").values():
        evaluated = EvaluateSummary.of(artifact)
        for variant in evaluated.variants:
            sweep = input_of(artifact, input_name("sweep", variant), inputs)
            if evaluated.budget is None and sweep is not None:
                summary, settings = SweepSummary.of(sweep), sweep.record["config"]["sweep"]
                sweeps.append(Swept(evaluated.task, variant, looks[variant], summary, settings))
    return sweeps


def of_stage(inputs: Mapping[str, Artifact], stage: str) -> dict[str, Artifact]:
    """The artifacts of one kind of stage, by title."""
    return {title: artifact for title, artifact in inputs.items() if artifact.stage == stage}


def input_of(artifact: Artifact, name: str, inputs: Mapping[str, Artifact]) -> Artifact | None:
    """The stage of the run that is the input `name` of `artifact`; None if there is none."""
    read = artifact.record["inputs"].get(name)
    if read is None:
        return None
    return next((a for a in inputs.values() if a.fingerprint == read["fingerprint"]), None)
