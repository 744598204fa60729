"""The comparison of a run: its variants, and the evaluations of each task at each label budget.

Stages are identified by kind and fingerprint, never by title: tasks or variants that share a stage
share its artifact, which is listed only under the title of the first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rungwise.core.stages.artifact import Artifact
from rungwise.evaluation.comparison.seeds import input_name
from rungwise.evaluation.comparison.summary import EvaluateSummary, PairedDifference
from rungwise.evaluation.statistics import holm
from rungwise.report.palette import Series, series
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import TaskSummary
from rungwise.tasks.kinds.kind import TaskKind
from rungwise.tuning.record import SweepSummary

Row = dict[str, Any]


@dataclass(frozen=True)
class TaskResult:
    """One task. `task` and `evaluation` summarise its stages with all labelled examples;
    `by_budget` has the evaluation at every number of examples, ascending."""

    name: str
    task: TaskSummary
    evaluation: EvaluateSummary
    by_budget: tuple[EvaluateSummary, ...]

    @property
    def kind(self) -> TaskKind:
        return task_kind(self.task.info)

    @property
    def metric(self) -> str:
        """The metric that variants are judged by; higher is better."""
        return self.evaluation.metric

    @property
    def against_first(self) -> list[PairedDifference]:
        """The task's first variant minus each other one; empty if it has no other."""
        return [pair for pair in self.beside_first if pair.second in self.evaluation.variants]

    @property
    def beside_first(self) -> list[PairedDifference]:
        """The task's first variant minus each other one, then minus each rival."""
        first = next(iter(self.evaluation.variants))
        return [pair for pair in self.evaluation.differences if pair.first == first]

    @property
    def against_rival(self) -> PairedDifference | None:
        """The best variant minus the best rival, by their test scores; None without a rival."""
        variants, rivals = self.evaluation.variants, self.evaluation.rivals
        if not rivals:
            return None
        first = max(variants, key=lambda name: variants[name].estimates[self.metric].mean)
        second = max(rivals, key=lambda name: rivals[name].estimate.mean)
        pairs = {(pair.first, pair.second): pair for pair in self.evaluation.differences}
        return pairs[first, second]

    @property
    def rival_wins(self) -> bool:
        """Whether no variant is above the best rival over seeds and test examples."""
        return self.against_rival is not None and not self.against_rival.bootstrap.low > 0


@dataclass(frozen=True)
class VariantComparison:
    """Everything that was evaluated. The first variant is the one in focus; `rivals` are by their
    short names, and `looks` has the colour, marker and line of each of both."""

    variants: tuple[str, ...]
    rivals: tuple[str, ...]
    tasks: tuple[TaskResult, ...]
    looks: Mapping[str, Series]

    @property
    def p_holm(self) -> dict[str, dict[str, float]]:
        """Bootstrap p-values of a task's first variant against each other and each rival, {task:
        {name: p}}, Holm-corrected as one family over all tasks."""
        pairs = [(task.name, pair) for task in self.tasks for pair in task.beside_first]
        adjusted = holm([pair.bootstrap.p for _, pair in pairs])
        ps: dict[str, dict[str, float]] = {}
        for (task, pair), p in zip(pairs, adjusted, strict=True):
            ps.setdefault(task, {})[pair.second] = p
        return ps

    @property
    def paired_tasks(self) -> list[TaskResult]:
        """The tasks with two variants or more."""
        return [task for task in self.tasks if task.against_first]

    @property
    def evaluations(self) -> list[EvaluateSummary]:
        """Those of every task at every number of labelled examples."""
        return [evaluation for task in self.tasks for evaluation in task.by_budget]

    @property
    def has_budgets(self) -> bool:
        return any(len(task.by_budget) > 1 for task in self.tasks)


def locate(evaluation: EvaluateSummary) -> Row:
    """The first columns of a row about an evaluation."""
    return {
        "task": evaluation.task,
        "train_examples": evaluation.examples.train,
        "all_examples": evaluation.budget is None,
    }


def gather_comparison(inputs: Mapping[str, Artifact]) -> VariantComparison | None:
    """Collect the evaluations of a run; None if there are none."""
    artifacts = select_stage(inputs, "evaluate").values()
    evaluations = [EvaluateSummary.of(artifact) for artifact in artifacts]
    if not evaluations:
        return None
    tasks = []
    for artifact, whole in zip(artifacts, evaluations, strict=True):
        if whole.budget is not None:
            continue
        same = [each for each in evaluations if each.task == whole.task]
        same.sort(key=lambda each: (each.examples.train, each.budget is None))
        data = input_artifact(artifact, "task", inputs)
        assert data is not None, f"the task {whole.task} is not among the stages"
        tasks.append(TaskResult(whole.task, TaskSummary.of(data), whole, tuple(same)))
    # A task may use only some of the variants.
    variants = tuple(dict.fromkeys(name for task in tasks for name in task.evaluation.variants))
    rivals = tuple(dict.fromkeys(name for task in tasks for name in task.evaluation.rivals))
    looks = {name: series(place) for place, name in enumerate((*variants, *rivals))}
    return VariantComparison(variants, rivals, tuple(tasks), looks)


@dataclass(frozen=True)
class VariantSweep:
    """The sweep of one variant on one task. `settings` is the sweep block of the recipe, `look` how
    plots draw the variant."""

    task: str
    variant: str
    look: Series
    summary: SweepSummary
    settings: Mapping[str, Any]


def gather_sweeps(
    inputs: Mapping[str, Artifact], looks: Mapping[str, Series]
) -> list[VariantSweep]:
    """Every sweep of a run, in the order of tasks and variants."""
    sweeps = []
    for artifact in select_stage(inputs, "evaluate").values():
        evaluation = EvaluateSummary.of(artifact)
        for variant in evaluation.variants:
            sweep = input_artifact(artifact, input_name("sweep", variant), inputs)
            if evaluation.budget is None and sweep is not None:
                summary, settings = SweepSummary.of(sweep), sweep.record["config"]["sweep"]
                look = looks[variant]
                sweeps.append(VariantSweep(evaluation.task, variant, look, summary, settings))
    return sweeps


def select_stage(inputs: Mapping[str, Artifact], stage: str) -> dict[str, Artifact]:
    """The artifacts of one kind of stage, by title."""
    return {title: artifact for title, artifact in inputs.items() if artifact.stage == stage}


def input_artifact(
    artifact: Artifact, name: str, inputs: Mapping[str, Artifact]
) -> Artifact | None:
    """The stage of the run that is the input `name` of `artifact`; None if there is none."""
    source = artifact.record["inputs"].get(name)
    if source is None:
        return None
    return next((a for a in inputs.values() if a.fingerprint == source["fingerprint"]), None)
