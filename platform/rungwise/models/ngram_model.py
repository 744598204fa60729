"""Counts in sorted arrays, which sum to the same bytes in any grouping, and the n-gram model.

Only n-grams of the highest order are counted. Those that begin a sentence are padded with start
symbols: `<s> <s> a b` stands for `<s> a b`, so the table determines every lower order, whose
n-grams are runs of rows: rows are sorted by their last token, then by the one before and so on.

The model is a trie: an n-gram of order n has the key `context * V + word`, where `context` is the
index of its first n - 1 tokens in order n - 1; unigrams are indexed by id.

N n-grams or keys, O order, V vocabulary, B batch, T sequence, X = B·T, K contexts that are known
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rungwise.core.arrays import Bits, Bools, Floats, Ints
from rungwise.core.errors import DataError
from rungwise.core.tokens import SpecialIds, TokenisedText

_NEVER = -1e4  # in place of minus infinity, which has no difference to itself
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

Ids = NDArray[np.unsignedinteger]


@dataclass(frozen=True, eq=False)
class Table:
    """Distinct n-grams of one order, sorted from the last token to the first, and their counts."""

    ngrams: Ids  # (N, O), oldest token first, in the type of the shard's ids
    counts: Ints  # (N,)

    def __len__(self) -> int:
        return len(self.counts)


def count_ngrams(ids: Ids, offsets: NDArray[np.integer], order: int, start_id: int) -> Table:
    """Count the n-grams of sentences with the end symbol. Raises DataError for a start symbol."""
    if (ids == start_id).any():
        raise DataError(
            f"expected no start symbol (id {start_id}) inside a sentence, found one at token "
            f"{int((ids == start_id).argmax())} of the shard; remove it from the corpus"
        )
    place = np.arange(len(ids)) - np.repeat(offsets[:-1], np.diff(offsets))  # in its sentence
    ngrams = np.full((len(ids), order), start_id, ids.dtype)
    for distance, column in enumerate(ngrams.T[::-1]):
        inside = place[distance:] >= distance
        column[distance:][inside] = ids[: len(ids) - distance][inside]
    return merge_tables([Table(ngrams, np.ones(len(ids), np.int64))])


def count_documents(text: TokenisedText, special: SpecialIds, order: int) -> Table:
    """Count the n-grams of one shard of documents, each closed by the end symbol."""
    from rungwise.tokenizer.token_text import close_documents

    start, end = special.require("cls", "end")
    return count_ngrams(*close_documents(text, end), order, start)


def merge_tables(tables: Sequence[Table]) -> Table:
    """Sum tables of one order, rows in any order; however merges are grouped, the same bytes."""
    ngrams = np.concatenate([table.ngrams for table in tables])
    counts = np.concatenate([table.counts for table in tables])
    order, is_first = sort_rows(ngrams.T[::-1])
    starts = np.flatnonzero(is_first)
    return Table(np.take(ngrams, order[starts], axis=0), sum_runs(counts[order], starts))


def split_table(table: Table, parts: int) -> list[Table]:
    """Partition a table: n-grams that end with the same two tokens share a part."""
    hashes = np.zeros(len(table), np.uint64)
    for column in table.ngrams.T[-2:]:
        hashes = (hashes ^ column) * _MULTIPLIER
        hashes ^= hashes >> np.uint64(32)
    part = hashes % np.uint64(parts)
    return [Table(table.ngrams[part == p], table.counts[part == p]) for p in range(parts)]


def sort_rows(columns: Sequence[Ids] | Ids) -> tuple[NDArray[np.intp], Bools]:
    """Return the permutation that sorts rows, first columns first, and which sorted ones differ."""
    bits = max(1, *(int(column.max(initial=0)).bit_length() for column in columns))
    fit = 64 // bits
    key = _pack(columns[:fit], bits)
    order = np.argsort(key)
    is_first = _changes(key[order])
    while len(columns := columns[fit:]):
        # Of rows that are equal so far, the next columns decide.
        tied = ~is_first
        tied[:-1] |= tied[1:]
        places = np.flatnonzero(tied)
        group = np.cumsum(is_first)[places].astype(np.uint64)
        fit = min(len(columns), (64 - int(group.max(initial=0)).bit_length()) // bits)
        rows = order[places]
        key = group << np.uint64(fit * bits) | _pack([c[rows] for c in columns[:fit]], bits)
        ascending = np.argsort(key)
        order[places] = rows[ascending]
        is_first[places] |= _changes(key[ascending])
    return order, is_first


def _pack(columns: Sequence[Ids] | Ids, bits: int) -> Bits:
    key = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        key = (key << np.uint64(bits)) | column
    return key


def _changes(values: Bits) -> Bools:
    """Return which values differ from the previous."""
    changes = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=changes[1:])
    return changes


def sum_runs(values: Ints, starts: NDArray[np.intp]) -> Ints:
    """Return the sums of the runs that begin at `starts`."""
    return np.add.reduceat(values, starts) if len(starts) else values[:0]


def find_ngrams(
    ngrams: NDArray[np.integer], keys: Sequence[Ints], vocab_size: int, first: int = 0
) -> tuple[Ints, Bools]:
    """Return the index of each of `ngrams` (N, n), given the keys of orders 2 to n, and whether it
    is there; `first` is the unigram that has the index 0."""
    index = ngrams[:, 0].astype(np.int64) - first
    exists = np.ones(len(index), bool)
    for column, known in zip(ngrams.T[1:], keys, strict=True):
        key = index * vocab_size + column
        index = np.searchsorted(known, key)
        exists &= index < len(known)
        index[~exists] = 0
        exists[exists] = known[index[exists]] == key[exists]
    return index, exists


@dataclass(frozen=True, eq=False)
class NgramLanguageModel:
    """An exact language model. Orders are counted from 1, n-grams are sorted by key."""

    is_exact: ClassVar[bool] = True

    vocab_size: int
    start_id: int
    discounts: Floats  # (O, 3), of the adjusted counts 1, 2 and 3 or more
    keys: tuple[Ints, ...]  # (N,) of orders 2 to O
    ngram_log_probabilities: tuple[Floats, ...]  # (V,) of order 1, (N,) of orders 2 to O
    log_backoffs: tuple[Floats, ...]  # (V,) of order 1, (N,) of orders 2 to O - 1
    end_id: int | None = None  # within a text, a new sentence begins after it

    @property
    def order(self) -> int:
        return len(self.ngram_log_probabilities)

    def log_probabilities(self, texts: Sequence[Sequence[int]]) -> list[Floats]:
        """Return the natural log-probability of each token, given those before it in its text and
        after the last end symbol in it. Append the end symbol to have it predicted. Raises
        DataError for the start symbol and for a token outside the vocabulary."""
        lengths = np.array([len(text) for text in texts], np.int64)
        ids = np.concatenate([np.empty(0, np.int64), *(np.asarray(t, np.int64) for t in texts)])
        begins = np.zeros(len(ids), bool)
        begins[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
        begins[1:] |= ids[:-1] == (-1 if self.end_id is None else self.end_id)
        tokens = np.insert(ids, np.flatnonzero(begins), self.start_id)
        inside = np.ones(len(tokens), bool)
        inside[np.flatnonzero(begins) + np.arange(begins.sum())] = False
        wrong = inside & ((tokens < 0) | (tokens >= self.vocab_size) | (tokens == self.start_id))
        if wrong.any():
            raise DataError(
                f"expected tokens from 0 to {self.vocab_size - 1} other than the start symbol "
                f"{self.start_id}, found {tokens[wrong][0]}; encode with the model's tokenizer"
            )
        scores = self.ngram_log_probabilities[0][tokens]
        # Index of the n-gram that ends at each position, -1 if unknown. None crosses the start of
        # a text, because only the unigram ends with the start symbol.
        index = tokens
        for keys, values, backoffs in zip(
            self.keys, self.ngram_log_probabilities[1:], self.log_backoffs, strict=True
        ):
            position = np.flatnonzero(index[:-1] >= 0) + 1
            key = index[position - 1] * self.vocab_size + tokens[position]
            # Searches in sorted order stay in the cache: several times faster.
            ascending = np.argsort(key)
            position, key = position[ascending], key[ascending]
            context = index[position - 1]
            place = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
            exists = keys[place] == key
            scores[position] = np.where(exists, values[place], scores[position] + backoffs[context])
            index = np.full(len(tokens), -1)
            index[position[exists]] = place[exists]
        return np.split(scores[inside], np.cumsum(lengths)[:-1]) if len(texts) else []

    def to_tensors(self) -> dict[str, NDArray[Any]]:
        """Return named arrays, for safetensors; `from_tensors` is the inverse."""
        return {
            "vocabulary": np.array([self.vocab_size, self.start_id]),
            "discounts": self.discounts,
            **{f"keys.{n}": keys for n, keys in enumerate(self.keys, 2)},
            **{f"log_probabilities.{n}": x for n, x in enumerate(self.ngram_log_probabilities, 1)},
            **{f"log_backoffs.{n}": weights for n, weights in enumerate(self.log_backoffs, 1)},
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]]) -> "NgramLanguageModel":
        vocab_size, start_id = tensors["vocabulary"].tolist()
        orders = range(1, len(tensors["discounts"]) + 1)
        return cls(
            vocab_size=vocab_size,
            start_id=start_id,
            discounts=tensors["discounts"],
            keys=tuple(tensors[f"keys.{order}"] for order in orders[1:]),
            ngram_log_probabilities=tuple(
                tensors[f"log_probabilities.{order}"] for order in orders
            ),
            log_backoffs=tuple(tensors[f"log_backoffs.{order}"] for order in orders[:-1]),
        )


class NextTokenCounts:
    """Looks up the contexts of a row in the trie. No context is longer than the row, and none
    begins before the last end symbol in it."""

    def __init__(self, model: NgramLanguageModel) -> None:
        self._vocab_size, self._start, self._end = model.vocab_size, model.start_id, model.end_id
        self._keys = [torch.tensor(keys) for keys in model.keys]
        self._logs = [
            torch.tensor(logs).clamp(min=_NEVER) for logs in model.ngram_log_probabilities
        ]
        self._logs[0][model.start_id] = -math.inf
        self._backoffs = [torch.tensor(each) for each in model.log_backoffs]
        self._first = [  # of each context, its first n-gram, and where the last one's end
            torch.searchsorted(keys, torch.arange(len(backoffs) + 1) * model.vocab_size)
            for keys, backoffs in zip(self._keys, self._backoffs, strict=True)
        ]

    def to(self, device: torch.device, dtype: torch.dtype) -> "NextTokenCounts":
        """Move the tables; probabilities become `dtype`."""
        self._keys, self._first = (
            [each.to(device) for each in x] for x in (self._keys, self._first)
        )
        self._logs = [each.to(device, dtype) for each in self._logs]
        self._backoffs = [each.to(device, dtype) for each in self._backoffs]
        return self

    def __call__(self, ids_BT: Tensor) -> Tensor:
        """Return the natural log-probabilities (X, V) of the token after each position."""
        if self._logs[0].device != ids_BT.device:
            self.to(ids_BT.device, self._logs[0].dtype)
        contexts = self._find_contexts(ids_BT)
        below_X = self._logs[0].new_zeros(ids_BT.numel())  # weights of the contexts above a level
        weights = []
        for (rows_K, context_K), backoffs in zip(
            reversed(contexts), reversed(self._backoffs), strict=True
        ):
            weights.append(below_X[rows_K])
            below_X[rows_K] += backoffs[context_K]
        logs_XV = self._logs[0] + below_X[:, None]
        flat = logs_XV.view(-1)
        levels = zip(
            contexts, reversed(weights), self._keys, self._first, self._logs[1:], strict=True
        )
        for (rows_K, context_K), weights_K, keys, first, logs in levels:
            begin_K = first[context_K]
            sizes_K = first[context_K + 1] - begin_K
            of_N = torch.repeat_interleave(sizes_K)
            place_N = torch.arange(len(of_N), device=ids_BT.device)
            place_N += (begin_K - (sizes_K.cumsum(0) - sizes_K))[of_N]
            flat[keys[place_N] + ((rows_K - context_K) * self._vocab_size)[of_N]] = (
                logs[place_N] + weights_K[of_N]
            )
        return logs_XV

    def _find_contexts(self, ids_BT: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return, by length, which positions end a known context, and its index, (K,) each."""
        end = -1 if self._end is None else self._end
        tokens_BT = ids_BT.masked_fill(ids_BT == end, self._start)
        index_BT, contexts = tokens_BT, []
        for keys in self._keys:
            index_X = index_BT.flatten()
            rows_K = (index_X >= 0).nonzero()[:, 0]
            contexts.append((rows_K, index_X[rows_K]))
            key_BT = index_BT[:, :-1] * self._vocab_size + tokens_BT[:, 1:]
            place_BT = torch.searchsorted(keys, key_BT).clamp(max=len(keys) - 1)
            exists_BT = (keys[place_BT] == key_BT) & (index_BT[:, :-1] >= 0)
            index_BT = torch.full_like(tokens_BT, -1)
            index_BT[:, 1:] = torch.where(exists_BT, place_BT, -1)
        return contexts


