"""What a run compares: the variants, and what was evaluated of each task at which label budget.

Stages are found by what they are and by fingerprints, never by the form of their titles: two tasks
or variants that share a stage share its artifact, which then stands under the title of the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rungwise.core.artifact import Artifact

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class TaskResult:
    """One task. `task` and `evaluated` are the summaries of its stages with all labelled examples;
    `by_budget` holds those of every number of examples, from few to all."""

    name: str
    task: Summary
    evaluated: Summary
    by_budget: tuple[Summary, ...]

    @property
    def metric(self) -> str:
        """The metric that a variant is judged by; higher is better."""
        return self.evaluated["metric"]

    @property
    def against_first(self) -> list[Summary]:
        """The differences of the first variant from each other one."""
        first = next(iter(self.evaluated["variants"]))
        return [row for row in self.evaluated["differences"] if row["first"] == first]

    def baselines(self, metric: str) -> dict[str, float]:
        """What the trivial baselines score, those that have this metric."""
        return {
            name: scores[metric]
            for name, scores in self.evaluated["baselines"].items()
            if metric in scores
        }

    def best_baseline(self) -> tuple[str, float] | None:
        """The trivial baseline that is hardest to beat, by name and score."""
        return best_of(self.baselines(self.metric))


@dataclass(frozen=True)
class Compared:
    """Everything that was evaluated. The first variant is the one in focus."""

    variants: tuple[str, ...]
    tasks: tuple[TaskResult, ...]

    @property
    def has_budgets(self) -> bool:
        return any(len(task.by_budget) > 1 for task in self.tasks)


def gather(inputs: Mapping[str, Artifact]) -> Compared | None:
    """From the stages of a run; None if it evaluated nothing."""
    evaluated = [found for found in inputs.values() if found.stage == "evaluate"]
    if not evaluated:
        return None
    tasks = []
    for whole in evaluated:
        if whole.summary["budget"] is not None:
            continue
        name = whole.summary["task"]
        same = [found.summary for found in evaluated if found.summary["task"] == name]
        same.sort(key=lambda summary: (_train(summary), summary["budget"] is None))
        data = input_of(whole, "task", inputs)
        assert data is not None, f"the task {name} is not among the stages"
        tasks.append(TaskResult(name, data.summary, whole.summary, tuple(same)))
    return Compared(tuple(tasks[0].evaluated["variants"]), tuple(tasks))


def of_stage(inputs: Mapping[str, Artifact], stage: str) -> dict[str, Artifact]:
    """The stages of one kind by their titles."""
    return {title: found for title, found in inputs.items() if found.stage == stage}


def input_of(artifact: Artifact, name: str, inputs: Mapping[str, Artifact]) -> Artifact | None:
    """What `artifact` read under `name`, found among the stages of the run; None if it is not."""
    read = artifact.record["inputs"].get(name)
    if read is None:
        return None
    return next((a for a in inputs.values() if a.fingerprint == read["fingerprint"]), None)


def scores_of(evaluated: Summary, variant: str, metric: str, split: str = "test") -> list[float]:
    """The scores of a variant, one a seed."""
    return [row[split][metric] for row in evaluated["rows"] if row["variant"] == variant]


def best_of(baselines: Mapping[str, float]) -> tuple[str, float] | None:
    """The highest of some scores with its name, None if there is none."""
    return max(baselines.items(), key=lambda item: item[1], default=None)


def _train(summary: Summary) -> int:
    return summary["examples"]["train"]
