"""N-gram model with interpolated modified Kneser-Ney smoothing, from counting to querying.

Chen & Goodman 1998 (TR-10-98), equations 20 to 26; sentence starts, discounts and the uniform
distribution below the unigrams as in kenlm's lmplz (Heafield et al. 2013, "Scalable Modified
Kneser-Ney Language Model Estimation").

    count_ngrams    the n-grams of the highest order in one shard
    split_table     partition a table by a hash of the n-gram, for parallel reducers
    merge_tables    sum tables, in any grouping
    estimate_model  adjusted counts, discounts, probabilities and backoffs of every order

Only n-grams of the highest order are counted. Those that begin a sentence are padded with start
symbols: `<s> <s> a b` stands for `<s> a b`, so the table determines every lower order.

The model is a trie in sorted arrays. An n-gram of order n has the key `context * V + word`, where
`context` is the index of its first n - 1 tokens in order n - 1; unigrams are indexed by id. Scoring
finds the n-gram that ends at each position for n = 1, 2, ... with one binary search per level, for
all positions at once.

N n-grams, O order, V vocabulary, T tokens
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rungwise.core.errors import DataError

_BLOCK = 1 << 18  # tokens counted at a time; their windows take about 50 MB
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

Ids = NDArray[np.unsignedinteger]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Table:
    """Distinct n-grams of the highest order, sorted lexicographically, and their counts."""

    ngrams: Ids  # (N, O), oldest token first, in the type of the shard's ids
    counts: NDArray[np.int64]  # (N,)

    def __len__(self) -> int:
        return len(self.counts)


@dataclass(frozen=True, eq=False)
class _Level:
    """The n-grams of one order that begin with at most one start symbol."""

    ngrams: Ids  # (N, n)
    counts: NDArray[np.int64]  # (N,) adjusted
    suffixes: NDArray[np.int64]  # (N,) index of the last n - 1 tokens in the level below


def count_ngrams(ids: Ids, offsets: NDArray[np.integer], order: int, start_id: int) -> Table:
    """Count the n-grams of `order` in one shard of sentences, each closed by the end symbol. Raises
    DataError if a sentence contains the start symbol."""
    if (ids == start_id).any():
        raise DataError(
            f"expected no start symbol (id {start_id}) inside a sentence, found one at token "
            f"{int((ids == start_id).argmax())} of the shard; remove it from the corpus"
        )
    parts = [Table(np.empty((0, order), ids.dtype), np.empty(0, np.int64))]
    for first in range(0, len(ids), _BLOCK):
        positions = np.arange(first, min(first + _BLOCK, len(ids)))
        contexts, targets = _windows(ids, offsets, positions, order - 1, start_id)
        ngrams = np.column_stack([contexts, targets]).astype(ids.dtype)
        parts.append(merge_tables([Table(ngrams, np.ones(len(ngrams), np.int64))]))
    return merge_tables(parts)


def _windows(
    ids: Ids,
    offsets: NDArray[np.integer],
    positions: NDArray[np.int64],
    context_size: int,
    start_id: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the `context_size` tokens before each position, padded with start symbols at the
    beginning of a sentence, and the tokens at the positions."""
    # With another type than the offsets', numpy would convert all offsets at every call.
    sentence = np.searchsorted(offsets, positions.astype(offsets.dtype), side="right") - 1
    before = positions[:, None] + np.arange(-context_size, 0)
    inside = before >= offsets[sentence][:, None]
    contexts = np.where(inside, ids[np.maximum(before, 0)].astype(np.int64), start_id)
    return contexts, ids[positions].astype(np.int64)


def merge_tables(tables: Sequence[Table]) -> Table:
    """Sum tables of one order; any grouping and order of merges gives the same bytes. Memory is
    proportional to the n-grams passed in, so a tree of merges needs at most twice the distinct
    ones."""
    ngrams = np.concatenate([table.ngrams for table in tables])
    counts = np.concatenate([table.counts for table in tables])
    order, first = _sort(ngrams)
    starts = np.flatnonzero(first)
    sums = np.add.reduceat(counts[order], starts) if len(starts) else counts
    return Table(ngrams[order[starts]], sums)


