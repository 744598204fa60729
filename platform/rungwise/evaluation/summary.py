"""The summary of an evaluation: every score, its mean with an interval, and every difference."""

from __future__ import annotations

from pydantic import Field

from rungwise.core.summary import Part, Summary
from rungwise.evaluation.statistics import Difference, Estimate
from rungwise.finetune import FinetuneConfig
from rungwise.tasks.cutting import CutShare
from rungwise.tasks.examples import ExampleCounts, Kind


class SeedRow(Part):
    """One fine-tuning: a variant with a seed. `epoch` is the one whose weights were kept and
    scored, the last unless the best was asked for; `mix` the weight of every layer where a head
    learnt one; `noise` what `test` is with typing errors, by their rate."""

    variant: str
    seed: int
    epoch: int
    validation: dict[str, float]
    test: dict[str, float]
    mix: tuple[float, ...] | None
    seconds: float
    noise: dict[str, dict[str, float]] = Field(default_factory=dict)


class Selection(Part):
    """The score that selected the settings of a variant, which is not the one to report."""

    score: float
    trial: str
    seed: int


class PretrainingCost(Part):
    """The cost of the weights that a variant began with. Steps and operations are None where they
    were not fitted step by step."""

    objective: str
    steps: int | None
    tokens: int
    flops: float | None
    parameters: int
    fingerprint: str


class VariantResult(Part):
    """A variant on a task: test metrics over seeds, its settings and where they are from, and by
    split what its `sequence_length` cut off; `noise` is the judged metric with typing errors, by
    their rate."""

    estimates: dict[str, Estimate]
    finetune: FinetuneConfig
    selection: Selection | None
    pretraining: PretrainingCost | None  # None from random weights
    cut: dict[str, CutShare]
    noise: dict[str, Estimate] = Field(default_factory=dict)


class PairedDifference(Part):
    """First minus second variant in the judged metric, over pairs that share a seed.

    `seeds` is Student's interval over seeds; `bootstrap` draws test examples as well.
    `error_reduction` is None where the second made no error.
    """

    first: str
    second: str
    seeds: Estimate
    bootstrap: Difference
    error_reduction: float | None


class EvaluateSummary(Summary):
    """Every variant on one task with one number of labelled examples: `budget`, None for all."""

    task: str
    budget: int | None
    kind: Kind
    metric: str  # that a variant is judged by; higher is better
    seeds: tuple[int, ...]
    examples: ExampleCounts
    rows: tuple[SeedRow, ...]
    variants: dict[str, VariantResult]
    differences: tuple[PairedDifference, ...]
    baselines: dict[str, dict[str, float]]
    beats_baselines: bool | None
    chosen: SeedRow

    def scores_of(self, variant: str, split: str = "test") -> list[float]:
        """The judged scores of a variant, one a seed."""
        return [getattr(row, split)[self.metric] for row in self.rows if row.variant == variant]

    def trivial(self) -> dict[str, float]:
        """The scores of the trivial baselines, those that have the judged metric."""
        return {
            name: scores[self.metric]
            for name, scores in self.baselines.items()
            if self.metric in scores
        }

    def best_trivial(self) -> tuple[str, float] | None:
        """The trivial baseline that is hardest to beat, by name and score."""
        return max(self.trivial().items(), key=lambda item: item[1], default=None)
