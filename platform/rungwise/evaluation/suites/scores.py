"""The values that suites gave for a rung, with intervals over items and seeds of pretraining."""

import math
from collections.abc import Sequence

from pydantic import Field

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.summary import Summary, SummaryPart
from rungwise.evaluation.statistics import Estimate
from rungwise.evaluation.suites.items import ItemKey, Items, decode_items, estimate_items

ITEMS = "items.parquet"


class SuiteScore(SummaryPart):
    """A value with its 95 % interval over `count` items, None if that is unknown; `group` is None
    for all items."""

    suite: str
    part: str
    metric: str
    group: str | None
    value: float
    low: float | None
    high: float | None
    count: int

    @property
    def estimate(self) -> Estimate:
        low, high = (math.nan if bound is None else bound for bound in (self.low, self.high))
        return Estimate(self.value, low, high, self.count)


class MeasureSummary(Summary):
    """All values; `passed_over`: for each skipped suite, what the rung lacks; seconds by suite.
    `transductive`: for each suite, how many of its texts a model with vectors of documents has read
    in training, without their labels."""

    scores: tuple[SuiteScore, ...]
    passed_over: dict[str, str]
    seconds: dict[str, float]
    transductive: dict[str, int] = Field(default_factory=dict)

    def value(self, suite: str, metric: str, part: str = "") -> SuiteScore | None:
        key = (suite, part, metric, None)
        return next(
            (row for row in self.scores if (row.suite, row.part, row.metric, row.group) == key),
            None,
        )


def read_items(artifact: Artifact) -> dict[ItemKey, Items]:
    """The items of a finished stage by key."""
    return {items.key: items for items in decode_items(artifact.folder.read_bytes(ITEMS))}


def merge_seeds(measured: Sequence[Artifact]) -> MeasureSummary:
    """The measurements of a rung with all its seeds of pretraining as one: means over the seeds,
    with intervals that cover their luck."""
    summary = MeasureSummary.of(measured[0])
    if len(measured) == 1:
        return summary
    seeds = [read_items(each) for each in measured]
    scores = [score for key in seeds[0] for score in score_items([each[key] for each in seeds])]
    return summary.model_copy(update={"scores": tuple(scores)})


def score_items(seeds: Sequence[Items]) -> list[SuiteScore]:
    """The values of all items, then of each group; one `Items` per seed of pretraining."""
    first = seeds[0]
    groups = sorted(set(first.groups) - {""})
    scores = []
    for group in (None, *groups):
        estimate = estimate_items(
            seeds if group is None else [each.select_group(group) for each in seeds]
        )
        scores.append(
            SuiteScore(
                suite=first.suite,
                part=first.part,
                metric=first.metric,
                group=group,
                value=estimate.mean,
                low=None if math.isnan(estimate.low) else estimate.low,
                high=None if math.isnan(estimate.high) else estimate.high,
                count=estimate.count,
            )
        )
    return scores