@dataclass(frozen=True, eq=False)
class SparseSums:
    """Distinct keys in ascending order, and an integer for each."""

    keys: Ints  # (N,)
    sums: Ints  # (N,)


def merge_sums(tables: Sequence[SparseSums]) -> SparseSums:
    """Sum tables; their keys may repeat and need not be sorted."""
    keys = np.concatenate([table.keys for table in tables])
    sums = np.concatenate([table.sums for table in tables])
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return SparseSums(keys[starts], sum_runs(sums[order], starts))


def split_sums(table: SparseSums, parts: int) -> list[SparseSums]:
    """Partition a table by key: equal keys of two tables share a part."""
    part = table.keys % parts
    return [SparseSums(table.keys[part == p], table.sums[part == p]) for p in range(parts)]


def count_neighbours(
    text: TokenisedText, bounds: Ints, counts_V: Ints, amounts: Sequence[int]
) -> SparseSums:
    """Count pairs of words between two of the bounds; two at distance d add `amounts[d - 1]` to the
    key row·V + column with row ≤ column. Words with a count of 0 are removed first."""
    is_frequent = counts_V[text.ids] > 0
    words = text.ids[is_frequent].astype(np.int64)
    unit = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))[is_frequent]
    tables = [SparseSums(words[:0], words[:0])]
    for distance, amount in enumerate(amounts[: max(0, len(words) - 1)], start=1):
        same = unit[distance:] == unit[:-distance]
        left, right = words[:-distance][same], words[distance:][same]
        pairs = np.minimum(left, right) * len(counts_V) + np.maximum(left, right)
        tables.append(merge_sums([SparseSums(pairs, np.full(len(pairs), amount))]))
    return merge_sums(tables)
