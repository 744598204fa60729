"""Interpolated modified Kneser-Ney smoothing, by one task or by many.

Chen & Goodman 1998 (TR-10-98), equations 20 to 26; sentence starts, discounts, pruning and the
uniform distribution below the unigrams as in kenlm's lmplz (Heafield et al. 2013, "Scalable
Modified Kneser-Ney Language Model Estimation").

The n-grams form a grid. A row has all that end with certain pairs of tokens: what extends an n-gram
to the left, and its suffixes. A column has all that begin with a token of a range: what extends it
to the right. Rows, and columns of one order, are tasks, and pass arrays to each of the next step:

    count       rows       adjusted counts
    discount    columns    each n-gram's discounted share of its context, and the back-off weights
    interpolate rows       probabilities
    arrange     columns    log-probabilities in the order of the trie (ngram_model.py)

Counts are integers, and the floats of a context are added in the order of the trie: any grid gives
the same bits.

N n-grams, O order, V vocabulary, C columns
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rungwise.core.arrays import Bools, Floats, Ints
from rungwise.core.errors import DataError
from rungwise.models.fitting import HERE, Create, Parts, Tasks, Weights, create_arrays
from rungwise.models.ngram_model import (
    Ids,
    NgramLanguageModel,
    Table,
    find_ngrams,
    merge_tables,
    sort_rows,
    sum_runs,
)

_SAMPLES = 16  # tables from which the ranges of columns are chosen


@dataclass(frozen=True)
class Smoothing:
    """How counts become probabilities. `fallback` are the discounts of adjusted counts 1, 2 and 3
    or more where equation 26 fails. An n-gram of order n that occurs at most `prune[n - 1]` times
    (the last holds for longer ones) is left out; its count goes to the back-off weight."""

    fallback: tuple[float, float, float] | None = None
    prune: tuple[int, ...] = (0,)


class _Level(NamedTuple):
    """N-grams of one order that begin with at most one start symbol."""

    ngrams: Ids  # (N, n)
    counts: Ints  # (N,) adjusted
    keep: Bools  # (N,) False for what is pruned
    suffixes: Ints  # (N,) index of the last n - 1 tokens in the level below

    def take(self, rows: Ints) -> "_Level":
        ngrams = np.take(self.ngrams, rows, axis=0)
        return _Level(ngrams, self.counts[rows], self.keep[rows], self.suffixes[:0])


class _Report(NamedTuple):
    """A row's addends to the numbers of the whole corpus."""

    unigrams: Ints  # (V,) adjusted counts
    histograms: Ints  # (O, 6) of adjusted counts 0 to 4, and 5 or more; unigrams have none


def estimate_model(
    table: Table, vocab_size: int, start_id: int, smoothing: Smoothing = Smoothing()
) -> NgramLanguageModel:
    """Estimate the model of a merged table here; see `estimate_tensors`."""
    tensors = estimate_tensors([[table]], vocab_size, start_id, smoothing)
    return NgramLanguageModel.from_tensors(tensors)


