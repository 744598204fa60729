"""Results per item, so that any two models can be compared on the same items, and their values.

    metric              item                    two numbers        value
    perplexity          document                nats, tokens       exp(sum of nats / tokens)
    bits_per_byte       document                nats, bytes        sum of nats / ln 2 / bytes
    log_rank            document                ln ranks, words    sum of ln ranks / words
    accuracy            pair, question, ...     credit, 1          mean credit
    correlation         pair of texts           gold, predicted    Spearman's rho
    pearson             pair of texts           gold, predicted    Pearson's r, mean over groups
    tokens_per_second   round                   tokens, seconds    sum of tokens / seconds

U runs (a model and seed), N items, R resamples
"""

import io
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rungwise.core.errors import DataError
from rungwise.core.stages.artifact import Artifact, Summary, SummaryPart
from rungwise.evaluation.statistics import Contrast, Error, Estimate, Range, combine, leave_one_out

_RESAMPLES = 2000

Numbers = NDArray[np.float64]
ItemKey = tuple[str, str, str]  # suite, part, metric
ITEMS = "items.parquet"


@dataclass(frozen=True)
class Metric:
    """A metric over items. `value` maps summed rows (..., 2) to it; None for correlations. One that
    `is_ratio` is averaged by its logarithms."""

    name: str
    higher_is_better: bool
    value: Callable[[NDArray[np.floating]], NDArray[np.floating]] | None = None
    within: Range = (0.0, math.inf)
    is_ratio: bool = False


METRICS = {
    metric.name: metric
    for metric in (
        Metric(
            "perplexity", False, lambda sums: np.exp(sums[..., 0] / sums[..., 1]), is_ratio=True
        ),
        Metric("bits_per_byte", False, lambda sums: sums[..., 0] / math.log(2) / sums[..., 1]),
        Metric("log_rank", False, lambda sums: sums[..., 0] / sums[..., 1]),
        Metric("accuracy", True, lambda sums: sums[..., 0] / sums[..., 1], (0.0, 1.0)),
        Metric("correlation", True, within=(-1.0, 1.0)),
        Metric("pearson", True, within=(-1.0, 1.0)),
        Metric("tokens_per_second", True, lambda sums: sums[..., 0] / sums[..., 1]),
    )
}


@dataclass(frozen=True)
class Items:
    """The items of one metric on one model. `part` separates results of one suite, such as the
    layers of a probe; `groups` are for breakdowns, such as the phenomenon of a pair; "" for none.
    """

    suite: str
    metric: str  # a name of METRICS
    names: list[str]  # N, each once
    groups: list[str]  # N
    numbers: Numbers  # (N, 2)
    part: str = ""

    @property
    def key(self) -> ItemKey:
        return self.suite, self.part, self.metric

    @classmethod
    def of_credit(
        cls, suite: str, part: str, names: list[str], groups: list[str], credit: NDArray[Any]
    ) -> "Items":
        """Items of accuracy, with a credit from 0 to 1 each."""
        numbers = np.stack([credit.astype(np.float64), np.ones(len(credit))], axis=1)
        return cls(suite, "accuracy", names, groups, numbers, part)

    def select(self, places: Sequence[int]) -> "Items":
        return replace(
            self,
            names=[self.names[place] for place in places],
            groups=[self.groups[place] for place in places],
            numbers=self.numbers[list(places)],
        )

    def select_group(self, group: str) -> "Items":
        return self.select([place for place, name in enumerate(self.groups) if name == group])


def estimate_items(seeds: Sequence[Items]) -> Estimate:
    """The metric of one model with its 95 % interval over items and, with one `Items` per seed of
    pretraining, trainings."""
    metric = METRICS[seeds[0].metric]
    if len(seeds) == 1 and metric.value is None:
        (items,) = seeds
        value, draws = _draw_correlations(items, items.numbers[None])
        low, high = np.quantile(draws[:, 0], [0.025, 0.975])
        return Estimate(float(value[0]), float(low), float(high), len(items.names))
    result = contrast([(1.0, seeds)], metric.is_ratio)
    if not metric.is_ratio:
        return result.estimate(*metric.within)
    logs = result.estimate()
    mean, low, high = map(math.exp, (logs.mean, logs.low, logs.high))
    return Estimate(mean, low, high, logs.count)


def contrast(
    terms: Sequence[tuple[float, Sequence[Items]]], log: bool = False, models: Sequence[str] = ()
) -> Contrast:
    """A weighted sum of the metric of several models, with its error, on the items that all have.

    Each term has one `Items` per seed of pretraining; terms of the same of `models` share their
    luck (default: none does). `log` sums logarithms and is ignored for correlations. Raises
    DataError if no item is common, or if a later seed lacks one of the first.
    """
    first, *others = (seeds[0] for _, seeds in terms)
    shared = set(first.names).intersection(*(items.names for items in others))
    if not shared:
        raise DataError(f"the models have no item of {first.suite} in common")
    names = [name for name in first.names if name in shared]
    runs_U = [items for _, seeds in terms for items in seeds]
    weights_U = np.array([weight / len(seeds) for weight, seeds in terms for _ in seeds])
    numbers = np.stack([_numbers_by_name(items, names) for items in runs_U])  # (U, N, 2)
    value = METRICS[first.metric].value
    if value is not None:
        scale = np.log if log else np.asarray
        values_U = scale(value(numbers.sum(axis=1)))
        weights_N = numbers[..., 1].mean(axis=0)
        error = leave_one_out(numbers, lambda sums: scale(value(sums)) @ weights_U, weights_N)
    else:
        shared_items = first.select([first.names.index(name) for name in names])
        values_U, draws = _draw_correlations(shared_items, numbers)
        error = Error(float(np.std(draws @ weights_U, ddof=1)), max(1, len(names) - 1))
    groups: dict[str, NDArray[np.floating]] = {}
    by_term = np.split(values_U, np.cumsum([len(seeds) for _, seeds in terms])[:-1])
    for place, ((weight, _), own) in enumerate(zip(terms, by_term, strict=True)):
        model = models[place] if models else str(place)
        groups[model] = groups.get(model, 0.0) + weight * own
    trainings = [group.tolist() for group in groups.values()]
    return combine(float(weights_U @ values_U), trainings, [error], len(names))


