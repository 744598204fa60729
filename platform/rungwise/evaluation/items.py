"""What an evaluation gives of each item, so that any two models can be compared on the same items.

    metric          an item is              its two numbers    value
    perplexity      a document              nats, tokens       exp(sum of nats / tokens)
    bits_per_byte   a document              nats, bytes        sum of nats / ln 2 / bytes
    accuracy        a pair, a question ...  credit, 1          share of the credit
    correlation     a pair of texts         gold, predicted    Spearman's rho

An interval draws items with replacement, and with them the seeds of pretraining where there are
several: a difference is to hold for another test set and for another training (statistics.py).

S seeds, N items, R resamples
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy import stats

from rungwise.core.errors import DataError
from rungwise.evaluation.statistics import Difference, Estimate, bootstrap, paired_bootstrap

_RESAMPLES = 2000


@dataclass(frozen=True)
class Metric:
    """A number made of items. `value` makes it of summed rows (..., 2); None where it is of ranks
    and not of sums."""

    name: str
    higher_is_better: bool
    value: Callable[[NDArray[np.floating]], NDArray[np.floating]] | None = None


METRICS = {
    metric.name: metric
    for metric in (
        Metric("perplexity", False, lambda sums: np.exp(sums[..., 0] / sums[..., 1])),
        Metric("bits_per_byte", False, lambda sums: sums[..., 0] / math.log(2) / sums[..., 1]),
        Metric("accuracy", True, lambda sums: sums[..., 0] / sums[..., 1]),
        Metric("correlation", True),
    )
}


@dataclass(frozen=True)
class Items:
    """The items of one metric on one model.

    `part` sets apart results of one suite, such as the layers of a probe; "" where there is one.
    `groups` are what items may be looked at by, such as the phenomenon of a pair; "" for none.
    """

    suite: str
    metric: str  # a name of METRICS
    names: list[str]  # N, each once
    groups: list[str]  # N
    numbers: NDArray[np.float64]  # (N, 2)
    part: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """Suite, part and metric."""
        return self.suite, self.part, self.metric

    def of_group(self, group: str) -> Items:
        """Those of one group."""
        kept = [index for index, name in enumerate(self.groups) if name == group]
        return Items(
            self.suite,
            self.metric,
            [self.names[index] for index in kept],
            [group] * len(kept),
            self.numbers[kept],
            self.part,
        )


def estimate(seeds: Sequence[Items], seed: int = 0) -> Estimate:
    """The metric of one model with its 95 % interval; one `Items` for each seed of pretraining."""
    metric, numbers = METRICS[seeds[0].metric], _stacked(seeds)
    if metric.value is not None:
        return bootstrap(numbers, metric.value, seed, _RESAMPLES)
    drawn = _rank_correlations(numbers, seed)
    low, high = np.quantile(drawn[1:].mean(axis=1), [0.025, 0.975])
    return Estimate(float(drawn[0].mean()), float(low), float(high), numbers.shape[1])


def difference(first: Sequence[Items], second: Sequence[Items], seed: int = 0) -> Difference:
    """First minus second model on the items that both have, with its 95 % interval.

    Raises DataError where they have none in common.
    """
    names = [name for name in first[0].names if name in set(second[0].names)]
    if not names:
        raise DataError(f"two models have no item of {first[0].suite} in common")
    of_first, of_second = (
        _stacked([_picked(items, names) for items in seeds]) for seeds in (first, second)
    )
    count = min(len(of_first), len(of_second))  # seeds that are paired
    of_first, of_second = of_first[:count], of_second[:count]
    value = METRICS[first[0].metric].value
    if value is not None:
        return paired_bootstrap(of_first, of_second, value, seed, _RESAMPLES)
    drawn = _rank_correlations(of_first, seed) - _rank_correlations(of_second, seed)
    over_seeds = drawn.mean(axis=1)
    low, high = np.quantile(over_seeds[1:], [0.025, 0.975])
    tails = min(np.sum(over_seeds[1:] <= 0), np.sum(over_seeds[1:] >= 0)) + 1
    p = min(1.0, 2 * float(tails) / (_RESAMPLES + 1))
    return Difference(float(over_seeds[0]), float(low), float(high), p)


def write(items: Sequence[Items]) -> bytes:
    """All items as Parquet, a row an item."""
    columns = {
        "suite": [each.suite for each in items for _ in each.names],
        "part": [each.part for each in items for _ in each.names],
        "metric": [each.metric for each in items for _ in each.names],
        "group": [group for each in items for group in each.groups],
        "name": [name for each in items for name in each.names],
        "first": np.concatenate([np.zeros(0), *(each.numbers[:, 0] for each in items)]),
        "second": np.concatenate([np.zeros(0), *(each.numbers[:, 1] for each in items)]),
    }
    table = pa.table(columns)
    for number, name in enumerate(("suite", "part", "metric", "group")):
        table = table.set_column(number, name, table[name].dictionary_encode())
    stream = io.BytesIO()
    pq.write_table(table, stream, compression="zstd")
    return stream.getvalue()


def read(data: bytes) -> list[Items]:
    """The inverse of `write`."""
    table = pq.read_table(io.BytesIO(data))
    columns = {name: table[name].to_pylist() for name in table.column_names}
    numbers = np.stack([table["first"].to_numpy(), table["second"].to_numpy()], axis=1)
    rows: dict[tuple[str, str, str], list[int]] = {}
    keys = zip(columns["suite"], columns["part"], columns["metric"], strict=True)
    for index, key in enumerate(keys):
        rows.setdefault(key, []).append(index)
    return [
        Items(
            suite,
            metric,
            [columns["name"][index] for index in kept],
            [columns["group"][index] for index in kept],
            numbers[kept],
            part,
        )
        for (suite, part, metric), kept in rows.items()
    ]


def _stacked(seeds: Sequence[Items]) -> NDArray[np.float64]:
    """The numbers (S, N, 2) of items that have the same names in the same order."""
    names = seeds[0].names
    return np.stack([_picked(items, names).numbers for items in seeds])


def _picked(items: Items, names: list[str]) -> Items:
    """`items` of these names, in their order. Raises DataError for a name that it lacks."""
    if items.names == names:
        return items
    place = {name: index for index, name in enumerate(items.names)}
    missing = next((name for name in names if name not in place), None)
    if missing is not None:
        raise DataError(
            f"{items.suite}: {missing!r} was measured for one model and not for the other; measure "
            "both with the same config"
        )
    kept = [place[name] for name in names]
    return Items(
        items.suite,
        items.metric,
        names,
        [items.groups[index] for index in kept],
        items.numbers[kept],
        items.part,
    )


def _rank_correlations(numbers: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Spearman's rho (1 + R, S) of the items as they are, then of each resample."""
    count = numbers.shape[1]
    drawn = np.random.default_rng(seed).integers(count, size=(_RESAMPLES, count))
    chosen = np.concatenate([np.arange(count)[None], drawn])
    of_seeds = []
    for rows in numbers:
        gold, predicted = (stats.rankdata(rows[chosen, column], axis=1) for column in (0, 1))
        gold -= gold.mean(axis=1, keepdims=True)
        predicted -= predicted.mean(axis=1, keepdims=True)
        scale = np.sqrt((gold**2).sum(axis=1) * (predicted**2).sum(axis=1))
        of_seeds.append((gold * predicted).sum(axis=1) / np.where(scale == 0, 1.0, scale))
    return np.stack(of_seeds, axis=1)