def estimate_tensors(
    rows: Parts,
    vocab_size: int,
    start_id: int,
    smoothing: Smoothing,
    tasks: Tasks = HERE,
    create: Create = create_arrays,
) -> Weights:
    """Estimate the arrays of the model of tables partitioned as by `split_table`, with as many
    columns as rows; its order is lower if no sentence is long enough. An id that never occurred
    gets the uniform share, like kenlm's <unk>. Raises DataError if there are no n-grams, an id is
    out of range, or an order needs a missing fallback."""
    samples = [tasks.get(row[0]) for row in rows[:_SAMPLES]]
    longer = samples[0].ngrams.shape[1] - 1  # orders above 1
    bounds = _column_bounds(samples, len(rows), vocab_size)
    ranges = list(pairwise(bounds.tolist()))
    count = (_count_row, vocab_size, start_id, smoothing.prune, bounds)
    reports, joins, *blocks = zip(
        *(tasks.call(2 + len(ranges) * longer, *count, *row) for row in rows), strict=True
    )
    discounts, probability_V = _estimate_unigrams(
        [tasks.get(report) for report in reports], start_id, smoothing
    )
    cells = []  # of columns and, in each, of orders
    for column, bound in enumerate(ranges):
        keys: list[Any] = []
        for n, discounts_4 in enumerate(discounts[1:]):
            how = (_discount, *bound, vocab_size, discounts_4, n)
            cells.append(tasks.call(4 + len(rows), *how, *keys, *blocks[column * longer + n]))
            keys.append(cells[-1][1])
    del blocks
    sizes, tries, logs = [], [], []
    if cells:
        sizes, known, weights, orders, *shares = zip(*cells, strict=True)
        tries = list(zip(known, weights, strict=True))
        del cells
        parts = [
            tasks.call(len(sizes), _interpolate_row, probability_V, join, len(discounts) - 1, *row)
            for join, row in zip(joins, shares, strict=True)
        ]
        del shares
        logs = [
            tasks.call(1, _arrange, order, *part)[0]
            for order, part in zip(orders, zip(*parts, strict=True), strict=True)
        ]
        del parts
    sizes_C = np.reshape([tasks.get(size) for size in sizes], (len(ranges), -1))
    sizes_CO = np.column_stack([np.diff(bounds), sizes_C]).astype(np.int64)
    return _write(tasks, create, discounts, probability_V, start_id, sizes_CO, tries, logs)


def _column_bounds(samples: Sequence[Table], number: int, vocab_size: int) -> Ints:
    """Return the bounds (C + 1,) of ranges of first tokens with about as many n-grams each."""
    words = np.concatenate([table.ngrams[:, 0] for table in samples])
    shares = np.cumsum(np.bincount(words, minlength=vocab_size)) * (number / max(1, len(words)))
    inner = np.searchsorted(shares[:vocab_size], np.arange(1, number))
    return np.unique([0, *inner, vocab_size])


def _count_row(
    vocab_size: int, start_id: int, prune: Sequence[int], bounds: Ints, *tables: Table
) -> tuple[Any, ...]:
    """Return the report; for each order from 2 the permutation by column and the suffixes; and for
    each column and each order from 2 the n-grams."""
    table = merge_tables(tables)
    if (largest := int(table.ngrams.max(initial=0))) >= vocab_size:
        raise DataError(f"expected token ids below vocab_size {vocab_size}, found {largest}")
    unigrams, *longer = _levels(table, start_id, prune)
    counts_V = np.bincount(unigrams.ngrams[:, 0], unigrams.counts, vocab_size).astype(np.int64)
    histograms = [np.bincount(np.minimum(each.counts, 5), minlength=6) for each in longer]
    joins, blocks = [], []
    for level in longer:
        column = np.searchsorted(bounds, level.ngrams[:, 0], side="right") - 1
        order = np.argsort(column, kind="stable")
        joins.append((order, level.suffixes))
        sizes = np.bincount(column, minlength=len(bounds) - 1)
        blocks.append([level.take(part) for part in _split(order, sizes)])
    report = _Report(counts_V, np.array([np.zeros(6, int), *histograms]))
    return report, joins, *(block for column in zip(*blocks, strict=True) for block in column)


def _levels(table: Table, start_id: int, prune: Sequence[int]) -> Iterator[_Level]:
    """Yield the levels of every order, unigrams first. Below the highest order, an n-gram counts
    the distinct tokens before it. One that begins with the start symbol keeps its raw count."""
    ngrams = table.ngrams
    order = ngrams.shape[1]
    differs = np.zeros(len(table), bool)
    differs[:1] = True
    starts = [np.arange(0)]  # by order, where a new n-gram begins in the table
    for column in ngrams.T[::-1]:
        differs[1:] |= column[1:] != column[:-1]
        starts.append(np.flatnonzero(differs))
    index = distinct = np.zeros(len(starts[1]), np.int64)
    for n, here in enumerate(starts[1:], start=1):
        level = ngrams[here, order - n :]
        raw = counts = sum_runs(table.counts, here)
        if n < order:
            place = np.searchsorted(starts[n + 1], here)
            distinct = np.diff(place, append=len(starts[n + 1]))
            counts = np.where(level[:, 0] == start_id, raw, distinct)
        proper = np.ones(len(here), bool) if n == 1 else level[:, 1] != start_id
        suffixes = level[:, 1].astype(np.int64) if n == 2 else index
        keep = raw > prune[min(n, len(prune)) - 1]
        yield _Level(level[proper], counts[proper], keep[proper], suffixes[proper])
        if 1 < n < order:  # of each longer n-gram, the index of this suffix among the proper ones
            index = np.repeat(np.cumsum(proper) - 1, distinct)


