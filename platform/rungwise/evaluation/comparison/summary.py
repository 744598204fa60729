"""The summary of an evaluation: scores, means with intervals, differences."""

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from rungwise.core.lazy import LazyFunction
from rungwise.core.stages.stage import StageType
from rungwise.core.stages.summary import Summary, SummaryPart
from rungwise.evaluation.statistics import Difference, Estimate
from rungwise.finetune import FinetuneConfig
from rungwise.tasks.data.cutting import CutShare
from rungwise.tasks.kinds.examples import ExampleCounts, Kind


class SeedRow(SummaryPart):
    """One fine-tuning run, of the n-th `pretraining` of its variant. `epoch` is the epoch kept and
    scored (the last unless the best was asked for), `mix` the learned layer weights, `noise` the
    test metrics by rate of typing errors."""

    variant: str
    seed: int
    epoch: int
    validation: dict[str, float]
    test: dict[str, float]
    mix: tuple[float, ...] | None
    seconds: float
    noise: dict[str, dict[str, float]] = Field(default_factory=dict)
    pretraining: int = 0


class Selection(SummaryPart):
    """The validation score that selected a variant's settings; biased, so not one to report."""

    score: float
    trial: str
    seed: int


class PretrainingCost(SummaryPart):
    """The cost of a variant's pretraining; steps and FLOPs are None without gradient steps."""

    objective: str
    steps: int | None
    tokens: int
    flops: float | None
    parameters: int
    fingerprint: str


class Overlap(SummaryPart):
    """How many test examples stand in the training split and in the pretraining text (None: the
    text is not below the same root), and the judged score on all others, if there are any."""

    training: int
    pretraining: int | None
    score: float | None = None


class VariantResult(SummaryPart):
    """A variant on a task. `cut` is by split what `sequence_length` truncated; `noise` is the
    judged metric by rate of typing errors; `overlap` is for all labels only."""

    estimates: dict[str, Estimate]
    finetune: FinetuneConfig
    selection: Selection | None
    pretraining: PretrainingCost | None  # None from random weights
    cut: dict[str, CutShare]
    noise: dict[str, Estimate] = Field(default_factory=dict)
    overlap: Overlap | None = None


class RivalResult(SummaryPart):
    """A rival on a task, by its `name` in sentences. `strength` is the inverse of its
    regularisation, chosen on validation; `estimate` is the judged test score with its interval over
    test examples, since it has no seeds; `noise` is the score by rate of typing errors."""

    name: str
    strength: float
    validation: dict[str, float]
    test: dict[str, float]
    estimate: Estimate
    noise: dict[str, float]
    seconds: float


class PairedDifference(SummaryPart):
    """First minus second variant, or rival, in the judged metric. `seeds` is Student's t interval
    over paired pretrainings, or over paired seeds of fine-tuning if there is one of each;
    `bootstrap` resamples test examples too."""

    first: str
    second: str
    seeds: Estimate
    bootstrap: Difference
    error_reduction: float | None  # None if the second made no error


def independent_scores(scores: Sequence[float], pretrainings: int) -> list[float]:
    """The scores of runs, seed by seed of each pretraining, as values without a common luck: their
    mean per pretraining if there are several, else the scores themselves."""
    if pretrainings == 1:
        return list(scores)
    return np.reshape(scores, (pretrainings, -1)).mean(axis=1).tolist()


class EvaluateSummary(Summary):
    """All variants and rivals on one task at one label `budget` (None: all labels). `seeds` are
    those of fine-tuning, for one pretraining."""

    task: str
    budget: int | None
    kind: Kind
    metric: str  # the judged metric; higher is better
    seeds: tuple[int, ...]
    examples: ExampleCounts
    rows: tuple[SeedRow, ...]
    variants: dict[str, VariantResult]
    differences: tuple[PairedDifference, ...]
    baselines: dict[str, dict[str, float]]
    beats_baselines: bool | None
    chosen: SeedRow
    rivals: dict[str, RivalResult] = Field(default_factory=dict)  # by their short names

    def scores(self, variant: str, split: str = "test") -> list[float]:
        """The judged scores of a variant, one per run: seed by seed of each pretraining."""
        return [getattr(row, split)[self.metric] for row in self.rows if row.variant == variant]

    def estimates(self) -> dict[str, Estimate]:
        """The judged score of every variant, then of every rival."""
        variants = {name: each.estimates[self.metric] for name, each in self.variants.items()}
        return variants | {name: each.estimate for name, each in self.rivals.items()}

    def met_before(self) -> dict[str, Overlap]:
        """The overlaps of the variants, if any variant has met a test example before."""
        overlaps = {name: each.overlap for name, each in self.variants.items() if each.overlap}
        some = any(each.training or each.pretraining for each in overlaps.values())
        return overlaps if some else {}

    def pretrainings(self, variant: str) -> int:
        """How many pretrainings of a variant were fine-tuned."""
        return len({row.pretraining for row in self.rows if row.variant == variant})

    def pair_scores(self, first: str, second: str) -> tuple[list[float], list[float]]:
        """The independent scores of two variants, one per pretraining that both have; one per seed
        if they have one in common. A rival has the same score beside each."""
        if second in self.rivals:
            own = independent_scores(self.scores(first), self.pretrainings(first))
            return own, [self.rivals[second].estimate.mean] * len(own)
        ours, others = self.scores(first), self.scores(second)
        both = min(self.pretrainings(first), self.pretrainings(second))
        runs = min(len(ours), len(others))
        return independent_scores(ours[:runs], both), independent_scores(others[:runs], both)

    def trivial(self) -> dict[str, float]:
        """The scores of the trivial baselines that have the judged metric."""
        return {
            name: scores[self.metric]
            for name, scores in self.baselines.items()
            if self.metric in scores
        }

    @property
    def caution(self) -> str:
        """The baselines that the kept model is not shown to be above: the best trivial one, the
        best rival, and the same model from random weights."""
        name = self.chosen.variant
        own = self.variants[name].estimates[self.metric]
        low = own.mean if own.count == 1 else own.low
        faults = []
        if (best := self.best_trivial()) and not low > best[1]:
            faults.append(f"the trivial baseline {best[0]} ({best[1]:.3f})")
        if (rival := self.best_rival()) and not low > rival.estimate.mean:
            faults.append(f"{rival.name} ({rival.estimate.mean:.3f}, without pretraining)")
        is_pretrained = self.variants[name].pretraining is not None
        for each in self.differences if is_pretrained else ():
            sign = 1 if each.first == name else -1
            other = each.second if sign == 1 else each.first
            if (
                name not in (each.first, each.second)
                or other in self.rivals
                or self.variants[other].pretraining
            ):
                continue
            over = each.bootstrap if each.seeds.count == 1 else each.seeds
            if not min(sign * over.low, sign * over.high) > 0:
                faults.append(f"random weights ({other})")
        if not faults:
            return ""
        return f"{name} ({own.mean:.3f}) is not shown to be above {' or '.join(faults)}"

    def best_trivial(self) -> tuple[str, float] | None:
        return max(self.trivial().items(), key=lambda item: item[1], default=None)

    def best_rival(self) -> RivalResult | None:
        """The rival with the best test score, which is a little too high for having been chosen."""
        return max(self.rivals.values(), key=lambda each: each.estimate.mean, default=None)


EVALUATE = StageType(
    "evaluate",
    13,
    LazyFunction("rungwise.evaluation.comparison.compare:compare_variants"),
    EvaluateSummary,
    resumes=True,
)
