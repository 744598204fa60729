"""Vectors of words that are calculated at once from all that was counted: LSA and PPMI-SVD from the
singular values of a table, and several vectors of a word from the clusters of its contexts.

    counts        as they are
    log_entropy   log2(1 + x) times 1 + Σ p log p / log C, with p the shares of the contexts in a
                  word: words that are everywhere count nothing
    ppmi          max(0, ln(x Σ c^s / (r c^s)) - ln shift), with r and c the sums of row and column,
                  and s `smoothing`

The table is X ~ U S Tᵀ with `size` singular values, and the vector of a word its row of U S^a,
with a the `exponent`. Deerwester et al. 1990, "Indexing by Latent Semantic Analysis" (log-entropy:
Dumais 1991); for windows Levy, Goldberg & Dagan 2015. A text is a new column x of the table, and
its vector xᵀ U.

Several vectors of a word are made on any vectors (Reisinger & Mooney 2010, "Multi-Prototype
Vector-Space Models of Word Meaning"): by k-means of the mean vectors of each occurrence's
neighbours, at length 1 and weighted by a / (a + p), with p the share of the text (Arora, Liang & Ma
2017). Prototype k of a word with vector v is v + |v| (c_k - c), with c_k the centre of cluster k
and c the mean of all contexts, so that v is their mean over the text. The sample of occurrences
follows from hashes of their places, the same whoever counts them.

V vocabulary, C contexts, N cells or occurrences, D size of a vector, W neighbours, K prototypes, M
words with prototypes
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rungwise.core import randomness
from rungwise.core.arrays import Bits, Floats, Ints, Singles
from rungwise.core.errors import BlockError, DataError
from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.models.family import Family, Size
from rungwise.models.fitting import Solution, Weights
from rungwise.models.losses.objectives import Objective, Origin
from rungwise.models.ngram_model import SparseSums, count_neighbours, merge_sums
from rungwise.models.trained.capabilities import Texts, Words
from rungwise.models.trained.encoders import word_means
from rungwise.models.word_vectors.vector_family import (
    TABLE,
    Cells,
    TableModel,
    VectorFamily,
    vector_objective,
)

_PPMI = "a list of numbers for every word, from the words that stand beside it more than by chance"
_VALUES, _IMPORTANCE = "singular_values", "importance"


class LsaConfig(VectorFamily):
    """Latent semantic analysis of documents, or of windows with the weighting `ppmi`."""

    objectives: ClassVar = (vector_objective("low_rank", "Relative squared", "table"),)
    year: ClassVar[int] = 1990
    paper: ClassVar[str] = "Deerwester et al."
    idea: ClassVar[str] = "a list of numbers for every word, from the texts that share words"

    kind: Literal["lsa"] = "lsa"
    contexts: Literal["documents", "window"] = "documents"  # what a word is counted with
    window: int = Field(default=5, ge=1)  # words on each side, for contexts window
    weighting: Literal["counts", "log_entropy", "ppmi"] = "log_entropy"
    # ppmi: counts of contexts to this power, so that rare ones weigh less
    smoothing: float = Field(default=0.75, gt=0, le=1)
    shift: float = Field(default=1.0, ge=1)  # ppmi: as many noise words in word2vec
    # of the singular values in vectors of words; 0 is best for similarity, 1 is the original
    exponent: float = Field(default=0.0, ge=0, le=1)

    @model_validator(mode="after")
    def _ppmi_of_windows(self) -> Self:
        if self.weighting == "ppmi" and self.contexts == "documents":
            raise BlockError(
                "weighting ppmi is for contexts window, found documents", {"contexts": "window"}
            )
        return self

    def describe(self) -> str:
        contexts = self.contexts if self.contexts == "documents" else f"a window of {self.window}"
        return f"{self.weighting} of {contexts}, vectors of {self.size}"

    def origin(self, objective: Objective) -> Origin:
        if self.weighting != "ppmi":
            return super().origin(objective)
        return Origin(2015, "Levy et al.", _PPMI)

    def page_name(self, objective: Objective) -> str:
        return "PPMI-SVD model" if self.weighting == "ppmi" else "LSA model"

    def suggest(self, size: Size) -> dict[str, Any]:
        """Few documents give few vectors."""
        if self.contexts != "documents" or size.documents is None:
            return {}
        most = max(1, size.documents // 2)
        return {"model.size": most} if most < self.size else {}

    def count(self, text: TokenisedText, counts_V: Ints) -> SparseSums:
        """Count the cells of one shard, by key context·V + word; of pairs one of two is counted.
        Words with a count of 0 are removed first."""
        bounds = text.starts[text.first_sentence]
        if self.contexts == "window":
            return count_neighbours(text, bounds, counts_V, [1] * self.window)
        sizes = np.diff(bounds)
        documents = np.repeat(np.arange(len(sizes)) + text.first_document, sizes)
        is_frequent = counts_V[text.ids] > 0
        keys = documents[is_frequent] * len(counts_V) + text.ids[is_frequent]
        return merge_sums([SparseSums(keys, np.ones(len(keys), np.int64))])

    def cells(self, table: SparseSums, vocab_size: int) -> Cells:
        """Return the cells of words by contexts; those of a window in both orders."""
        contexts, words = np.divmod(table.keys, vocab_size)
        if self.contexts == "documents":
            return Cells(words, contexts, table.sums)
        both = np.concatenate([contexts, words]), np.concatenate([words, contexts])
        return Cells(*both, np.tile(table.sums, 2))  # a word near itself has its pair twice

    def solve(self, cells: Cells, counts_V: Ints, documents: int, seed: int) -> Solution:
        from scipy.sparse import csr_array

        contexts = documents if self.contexts == "documents" else len(counts_V)
        place = (cells.rows, cells.columns)
        amounts = cells.amounts.astype(np.float64)
        table: Any = csr_array((amounts, place), (len(counts_V), contexts))
        importance_V = self._weigh(table)
        words, columns = np.flatnonzero(table.sum(axis=1)), np.flatnonzero(table.sum(axis=0))
        rank = min(len(words), len(columns))
        if rank < self.size:
            raise DataError(
                f"expected at least model.size {self.size} words and {self.contexts}, found "
                f"{len(words)} words with weight and {len(columns)} of {self.contexts}; lower it, "
                "or add text"
            )
        left, values, right = decompose(table[words][:, columns], self.size, seed)
        total = float((table.data**2).sum())
        vectors = np.zeros((len(counts_V), self.size))
        vectors[words] = left * values**self.exponent
        # An encoder's random table has rows of length 1 on average, too.
        vectors *= np.sqrt(len(words) / (vectors**2).sum())
        rows = None
        if self.contexts == "documents":
            rows = np.zeros((contexts, self.size), np.float32)
            rows[columns] = right * values
        arrays = (array.astype(np.float32) for array in (vectors, values, importance_V))
        model = LsaModel(*arrays, config=self)
        return Solution(model, max(0.0, 1 - float((values**2).sum()) / total), rows)

    def _weigh(self, table: Any) -> Floats:
        """Weigh a `csr_array` of counts in place; return the importance of each word (V,)."""
        x, importance_V = table.data, np.ones(table.shape[0])
        rows = np.repeat(np.arange(table.shape[0]), np.diff(table.indptr))
        sum_V = table.sum(axis=1)
        if self.weighting == "log_entropy":
            share = x / sum_V[rows]
            entropy = np.bincount(rows, share * np.log(share), len(sum_V))
            importance_V += entropy / np.log(max(2, table.shape[1]))
            table.data = np.log2(1 + x) * importance_V[rows]
        elif self.weighting == "ppmi":
            smooth = table.sum(axis=0) ** self.smoothing
            ratio = x * smooth.sum() / (sum_V[rows] * smooth[table.indices])
            table.data = np.maximum(0.0, np.log(ratio) - np.log(self.shift))
            table.eliminate_zeros()
        return np.where(sum_V > 0, importance_V, 0.0)

    def from_tensors(self, tensors: Weights, special: SpecialIds) -> "LsaModel":
        return LsaModel(tensors[TABLE], tensors[_VALUES], tensors[_IMPORTANCE], self)


@dataclass(frozen=True, eq=False)
class LsaModel(TableModel):
    """Vectors of words, and what gives a new text its vector."""

    singular_values: Singles  # (D,)
    importance: Singles  # (V,) of each word, 0 for one that is left out
    config: LsaConfig

    def to_tensors(self) -> dict[str, NDArray[Any]]:
        values, importance = self.singular_values, self.importance
        return {TABLE: self.table, _VALUES: values, _IMPORTANCE: importance}

    @property
    def left(self) -> Floats:
        """U (V, D), whose columns have length 1."""
        lengths = np.linalg.norm(self.table.astype(np.float64), axis=0)
        return self.table / np.where(lengths > 0, lengths, 1.0)

    def sentence_vectors(self, texts: Sequence[Sequence[int]]) -> Singles:
        """Return the vectors (len(texts), D) of texts; zeros for one without a known word."""
        left, rows = self.left, np.zeros((len(texts), self.table.shape[1]), np.float32)
        for ids, row in zip(texts, rows, strict=True):
            words, counts = np.unique(np.array(ids, np.int64), return_counts=True)
            x = np.log2(1 + counts) if self.config.weighting == "log_entropy" else counts
            row[:] = (x * self.importance[words]) @ left[words]
        return rows


def decompose(table: Any, size: int, seed: int) -> tuple[Floats, Floats, Floats]:
    """Decompose a `csr_array`: return the vectors of rows (R, D) and columns (C, D) of the largest
    singular values (D,), the largest coordinate of each column of the first positive."""
    from scipy.sparse.linalg import svds

    if min(table.shape) <= 2 * size:
        left, values, right = np.linalg.svd(table.toarray(), full_matrices=False)
    else:
        start = np.random.default_rng(seed).normal(size=min(table.shape))
        left, values, right = cast(tuple[Floats, Floats, Floats], svds(table, size, v0=start))
    order = np.argsort(-values, kind="stable")[:size]
    left, values, right = left[:, order], values[order], right[order].T
    signs = np.sign(left[np.abs(left).argmax(axis=0), np.arange(size)])
    return left * signs, values, right * signs


_COMMON = 1e-4  # a: the share of the text at which the weight of a neighbour is half
_STARTS, _ITERATIONS = 4, 30  # of k-means; the best start is taken
_TENSORS = (TABLE, "centres", "means", "rows", "weights")


class PrototypesConfig(Family):
    """Prototypes on the vectors of the step before; the paper's number is 10 in its comparisons."""

    objectives: ClassVar = (vector_objective("contexts", "Cosine", "context"),)
    rates_texts: ClassVar[bool] = False
    year: ClassVar[int] = 2010
    paper: ClassVar[str] = "Reisinger & Mooney"
    idea: ClassVar[str] = "several lists of numbers for a word, one for each kind of place it has"
    page: ClassVar[str] = "multi-prototype model"
    vectors_by_default: ClassVar[Mapping[str, Any]] = {
        "name": "vectors",
        "model": {"kind": "word2vec"},
        "pretrain": {"kind": "asynchronous"},
    }

    kind: Literal["prototypes"] = "prototypes"
    prototypes: int = Field(default=10, ge=1)  # of a word
    window: int = Field(default=10, ge=1)  # words on each side that are its context
    occurrences: int = Field(default=200, ge=2)  # a word that occurs less often keeps one vector
    samples: int = Field(default=500, ge=2)  # occurrences of a word that are clustered, at most

    def describe(self) -> str:
        return f"{self.prototypes} prototypes of a word, contexts of {self.window} words a side"

    def count(self, text: TokenisedText, counts_V: Ints) -> "Contexts":
        """Sample the occurrences of one shard, with their neighbours in the document."""
        bounds = text.starts[text.first_sentence]
        document = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        places = np.flatnonzero(counts_V[text.ids] >= self._least)
        numbers = document[places]
        draws = randomness.bits(text.documents[numbers], places - bounds[numbers])
        ids = text.ids.astype(np.int32)
        order = self._sample(ids[places], draws)  # the neighbours of all would be twenty texts
        places, numbers = places[order], numbers[order]
        near = _neighbours(ids, places, bounds[numbers], bounds[numbers + 1], self.window)
        return Contexts(ids[places], draws[order], near)

    def merge(self, tables: "Sequence[Contexts]") -> "Contexts":
        """Join tables; the first `samples` of a word by their draws remain."""
        words, draws, near = (np.concatenate(each) for each in zip(*tables, strict=True))
        order = self._sample(words, draws)
        return Contexts(words[order], draws[order], near[order])

    def _sample(self, words: NDArray[np.int32], draws: Bits) -> Ints:
        """Return the places of occurrences that remain, by word and draw."""
        order = np.lexsort((draws, words))
        ordered = words[order]
        rank = np.arange(len(order)) - np.searchsorted(ordered, ordered)
        return order[rank < self.samples]

    def split(self, table: "Contexts", parts: int) -> "list[Contexts]":
        """Split by word."""
        part = table.words % parts
        return [
            Contexts(table.words[own], table.draws[own], table.neighbours[own])
            for own in (part == p for p in range(parts))
        ]

    def cells(self, table: "Contexts", vocab_size: int) -> "Contexts":
        return table

    def refine(self, vectors: Singles, cells: "Contexts", counts_V: Ints, seed: int) -> Solution:
        from sklearn.cluster import KMeans

        has_vector = (np.abs(vectors).sum(axis=1) > 0) & (counts_V > 0)
        weights_V = np.where(has_vector, _COMMON / (_COMMON + counts_V / counts_V.sum()), 0.0)
        words, starts = np.unique(cells.words, return_index=True)
        centres, means, rows_V = [], [], np.full(len(vectors), -1)
        unit_vectors = _unit(vectors)
        loss, total = 0.0, 0
        for word, near in zip(words, np.split(cells.neighbours, starts[1:]), strict=False):
            contexts_ND = _contexts(unit_vectors, weights_V, near)
            contexts_ND = contexts_ND[contexts_ND.any(axis=1)]
            if len(contexts_ND) < self.prototypes or not has_vector[word]:
                continue
            kmeans = KMeans(
                self.prototypes,
                n_init=_STARTS,  # pyright: ignore[reportArgumentType]
                max_iter=_ITERATIONS,
                random_state=seed,
            )
            number = kmeans.fit_predict(contexts_ND)
            sums = np.zeros((self.prototypes, vectors.shape[1]))
            np.add.at(sums, number, contexts_ND)
            sizes = np.maximum(1, np.bincount(number, minlength=self.prototypes))
            rows_V[word] = len(centres)
            centres.append(sums / sizes[:, None])
            means.append(contexts_ND.mean(axis=0))
            loss += float((1 - (contexts_ND * _unit(sums)[number]).sum(axis=1)).sum())
            total += len(contexts_ND)
        if not centres:
            raise DataError(
                f"expected words that the training split has {self._least} times, found none with "
                "as many contexts; lower model.occurrences or model.prototypes, or add text"
            )
        model = PrototypesModel(
            vectors,
            np.array(centres, np.float32),
            np.array(means, np.float32),
            rows_V,
            weights_V.astype(np.float32),
            self.window,
        )
        return Solution(model, loss / total)

    def from_tensors(self, tensors: Weights, special: SpecialIds) -> "PrototypesModel":
        return PrototypesModel(*(tensors[name] for name in _TENSORS), window=self.window)

    @property
    def _least(self) -> int:
        return max(self.occurrences, self.prototypes)


