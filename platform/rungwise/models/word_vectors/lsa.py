"""LSA and PPMI-SVD as a family: vectors of words from the singular values of a table of counts.

    counts        as they are
    log_entropy   log2(1 + x) times 1 + Σ p log p / log C, with p the shares of the contexts in a
                  word: words that are everywhere count nothing
    ppmi          max(0, ln(x Σ c^s / (r c^s)) - ln shift), with r and c the sums of row and column,
                  and s `smoothing`

The table is X ~ U S Tᵀ with `size` singular values, and the vector of a word its row of U S^a,
with a the `exponent`. Deerwester et al. 1990, "Indexing by Latent Semantic Analysis" (log-entropy:
Dumais 1991); for windows Levy, Goldberg & Dagan 2015. A text is a new column x of the table, and
its vector xᵀ U.

V vocabulary, C contexts, N cells, D size of a vector
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rungwise.core.arrays import Floats, Ints, Singles
from rungwise.core.errors import BlockError, DataError
from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.models.family import Size
from rungwise.models.fitting import Solution, Weights
from rungwise.models.losses.objectives import Objective, Origin
from rungwise.models.ngram_model import SparseSums, count_neighbours, merge_sums
from rungwise.models.word_vectors.word2vec import (
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
