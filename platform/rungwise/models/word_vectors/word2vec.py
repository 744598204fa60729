"""Static word vectors, one per token: word2vec and GloVe.

word2vec learns vectors by predicting words from their neighbours (Mikolov et al. 2013, "Efficient
Estimation of Word Representations in Vector Space", arXiv:1301.3781, and "Distributed
Representations of Words and Phrases and their Compositionality", arXiv:1310.4546). The output is a
tree of binary decisions (`hierarchical`), or a word against `negatives` noise words. The passes
over the text are in models/kernels.py.

The dot products of GloVe's vectors fit the logarithms of co-occurrence counts (Pennington, Socher &
Manning 2014, "GloVe: Global Vectors for Word Representation"). Two words at distance d add 1/d to
their cell, as an integer in units of 1 / lcm(1 .. window), so that sums do not depend on their
order.

V vocabulary, D size of a vector, P the same in memory, N tokens or cells, L steps of all paths in
the tree
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from rungwise.core.arrays import Bits, Floats, Ints, Singles
from rungwise.core.tokens import TokenisedText
from rungwise.models.family import LITTLE, Family, Size, suggest_passes
from rungwise.models.fitting import Losses, Rates, Stretch, Weights
from rungwise.models.losses.output_layer import huffman_merges
from rungwise.models.ngram_model import SparseSums, count_neighbours
from rungwise.models.word_vectors.vector_family import (
    Cells,
    VectorFamily,
    WordVectorModel,
    mean,
    random_rows,
    vector_objective,
)

_WHOLE = 1 << 32  # a probability of 1 as an integer
_PARAMETERS = ("words", "contexts", "word_bias", "context_bias")
_SQUARES = "_squares"  # suffix of the sums of squared gradients


class WindowFamily(Family):
    """The keys of families that predict a word from its window, and the tables that they need."""

    rates_texts: ClassVar[bool] = False

    size: int = Field(default=100, ge=1)  # size of a vector
    # negative sampling, or hierarchical softmax
    output: Literal["negative", "hierarchical"] = "negative"
    window: int = Field(default=5, ge=1)  # words on each side
    # draw the window from 1 to `window` for each word, so near words count more
    dynamic_window: bool = True
    negatives: int = Field(default=5, ge=1)  # noise words, for output negative
    power: float = Field(default=0.75, ge=0)  # noise words are drawn by their counts to this power
    # words with a larger share of the text are read less often; 0: read all
    subsample: float = Field(default=1e-3, ge=0)

    @property
    def output_name(self) -> str:
        return "hierarchical softmax" if self.output == "hierarchical" else "negative sampling"

    def plan(self, counts_V: Ints) -> "Plan":
        """Build the tables for a pass over the text; words with a count of 0 are left out."""
        return Plan(
            keep_probabilities(counts_V, self.subsample),
            *alias_table(np.where(counts_V > 0, counts_V.astype(np.float64) ** self.power, 0.0)),
            *huffman_paths(counts_V if self.output == "hierarchical" else counts_V[:0]),
        )

    def outputs(self, counts_V: Ints, width: int) -> Singles:
        """Return the initial output: zeros, a row per word, or per node of the tree."""
        nodes = max(1, int((counts_V > 0).sum()) - 1)
        rows = nodes if self.output == "hierarchical" else len(counts_V)
        return np.zeros((rows, width), np.float32)


class Word2vecConfig(WindowFamily, VectorFamily):
    """One of the four models of the papers: two architectures, two outputs. Noise is drawn once for
    all words of a window, which has the same expectation as drawing for each (Ji et al. 2016,
    arXiv:1604.04661). CBOW follows the gradient of the mean, which the first implementations did
    not (Irsoy et al. 2021, arXiv:2012.15332), and needs a learning rate of about 0.075."""

    objectives: ClassVar = (vector_objective("context_words", "Held-out context", "pair of words"),)
    year: ClassVar[int] = 2013
    paper: ClassVar[str] = "Mikolov et al."
    idea: ClassVar[str] = "a list of numbers for every word, learnt from the words around it"
    page: ClassVar[str] = "word2vec model"

    kind: Literal["word2vec"] = "word2vec"
    # predict a word from one of its neighbours, or (cbow) from the mean of all
    architecture: Literal["skip_gram", "cbow"] = "skip_gram"

    def describe(self) -> str:
        architecture = "CBOW" if self.architecture == "cbow" else "skip-gram"
        return (
            f"{architecture} with {self.output_name}, vectors of {self.size}, window {self.window}"
        )

    def suggest(self, size: Size) -> dict[str, Any]:
        """Forty million words are enough of a little text, of which five passes are not."""
        most = max(5, 40e6 / size.tokens)
        return {
            "model.subsample": 1e-4 if size.tokens < LITTLE else 1e-3,
            "pretrain.epochs": suggest_passes(size, 400_000, most),
        }

    def start(self, counts_V: Ints, documents: int, seed: int) -> Weights:
        inputs = random_rows(np.random.default_rng(seed), counts_V, self.size)
        return {"inputs": inputs, "outputs": self.outputs(counts_V, inputs.shape[1])}

    def units(self, text: TokenisedText) -> Stretch:
        """Return a text as sentences."""
        sizes = np.diff(text.first_sentence)
        numbers = np.repeat(np.arange(len(sizes)) + text.first_document, sizes)
        return Stretch(text.ids.astype(np.int32), text.starts, numbers, 0, len(numbers))

    def read(
        self, weights: Weights, plan: "Plan", text: Stretch, rates: Rates, seed: int
    ) -> Losses:
        """Train on sentences; see `ReadingFamily`. The sum of the losses is 0 in training."""
        from rungwise.models import kernels

        stretch = (text.ids, text.starts, text.first, text.last)
        reach = (self.window, self.dynamic_window, self.negatives, self.architecture == "cbow")
        return kernels.read_sentences(
            *stretch, Plan(*plan), weights["inputs"], weights["outputs"], *reach, *rates, seed
        )

    def average(self, before: Weights, replicas: Sequence[Weights]) -> Weights:
        return mean(replicas)

    def model(self, weights: Weights, counts_V: Ints) -> WordVectorModel:
        inputs, outputs = weights["inputs"], weights["outputs"]
        return WordVectorModel(inputs[:, : self.size].copy(), outputs[:, : self.size].copy())


class Plan(NamedTuple):
    """Tables derived from word counts; probabilities are integers in units of 2^-32."""

    keep: Bits  # (V,) probability that a word is read, 0 for never
    share: Bits  # (V,) alias table: probability that a slot yields its own word
    other: Ints  # (V,) alias table: the word that it yields otherwise
    path_starts: Ints  # (V + 1,) start of each word's path; (1,) without a tree
    path_nodes: Ints  # (L,) from the root on
    path_labels: Singles  # (L,) the correct decision, 1 or 0


def keep_probabilities(counts_V: Ints, subsample: float) -> Bits:
    """Return the probability of reading each word, as in word2vec.c: (sqrt(f/s) + 1)·s/f, with f
    its share of the text and s `subsample`; 0 reads all."""
    share = counts_V / max(1, counts_V.sum())
    ratio = np.divide(subsample, share, out=np.zeros(len(share)), where=counts_V > 0)
    chance = np.minimum(np.sqrt(ratio) + ratio, 1.0) if subsample else np.ones(len(share))
    return _as_integers(np.where(counts_V > 0, chance, 0.0))


def alias_table(weights_V: Floats) -> tuple[Bits, Ints]:
    """Build a table to draw words by weight in constant time (Walker 1977; Vose 1991): each slot's
    probability of its own word, and the word that it yields otherwise."""
    size = len(weights_V)
    filled = weights_V * (size / max(weights_V.sum(), 1e-300))
    share, other = np.ones(size), np.arange(size)
    small = [int(word) for word in np.flatnonzero(filled < 1)]
    large = [int(word) for word in np.flatnonzero(filled >= 1)]
    while small and large:
        poor, rich = small.pop(), large[-1]
        share[poor], other[poor] = filled[poor], rich
        filled[rich] -= 1 - filled[poor]
        if filled[rich] < 1:
            small.append(large.pop())
    return _as_integers(share), other


def huffman_paths(counts_V: Ints) -> tuple[Ints, Ints, Singles]:
    """Build the Huffman tree: the start of each word's path, its nodes from the root on, and the
    decision at each, 1 for the rarer side. Words with a count of 0 have no path; of equal counts
    the lower id comes first."""
    words = np.flatnonzero(counts_V)
    merges = huffman_merges(counts_V[words].tolist())
    paths: dict[int, list[tuple[int, int]]] = {len(words) + len(merges) - 1: []}
    for node in reversed(range(len(merges))):
        path, (rarer, other) = paths.pop(len(words) + node), merges[node]
        paths[rarer], paths[other] = [*path, (node, 1)], [*path, (node, 0)]
    leaves = [paths[number] for number in range(len(words))]
    lengths = np.zeros(len(counts_V), np.int64)
    lengths[words] = [len(path) for path in leaves]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    nodes = np.array([node for path in leaves for node, _ in path], np.int64)
    return starts, nodes, np.array([label for path in leaves for _, label in path], np.float32)


def _as_integers(probabilities: Floats) -> Bits:
    return np.minimum(probabilities * _WHOLE, _WHOLE - 1).astype(np.uint64)


class GloveConfig(VectorFamily):
    """The model of the paper: it reads both sides of a word, and nearer words count more. A vector
    is the sum of the word's vectors as a word and as a context."""

    objectives: ClassVar = (vector_objective("log_counts", "Weighted squared", "cell"),)
    year: ClassVar[int] = 2014
    paper: ClassVar[str] = "Pennington et al."
    idea: ClassVar[str] = "a list of numbers for every word, from counts of the words around it"
    page: ClassVar[str] = "GloVe model"

    kind: Literal["glove"] = "glove"
    window: int = Field(default=10, ge=1, le=20)  # words on each side
    # co-occurrences from which a pair of words has its full weight
    x_max: float = Field(default=100.0, gt=0)
    alpha: float = Field(default=0.75, ge=0)  # below x_max the weight is (x / x_max) to this power

    def describe(self) -> str:
        return f"vectors of {self.size}, window {self.window}"

    def suggest(self, size: Size) -> dict[str, Any]:
        """The paper's `x_max` is for billions of words, where such a pair occurs 100 times."""
        return {
            "model.x_max": min(100.0, max(1.0, round(size.tokens / 7e5, 1))),
            "pretrain.epochs": suggest_passes(size, 250_000, 25),
        }

    def count(self, text: TokenisedText, counts_V: Ints) -> SparseSums:
        """Count the co-occurrences within the sentences of one shard, in units of 1 / `_unit`."""
        amounts = [self._unit // distance for distance in range(1, self.window + 1)]
        return count_neighbours(text, text.starts, counts_V, amounts)

    def cells(self, table: SparseSums, vocab_size: int) -> Cells:
        """Return the cells on and above the diagonal of the symmetric table of all counts; a word
        near itself counts for both positions."""
        rows, columns = np.divmod(table.keys, vocab_size)
        amounts = table.sums / self._unit * (1 + (rows == columns))
        return Cells(rows.astype(np.int32), columns.astype(np.int32), amounts.astype(np.float32))

    def start(self, counts_V: Ints, documents: int, seed: int) -> Weights:
        """Draw the initial weights; the sums of squared gradients start at 1."""
        rng = np.random.default_rng(seed)
        rows = [random_rows(rng, counts_V, self.size) for _ in _PARAMETERS]
        biases = [row[:, 0].copy() for row in rows[2:]]
        weights: Weights = dict(zip(_PARAMETERS, [*rows[:2], *biases], strict=True))
        return weights | {f"{name}{_SQUARES}": np.ones_like(weights[name]) for name in _PARAMETERS}

    def read(self, weights: Weights, cells: Cells, order: Ints, rate: float) -> Losses:
        from rungwise.models import kernels

        arrays = (weights[f"{name}{of}"] for of in ("", _SQUARES) for name in _PARAMETERS)
        arguments = [order, *cells, *arrays, self.x_max, self.alpha, rate]
        return kernels.read_cells(*arguments)

    def model(self, weights: Weights, counts_V: Ints) -> WordVectorModel:
        words, contexts = (weights[name][:, : self.size] for name in ("words", "contexts"))
        return WordVectorModel(words + contexts, contexts.copy())

    @property
    def _unit(self) -> int:
        """The weight that two neighbouring words add to their cell."""
        return math.lcm(*range(1, self.window + 1))
