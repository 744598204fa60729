"""Error analysis of the first variant on each task, from its predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rungwise.core.stages.artifact import Artifact
from rungwise.evaluation.comparison import predictions
from rungwise.evaluation.comparison.errors import Errors, Shown, disagreements, errors
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.report import style
from rungwise.report.compared import input_of, of_stage
from rungwise.tasks.kinds.examples import TaskSummary

_CLASSES = 30  # at most, in the table of classes
_CONFUSED = 12  # at most, pairs of labels


@dataclass(frozen=True)
class Erring:
    """The errors of the first variant on a task, and what the second one (if any) gets right."""

    task: str
    seeds: int
    errors: Errors
    other: str | None
    both: Mapping[str, int]
    differ: Sequence[Shown]

    @property
    def confused(self) -> list[tuple[str, str, int]]:
        """(gold, predicted, count) of the most frequent confusions."""
        return [each for each in self.errors.confusion if each[0] != each[1]][:_CONFUSED]

    @property
    def classes(self) -> Sequence[Any]:
        """The classes with the most examples."""
        return sorted(self.errors.classes, key=lambda each: -each.gold)[:_CLASSES]


def gather(inputs: Mapping[str, Artifact]) -> list[Erring]:
    """The errors on every task, from the evaluation with all labelled examples."""
    found = []
    for artifact in of_stage(inputs, "evaluate").values():
        evaluated = EvaluateSummary.of(artifact)
        data = input_of(artifact, "task", inputs)
        if evaluated.budget is not None or not artifact.folder.exists(predictions.FILE):
            continue
        assert data is not None, f"the task {evaluated.task} is not among the stages"
        rows, info = predictions.read(artifact.folder), TaskSummary.of(data).info
        first, *others = evaluated.variants
        both, differ = {}, ()
        if others and info.kind != "regression":
            both, differ = disagreements(rows, first, others[0], info)
        other = others[0] if both else None
        seeds = len(evaluated.seeds)
        found.append(Erring(evaluated.task, seeds, errors(rows, first, info), other, both, differ))
    return found


def reliability(erring: Erring) -> bytes:
    """Reliability diagram: accuracy against confidence; the diagonal is perfect calibration."""
    bins = erring.errors.reliability
    drawn = style.figure(style.HALF)
    axes = drawn.subplots()
    axes.plot([0, 100], [0, 100], color=style.MUTED, linestyle=style.DASHED, linewidth=1.2)
    look = style.series(0)
    sizes = [20 + 180 * each.count / max(b.count for b in bins) for each in bins]
    confidence = [100 * each.confidence for each in bins]
    right = [100 * each.right for each in bins]
    axes.plot(confidence, right, color=look.colour, linewidth=1.4)
    axes.scatter(confidence, right, s=sizes, color=look.colour, alpha=0.75)
    axes.set_xlim(0, 103)
    axes.set_ylim(0, 103)
    style.dress(axes, f"{erring.task}: accuracy by confidence", "confidence (%)", "accuracy (%)")
    return style.png(drawn)


def rows(all_: Sequence[Erring]) -> dict[str, list[dict[str, Any]]]:
    """The full tables by file name, without `.csv`."""
    tables: dict[str, list[dict[str, Any]]] = {"errors_classes": [], "errors_confusion": []}
    tables |= {"errors_reliability": [], "errors_lengths": []}
    for each in all_:
        where = {"task": each.task, "variant": each.errors.variant}
        found = each.errors
        tables["errors_classes"] += [where | asdict(row) for row in found.classes]
        tables["errors_confusion"] += [
            where | {"gold": gold, "said": said, "count": n} for gold, said, n in found.confusion
        ]
        tables["errors_reliability"] += [where | asdict(row) for row in found.reliability]
        tables["errors_lengths"] += [where | asdict(row) for row in found.by_length]
    return {name: table for name, table in tables.items() if table}
