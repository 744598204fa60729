"""Error analysis of the first variant on each task, from its predictions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rungwise.core.stages.artifact import Artifact
from rungwise.evaluation.comparison.errors import (
    FILE,
    ClassScores,
    ErrorAnalysis,
    analyse_errors,
    read_predictions,
)
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.report.page import Section
from rungwise.report.variants import input_artifact, select_stage
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import TaskSummary

_CLASSES = 30  # at most, in the table of classes
_CONFUSIONS = 12  # at most, pairs of labels


@dataclass(frozen=True)
class TaskErrors:
    """The errors of the first variant on a task."""

    task: str
    analysis: ErrorAnalysis

    @property
    def confusions(self) -> list[tuple[str, str, int]]:
        """(gold, predicted, count) of the most frequent confusions."""
        return [each for each in self.analysis.confusion if each[0] != each[1]][:_CONFUSIONS]

    @property
    def classes(self) -> Sequence[ClassScores]:
        """The classes with the most examples."""
        return sorted(self.analysis.classes, key=lambda each: -each.gold)[:_CLASSES]


def gather_errors(inputs: Mapping[str, Artifact]) -> list[TaskErrors]:
    """The errors on every task but those of numbers, of the evaluation with all its labels."""
    tasks = []
    for artifact in select_stage(inputs, "evaluate").values():
        evaluation = EvaluateSummary.of(artifact)
        data = input_artifact(artifact, "task", inputs)
        if evaluation.budget is not None or not artifact.folder.exists(FILE):
            continue
        assert data is not None, f"the task {evaluation.task} is not among the stages"
        rows, kind = read_predictions(artifact.folder), task_kind(TaskSummary.of(data).info)
        if not kind.numeric:
            analysis = analyse_errors(rows, next(iter(evaluation.variants)), kind)
            tasks.append(TaskErrors(evaluation.task, analysis))
    return tasks


def write_errors(inputs: Mapping[str, Artifact]) -> Section | None:
    """The section; None if no predictions were kept."""
    errors = gather_errors(inputs)
    if not errors:
        return None
    return Section("errors", "Error analysis", {"errors": errors}, {})
