"""Error analysis of the first variant on each task, from its predictions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rungwise.core.stages.artifact import Artifact
from rungwise.evaluation.comparison.errors import (
    FILE,
    ClassScores,
    ErrorAnalysis,
    ErrorExample,
    analyse_errors,
    compare_errors,
    read_predictions,
)
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.evaluation.suites.section import Panel, plot_value
from rungwise.report import formats, style
from rungwise.report.page import Section
from rungwise.report.variants import input_artifact, select_stage
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import TaskSummary

_CLASSES = 30  # at most, in the table of classes
_CONFUSIONS = 12  # at most, pairs of labels
_CALIBRATED = "right as often as confident"


@dataclass(frozen=True)
class TaskErrors:
    """The errors of the first variant on a task; `other` is the second variant, if any, `both` how
    often each is right, `examples` what only the second gets right."""

    task: str
    analysis: ErrorAnalysis
    other: str | None
    both: Mapping[str, int]
    examples: Sequence[ErrorExample]

    @property
    def confusions(self) -> list[tuple[str, str, int]]:
        """(gold, predicted, count) of the most frequent confusions."""
        return [each for each in self.analysis.confusion if each[0] != each[1]][:_CONFUSIONS]

    @property
    def classes(self) -> Sequence[ClassScores]:
        """The classes with the most examples."""
        return sorted(self.analysis.classes, key=lambda each: -each.gold)[:_CLASSES]


def gather_errors(inputs: Mapping[str, Artifact]) -> list[TaskErrors]:
    """The errors on every task, from the evaluation with all labelled examples."""
    tasks = []
    for artifact in select_stage(inputs, "evaluate").values():
        evaluation = EvaluateSummary.of(artifact)
        data = input_artifact(artifact, "task", inputs)
        if evaluation.budget is not None or not artifact.folder.exists(FILE):
            continue
        assert data is not None, f"the task {evaluation.task} is not among the stages"
        rows, kind = read_predictions(artifact.folder), task_kind(TaskSummary.of(data).info)
        first, *others = evaluation.variants
        both, examples = {}, ()
        if others and not kind.numeric:
            both, examples = compare_errors(rows, first, others[0], kind)
        other = others[0] if both else None
        analysis = analyse_errors(rows, first, kind)
        tasks.append(TaskErrors(evaluation.task, analysis, other, both, examples))
    return tasks


def write_errors(inputs: Mapping[str, Artifact]) -> Section | None:
    """The section; None if no predictions were kept."""
    errors = gather_errors(inputs)
    if not errors:
        return None
    plots = {}
    if panels := [_plot_reliability(each) for each in errors if each.analysis.reliability]:
        looks = {_CALIBRATED: formats.Series(formats.MUTED, "", "--")}
        looks |= {each.analysis.variant: formats.series(0) for each in errors}
        plots["reliability"] = style.draw_panels(panels, looks, columns=2)
    return Section("errors", "Error analysis", {"errors": errors}, plots)


def _plot_reliability(errors: TaskErrors) -> Panel:
    """Accuracy against confidence; the diagonal is perfect calibration."""
    bins = errors.analysis.reliability
    lines = {
        _CALIBRATED: [plot_value(0, 0), plot_value(100, 100)],
        errors.analysis.variant: [plot_value(100 * b.confidence, 100 * b.right) for b in bins],
    }
    return Panel(errors.task, "confidence (%)", "accuracy (%)", lines)