def encode_items(items: Sequence[Items]) -> bytes:
    """Serialise all items as Parquet, one row per item."""
    keys = [each.key for each in items for _ in each.names]
    first, second = np.concatenate([np.zeros((0, 2)), *(each.numbers for each in items)]).T
    columns = {
        **{name: [key[n] for key in keys] for n, name in enumerate(("suite", "part", "metric"))},
        "group": [group for each in items for group in each.groups],
        "name": [name for each in items for name in each.names],
        "first": first,
        "second": second,
    }
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream, compression="zstd")
    return stream.getvalue()


def decode_items(data: bytes) -> list[Items]:
    """The inverse of `encode_items`."""
    table = pq.read_table(io.BytesIO(data))
    numbers = np.stack([table["first"].to_numpy(), table["second"].to_numpy()], axis=1)
    names, groups = table["name"].to_pylist(), table["group"].to_pylist()
    keys = [table[column].to_pylist() for column in ("suite", "part", "metric")]
    items, start = [], 0
    for (suite, part, metric), rows in itertools.groupby(zip(*keys, strict=True)):
        own = slice(start, start + len([*rows]))
        items.append(Items(suite, metric, names[own], groups[own], numbers[own], part))
        start = own.stop
    return items


def _numbers_by_name(items: Items, names: list[str]) -> Numbers:
    """The numbers (N, 2) of these names. Raises DataError if one is missing."""
    if items.names == names:
        return items.numbers
    place = {name: index for index, name in enumerate(items.names)}
    if missing := [name for name in names if name not in place]:
        raise DataError(f"{items.suite}: one seed lacks {missing[0]!r}; measure all alike")
    return items.numbers[[place[name] for name in names]]


def _draw_correlations(items: Items, numbers: Numbers) -> tuple[Numbers, Numbers]:
    """The correlation of each run (U,) from its `numbers` (U, N, 2), and over items drawn within
    the groups that are averaged (R, U)."""
    ranks = items.metric == "correlation"
    groups = np.array([""] * len(items.names) if ranks else items.groups)
    rng, by_group = np.random.default_rng(0), []
    for group in np.unique(groups):
        rows = numbers[:, groups == group]
        count = rows.shape[1]
        resamples = rng.integers(count, size=(_RESAMPLES, count))
        indices = np.concatenate([np.arange(count)[None], resamples])
        by_group.append(np.stack([_correlations(run, indices, ranks) for run in rows], axis=1))
    means = np.mean(by_group, axis=0)
    return means[0], means[1:]


def _correlations(rows: Numbers, indices: NDArray[np.int64], ranks: bool) -> Numbers:
    """Pearson's r, or with `ranks` Spearman's rho, (1 + R,) of rows (N, 2) picked by `indices`
    (1 + R, N); 0 where one side is constant."""
    from scipy.stats import rankdata  # takes most of a second

    gold, predicted = rows[indices, 0], rows[indices, 1]
    if ranks:
        gold, predicted = (rankdata(each, axis=1) for each in (gold, predicted))
    gold = gold - gold.mean(axis=1, keepdims=True)
    predicted = predicted - predicted.mean(axis=1, keepdims=True)
    scale = np.sqrt((gold**2).sum(axis=1) * (predicted**2).sum(axis=1))
    return (gold * predicted).sum(axis=1) / np.where(scale == 0, 1.0, scale)


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
    """All values. `passed_over` says by suite what the rung lacks."""

    scores: tuple[SuiteScore, ...]
    passed_over: dict[str, str]
    seconds: dict[str, float]

    def value(self, suite: str, metric: str, part: str = "") -> SuiteScore | None:
        key = suite, part, metric, None
        rows = (r for r in self.scores if (r.suite, r.part, r.metric, r.group) == key)
        return next(rows, None)


def read_items(artifact: Artifact) -> dict[ItemKey, Items]:
    """The items of a finished stage by key."""
    return {items.key: items for items in decode_items(artifact.folder.read_bytes(ITEMS))}


def merge_seeds(measured: Sequence[Artifact]) -> MeasureSummary:
    """The measurements of a rung with all its seeds of pretraining as one."""
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
        own = seeds if group is None else [each.select_group(group) for each in seeds]
        estimate = estimate_items(own)
        low, high = (None if math.isnan(b) else b for b in (estimate.low, estimate.high))
        fields: dict[str, Any] = dict(zip(("suite", "part", "metric"), first.key, strict=True))
        fields |= {"value": estimate.mean, "low": low, "high": high, "count": estimate.count}
        scores.append(SuiteScore(group=group, **fields))
    return scores
