"""The variants of a run: the evaluations of each task at each label budget, and their names."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from rungwise.core.stages.artifact import Artifact
from rungwise.evaluation.comparison.seeds import input_name
from rungwise.evaluation.comparison.summary import EvaluateSummary, PairedDifference
from rungwise.evaluation.statistics import holm
from rungwise.evaluation.suites.base import MeasuredRung
from rungwise.models.config import name_models
from rungwise.report.formats import Series, series, spoken
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import TaskSummary
from rungwise.tasks.kinds.kind import TaskKind
from rungwise.training.summary import PretrainSummary

# Fields of summaries that hold names of variants: as text, as keys, or in terms of a claim.
_NAMED = {"variant", "variants", "first", "second", "minus", "terms", "missing", "averages"}


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
        pairs = [pair for task in self.tasks for pair in task.beside_first]
        adjusted = iter(holm([pair.bootstrap.p for pair in pairs]))
        return {
            task.name: {pair.second: next(adjusted) for pair in task.beside_first}
            for task in self.tasks
        }

    @property
    def paired_tasks(self) -> list[TaskResult]:
        return [task for task in self.tasks if task.against_first]

    @property
    def pretrainings(self) -> int:
        """The most pretrainings that any variant has."""
        evaluations = [task.evaluation for task in self.tasks]
        return max(each.pretrainings(name) for each in evaluations for name in each.variants)


def gather_comparison(inputs: Mapping[str, Artifact]) -> VariantComparison:
    """Collect the evaluations of a run, which may have none."""
    artifacts = select_stage(inputs, "evaluate").values()
    evaluations = [EvaluateSummary.of(artifact) for artifact in artifacts]
    tasks = []
    for artifact, whole in zip(artifacts, evaluations, strict=True):
        if whole.budget is not None:
            continue
        same = [each for each in evaluations if each.task == whole.task]
        same.sort(key=lambda each: (each.examples.train, each.budget is None))
        task = TaskSummary.of(input_artifact(artifact, "task", inputs))
        tasks.append(TaskResult(whole.task, task, whole, tuple(same)))
    # A task may use only some of the variants.
    variants = tuple(dict.fromkeys(name for task in tasks for name in task.evaluation.variants))
    rivals = tuple(dict.fromkeys(name for task in tasks for name in task.evaluation.rivals))
    looks = {name: series(place) for place, name in enumerate((*variants, *rivals))}
    return VariantComparison(variants, rivals, tuple(tasks), looks)


def select_stage(inputs: Mapping[str, Artifact], stage: str) -> dict[str, Artifact]:
    """The artifacts of one kind of stage, by title."""
    return {title: artifact for title, artifact in inputs.items() if artifact.stage == stage}


def input_artifact(artifact: Artifact, name: str, inputs: Mapping[str, Artifact]) -> Artifact:
    """The stage of the run that is the input `name` of `artifact`, by its fingerprint, since tasks
    that share a stage have it under one title. Raises KeyError without such an input."""
    fingerprint = artifact.record["inputs"][name]["fingerprint"]
    return next(each for each in inputs.values() if each.fingerprint == fingerprint)


def name_variants(inputs: Mapping[str, Artifact]) -> dict[str, str]:
    """The names of a run's variants as people write them, by variant."""
    models = {}
    for artifact in select_stage(inputs, "evaluate").values():
        for name in EvaluateSummary.of(artifact).variants:
            source = input_artifact(artifact, input_name("pretrain", name), inputs)
            summary = PretrainSummary.of(source)
            models[name] = summary.model, summary.model.objective(summary.objective)
    return {name: spoken(words) for name, words in name_models(models).items()}


def name_rungs(rungs: Sequence[MeasuredRung]) -> dict[str, str]:
    """The names of a ladder's models as people write them, by variant. Records and files of other
    stages keep the variants' names."""
    models = {
        name: (trained.model, trained.model.objective(trained.objective))
        for rung in rungs
        for trained in [rung.pretrain]
        for name in (rung.name, *rung.also)
    }
    return name_models(models)


def rename_variants(value: Any, names: Mapping[str, str], named: bool = False) -> Any:
    """A summary, or a part of one, with the names of models in the fields that name variants."""
    match value:
        case BaseModel() | TaskResult() | VariantComparison():
            parts = {
                name: rename_variants(part, names, name in _NAMED)
                for name, part in vars(value).items()
            }
            is_model = isinstance(value, BaseModel)
            return value.model_copy(update=parts) if is_model else replace(value, **parts)
        case tuple():
            return tuple(rename_variants(each, names, named) for each in value)
        case dict():
            return {
                rename_variants(key, names, named): rename_variants(each, names)
                for key, each in value.items()
            }
        case str() if named:
            rung, mark, rest = re.fullmatch(r"([^/@]*)([/@]?)(.*)", value).groups()  # pyright: ignore[reportOptionalMemberAccess]
            return f"{names.get(rung, rung)}{mark}{rest}"  # a rung, at a layer or a label budget
    return value