def _estimate_unigrams(
    reports: Sequence[_Report], start_id: int, smoothing: Smoothing
) -> tuple[Floats, Floats]:
    """Return the discounts (O, 4) of adjusted counts 0 to 3, and unigram probabilities (V,)."""
    counts_V = np.sum([report.unigrams for report in reports], axis=0)
    words = np.flatnonzero(counts_V)
    counts = counts_V[words]
    if not len(words):
        raise DataError("expected n-grams to estimate a model from, found an empty corpus")
    histograms = np.sum([report.histograms for report in reports], axis=0)
    histograms[0] = np.bincount(np.minimum(counts, 5), minlength=6)
    histograms = histograms[histograms.sum(axis=1) > 0]
    fallback = smoothing.fallback
    discounts = np.array(
        [_discounts(row[1:5].tolist(), n, fallback) for n, row in enumerate(histograms, 1)]
    )
    removed = discounts[0][np.minimum(counts, 3)]
    probability_V = np.full(len(counts_V), removed.sum() / counts.sum() / (len(counts_V) - 1))
    probability_V[words] += (counts - removed) / counts.sum()
    probability_V[start_id] = 0
    return discounts, probability_V


def _discounts(
    numbers: Sequence[int], order: int, fallback: tuple[float, float, float] | None
) -> list[float]:
    """Compute the discounts of adjusted counts 0 to 3 or more by equation 26."""
    n1, n2, n3, n4 = numbers
    if n1 and n2 and n3:
        y = n1 / (n1 + 2 * n2)
        closed = [1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
        # With a discount of 0 some contexts would leave no probability to unseen tokens.
        if min(closed) > 0:
            return [0, *closed]
    if fallback is not None:
        return [0, *fallback]
    raise DataError(
        f"expected {order}-grams enough to estimate the discounts of Kneser-Ney, found {n1}, {n2}, "
        f"{n3} and {n4} with the adjusted counts 1, 2, 3 and 4; use a larger corpus, a smaller "
        "order, or set model.fallback_discounts=[0.5,1,1.5]"
    )


def _discount(
    first: int, last: int, vocab_size: int, discounts_4: Floats, lower: int, *arrays: Any
) -> tuple[Any, ...]:
    """Return of one order and column the number of n-grams, their keys, the log back-off weights of
    the order below, the permutation that sorts the n-grams; and for each row the discounted share
    of each n-gram in its context and the weight of the context. `arrays` are the keys of the
    `lower` orders between this one and the unigrams, and the levels of the rows."""
    known, levels = arrays[:lower], arrays[lower:]
    ngrams, counts, keep = map(np.concatenate, list(zip(*levels, strict=True))[:3])
    order, _ = sort_rows(ngrams.T)
    ngrams, counts, keep = np.take(ngrams, order, axis=0), counts[order], keep[order]
    differs = np.zeros(len(ngrams), bool)
    differs[:1] = True
    for column in ngrams.T[:-1]:
        differs[1:] |= column[1:] != column[:-1]
    starts, context = np.flatnonzero(differs), np.cumsum(differs) - 1
    removed = np.where(keep, discounts_4[np.minimum(counts, 3)], counts)
    totals = sum_runs(counts, starts)
    backoff = np.bincount(context, removed, len(starts)) / totals
    shares = []
    for values in ((counts - removed) / totals[context], backoff[context]):
        in_rows = np.empty_like(values)
        in_rows[order] = values
        shares.append(_split(in_rows, [len(level.counts) for level in levels]))
    del counts, removed, totals, in_rows
    index, exists = find_ngrams(ngrams[starts, :-1], known, vocab_size, first)
    weights = np.ones(len(known[-1]) if known else last - first)  # 1 without successors
    weights[index[exists]] = backoff[exists]
    keys = (index[context] * vocab_size + ngrams[:, -1])[keep]
    return len(keys), keys, np.log(weights), order[keep], *zip(*shares, strict=True)


def _interpolate_row(
    probability_V: Floats,
    joins: Sequence[tuple[Ints, Ints]],
    orders: int,
    *cells: tuple[Floats, Floats],
) -> list[Floats]:
    """The probabilities of n-grams by column and, in it, by order from 2 of `orders`."""
    probability, results = probability_V, []
    for n, (order, suffixes) in enumerate(joins[:orders]):
        shares, weights = zip(*cells[n::orders], strict=True)
        lower = probability[suffixes[order]]
        joint = np.concatenate(shares) + np.concatenate(weights) * lower
        probability = np.empty_like(joint)
        probability[order] = joint
        results.append(_split(joint, [len(share) for share in shares]))
    return [part for column in zip(*results, strict=True) for part in column]


def _arrange(order: Ints, *pieces: Floats) -> list[Floats]:
    """Return the log-probabilities of one column and order."""
    return [np.log(np.concatenate(pieces)[order])]


def _split(values: NDArray[Any], sizes: Sequence[int] | Ints) -> list[NDArray[Any]]:
    return np.split(values, np.cumsum(sizes)[:-1])


def _write(
    tasks: Tasks,
    create: Create,
    discounts: Floats,
    probability_V: Floats,
    start_id: int,
    sizes_CO: Ints,
    tries: Sequence[tuple[Any, Any]],
    logs: Sequence[Any],
) -> Weights:
    """Write the arrays of the model, a column and an order at a time. `tries` are the keys and the
    weights, `logs` the log-probabilities, of columns and, in each, of orders from 2."""
    longer = sizes_CO.shape[1] - 1
    order = int(np.count_nonzero(sizes_CO.sum(axis=0)))  # the highest may be pruned to nothing
    first_CO = np.cumsum(sizes_CO, axis=0) - sizes_CO
    vocab_size, numbers = len(probability_V), [0, *sizes_CO.sum(axis=0).tolist()]
    orders = range(1, order + 1)
    tensors = create(
        {"vocabulary": (np.int64, (2,)), "discounts": (np.float64, (order, 3))}
        | {f"log_probabilities.{n}": (np.float64, (numbers[n],)) for n in orders}
        | {f"log_backoffs.{n}": (np.float64, (numbers[n],)) for n in orders[:-1]}
        | {f"keys.{n}": (np.int64, (numbers[n],)) for n in orders[1:]}
    )
    tensors["vocabulary"][:] = vocab_size, start_id
    tensors["discounts"][:] = discounts[:order, 1:]
    with np.errstate(divide="ignore"):
        tensors["log_probabilities.1"][:] = np.log(probability_V)
    for place, ((keys, weights), values) in enumerate(zip(tries, logs, strict=True)):
        column, n = divmod(place, longer)
        if n + 2 > order:
            continue
        for name, handle, at in (
            (f"keys.{n + 2}", keys, n + 1),
            (f"log_probabilities.{n + 2}", values, n + 1),
            (f"log_backoffs.{n + 1}", weights, n),
        ):
            array, start = tasks.get(handle), first_CO[column, at]
            tensors[name][start : start + len(array)] = array
        keys_here = tensors[f"keys.{n + 2}"][first_CO[column, n + 1] :][: sizes_CO[column, n + 1]]
        keys_here += first_CO[column, n] * vocab_size
    return tensors