class Contexts(NamedTuple):
    """Occurrences of words, sorted by word and draw."""

    words: NDArray[np.int32]  # (N,)
    draws: Bits  # (N,) hashes of their places
    neighbours: NDArray[np.int32]  # (N, W), -1 beyond the document


@dataclass(frozen=True, eq=False)
class PrototypesModel(TableModel):
    """The vectors that were given, and prototypes of the words that have some."""

    centres: Singles  # (M, K, D)
    means: Singles  # (M, D) of the contexts
    rows: Ints  # (V,) which of M a word is, or -1
    weights: Singles  # (V,) as a neighbour
    window: int

    def to_tensors(self) -> dict[str, NDArray[Any]]:
        arrays = (self.table, self.centres, self.means, self.rows, self.weights)
        return dict(zip(_TENSORS, arrays, strict=True))

    @cached_property
    def _unit_table(self) -> Singles:
        return _unit(self.table)

    def prototypes(self, word: int) -> Singles:
        """Return the vectors (K, D) of a word; (1, D) if it has one."""
        vector, row = self.table[word], self.rows[word]
        if row < 0:
            return vector[None]
        return vector + np.linalg.norm(vector) * (self.centres[row] - self.means[row])

    def word_layers(self, texts: Texts, words: Words) -> Singles:
        """Return (2, N, D): in layer 0 a word's vector, in layer 1 its prototype in the context."""
        layers = [np.zeros((2, 0, self.table.shape[1]), self.table.dtype)]
        for text, pairs in zip(texts, words, strict=True):
            places = np.array([place for pair in pairs for place in pair], np.int64)
            layers.append(self._in_text(np.array(text, np.int32), places))
        return word_means(np.concatenate(layers, axis=1), words)

    def _in_text(self, ids: NDArray[np.int32], places: Ints) -> Singles:
        """Return the vectors (2, n, D) of the tokens at these places."""
        bounds = np.zeros_like(places), np.full_like(places, len(ids))
        near = _neighbours(ids, places, *bounds, self.window)
        contexts = _contexts(self._unit_table, self.weights, near)
        static = self.table[ids[places]]
        vectors = static.copy()
        for vector, word, context in zip(vectors, ids[places], contexts, strict=True):
            if (row := self.rows[word]) >= 0 and context.any():
                nearest = int(np.square(self.centres[row] - context).sum(axis=1).argmin())
                vector[:] = self.prototypes(word)[nearest]
        return np.stack([static, vectors])


def _neighbours(
    ids: NDArray[np.int32], places: Ints, starts: Ints, ends: Ints, window: int
) -> NDArray[np.int32]:
    """Return the tokens (n, W) around places, each in a text of its own."""
    steps = [step for step in range(-window, window + 1) if step]
    around = places[:, None] + np.array(steps)
    inside = (around >= starts[:, None]) & (around < ends[:, None])
    return np.where(inside, ids[np.clip(around, 0, max(0, len(ids) - 1))], np.int32(-1))


def _contexts(
    unit_vectors: NDArray[np.floating], weights_V: NDArray[np.floating], near: NDArray[np.int32]
) -> Singles:
    """Return the weighted means (n, D) of neighbours, at length 1; zeros if none is known."""
    weights = np.where(near >= 0, weights_V[near], 0.0)
    return _unit(np.einsum("nw,nwd->nd", weights, unit_vectors[near])).astype(np.float32)


def _unit(rows: NDArray[np.floating]) -> NDArray[np.floating]:
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1.0)