def split_table(table: Table, parts: int) -> list[Table]:
    """Partition a table by a hash of the n-gram: equal n-grams of two tables share a part."""
    hashes = np.zeros(len(table), np.uint64)
    for column in table.ngrams.T:
        hashes = (hashes ^ column) * _MULTIPLIER
        hashes ^= hashes >> np.uint64(32)
    part = hashes % np.uint64(parts)
    return [Table(table.ngrams[part == p], table.counts[part == p]) for p in range(parts)]


def _sort(ngrams: Ids) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return the permutation that sorts rows, and which sorted rows differ from the previous."""
    bits = max(1, int(ngrams.max(initial=0)).bit_length())
    columns = 64 // bits
    packed = []
    for first in range(0, ngrams.shape[1], columns):
        key = np.zeros(len(ngrams), np.uint64)
        for column in ngrams[:, first : first + columns].T:
            key = (key << np.uint64(bits)) | column
        packed.append(key)
    order = np.lexsort(packed[::-1])
    differs = np.zeros(len(ngrams), bool)
    differs[:1] = True
    for key in packed:
        ordered = key[order]
        differs[1:] |= ordered[1:] != ordered[:-1]
    return order, differs


def _levels(table: Table, start_id: int) -> list[_Level]:
    """Compute the adjusted counts of every order, unigrams first. Below the highest order, an
    n-gram counts the distinct tokens before it. One that begins with the start symbol keeps its raw
    count."""
    ngrams, counts = table.ngrams, table.counts
    levels: list[_Level] = []
    for order in range(ngrams.shape[1], 1, -1):
        proper = ngrams[:, 1] != start_id
        permutation, first = _sort(ngrams[:, 1:])
        group = np.empty(len(ngrams), np.int64)
        group[permutation] = np.cumsum(first) - 1
        shorter = ngrams[permutation[first], 1:]
        distinct = np.bincount(group, minlength=len(shorter))
        if order == 2:
            suffixes = ngrams[proper, 1].astype(np.int64)
        else:
            suffixes = (np.cumsum(shorter[:, 1] != start_id) - 1)[group[proper]]
        levels.append(_Level(ngrams[proper], counts[proper], suffixes))
        # A suffix that begins with the start symbol occurs in one row only.
        counts = np.where(shorter[:, 0] == start_id, counts[permutation[first]], distinct)
        ngrams = shorter
    levels.append(_Level(ngrams, counts, np.zeros(len(ngrams), np.int64)))
    return levels[::-1]


def _discounts(
    counts: NDArray[np.int64], order: int, fallback: tuple[float, float, float] | None
) -> Floats:
    """Compute the discounts (4,) of adjusted counts 0, 1, 2 and 3 or more; equation 26."""
    _, n1, n2, n3, n4 = np.bincount(np.minimum(counts, 5), minlength=6)[:5].tolist()
    if n1 and n2 and n3:
        y = n1 / (n1 + 2 * n2)
        closed = [1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
        # With a discount of 0 some contexts would leave no probability to unseen tokens.
        if min(closed) > 0:
            return np.array([0, *closed])
    if fallback is not None:
        return np.array([0, *fallback])
    raise DataError(
        f"expected {order}-grams enough to estimate the discounts of Kneser-Ney, found {n1}, {n2}, "
        f"{n3} and {n4} with the adjusted counts 1, 2, 3 and 4; use a larger corpus, a smaller "
        "order, or set model.fallback_discounts=[0.5,1,1.5]"
    )


def estimate_model(
    table: Table, vocab_size: int, start_id: int, fallback: tuple[float, float, float] | None = None
) -> "NgramLanguageModel":
    """Estimate the model of a merged table; its order is lower if no sentence is long enough.

    Every id below `vocab_size` except the start symbol can be predicted; an id that never occurred
    gets the uniform share, like kenlm's <unk>. `fallback` holds the discounts of adjusted counts 1,
    2 and 3 or more for orders where equation 26 fails (kenlm: 0.5, 1, 1.5). Raises DataError if the
    table is empty, holds an id out of range, or an order needs a missing fallback.
    """
    if not len(table):
        raise DataError("expected n-grams to estimate a model from, found an empty corpus")
    if (largest := int(table.ngrams.max())) >= vocab_size:
        raise DataError(f"expected token ids below vocab_size {vocab_size}, found {largest}")
    levels = [level for level in _levels(table, start_id) if len(level.counts)]
    unigrams, *longer = levels
    discounts = [_discounts(unigrams.counts, 1, fallback)]
    total = unigrams.counts.sum()
    removed = discounts[0][np.minimum(unigrams.counts, 3)]
    probability = np.full(vocab_size, removed.sum() / total / (vocab_size - 1))
    probability[unigrams.ngrams[:, 0]] += (unigrams.counts - removed) / total
    probability[start_id] = 0
    keys: list[NDArray[np.int64]] = []
    probabilities, backoffs = [probability], []
    for level in longer:
        # Index of the first n - 1 tokens; the trie holds all of them.
        context = level.ngrams[:, 0].astype(np.int64)
        for column, shorter in zip(level.ngrams.T[1:-1], keys, strict=True):
            context = np.searchsorted(shorter, context * vocab_size + column)
        discounts.append(_discounts(level.counts, len(discounts) + 1, fallback))
        removed = discounts[-1][np.minimum(level.counts, 3)]
        totals = np.bincount(context, level.counts, len(probability))
        # A context without successors has backoff weight 1.
        backoff = np.ones(len(probability))
        np.divide(
            np.bincount(context, removed, len(probability)), totals, backoff, where=totals > 0
        )
        lower = probability[level.suffixes]
        probability = (level.counts - removed) / totals[context] + backoff[context] * lower
        keys.append(context * vocab_size + level.ngrams[:, -1])
        probabilities.append(probability)
        backoffs.append(backoff)
    with np.errstate(divide="ignore"):
        return NgramLanguageModel(
            vocab_size=vocab_size,
            start_id=start_id,
            discounts=np.array(discounts)[:, 1:],
            keys=tuple(keys),
            ngram_log_probabilities=tuple(np.log(values) for values in probabilities),
            log_backoffs=tuple(np.log(values) for values in backoffs),
        )


@dataclass(frozen=True, eq=False)
class NgramLanguageModel:
    """An exact language model. Orders are counted from 1, n-grams are sorted by key."""

    is_exact: ClassVar[bool] = True

    vocab_size: int
    start_id: int
    discounts: Floats  # (O, 3), of the adjusted counts 1, 2 and 3 or more
    keys: tuple[NDArray[np.int64], ...]  # (N,) of orders 2 to O
    ngram_log_probabilities: tuple[Floats, ...]  # (V,) of order 1, (N,) of orders 2 to O
    log_backoffs: tuple[Floats, ...]  # (V,) of order 1, (N,) of orders 2 to O - 1
    end_id: int | None = None  # within a text, a new sentence begins after it

    @property
    def order(self) -> int:
        return len(self.ngram_log_probabilities)

    def log_probabilities(self, texts: Sequence[Sequence[int]]) -> list[Floats]:
        """Return the natural log-probability of each token, given those before it in its text.

        The context restarts at the beginning of a text and after an end symbol inside it. Append
        the end symbol to have it predicted. Raises DataError for the start symbol and for a token
        outside the vocabulary.
        """
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
        """Return the model as named arrays, for safetensors."""
        tensors: dict[str, NDArray[Any]] = {
            "vocabulary": np.array([self.vocab_size, self.start_id]),
            "discounts": self.discounts,
        }
        for name, first, arrays in (
            ("keys", 2, self.keys),
            ("log_probabilities", 1, self.ngram_log_probabilities),
            ("log_backoffs", 1, self.log_backoffs),
        ):
            tensors |= {f"{name}.{order}": array for order, array in enumerate(arrays, first)}
        return tensors

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]]) -> "NgramLanguageModel":
        """Restore a model from `to_tensors`."""
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
