"""The output layer of a language model: how a state becomes the probabilities of all words.

    softmax   p(w | h) = softmax(W h + b)                                V rows a token
    classes   p(w | h) = p(c | h) · p(w | h, c), a softmax each          C + V / C rows
              (Goodman 2001, arXiv:cs/0108006)
    tree      p(w | h) = product over the nodes n on the path to w of    about log2 V rows
              sigmoid(±(q_n · h + b_n)), summed over the leaves of w
              (Morin & Bengio 2005; Mnih & Hinton 2008)

All are exact distributions. Which word is where is stored in buffers beside the weights, and comes
from the training text (`arrange`). A prediction counts as correct if the likelier class, word or
side of each choice leads to the word.

    frequency   classes of as many occurrences each (Mikolov et al. 2011, "Extensions of recurrent
                neural network language model")
    brown       classes that keep the mutual information of neighbours (Brown et al. 1992); the tree
                of the last merges, and within each class the Huffman tree of its words
    balanced    halves of a mixture of two Gaussians, fitted to a point for each word (Mnih & Hinton
                2008, "A scalable hierarchical distributed language model")
    adaptive    its sides by responsibility; words near the border go to both, as leaves of either

A path is the nodes from the root to a leaf, counted from 1: n where it takes the first side, -n
where it takes the second.

Shapes: X tokens, D width, V vocabulary, C classes, L leaves, N nodes or words below one, K nodes of
the longest path, R pairs of a token and a leaf.
"""

import copy
import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from rungwise.core.arrays import Floats, Ints
from rungwise.core.configuration.config import Config
from rungwise.core.errors import BlockError, ConfigError
from rungwise.models.losses.cross_entropy import TokenSums, at_least_float32, output_logits
from rungwise.models.ngram_model import SparseSums, merge_sums

Text = Callable[[], Iterable[NDArray[np.integer]]]  # the ids of the training text, in parts
_SMALL = 1 << 16  # counts whose n ln n is looked up
_EM_STEPS = 10
_MOST_LEAVES = 8  # of a word: without a bound they double at every level
_LEARNT_FROM = 1 << 20  # tokens of the text that a tree is learnt from
_BLOCKS, _LENGTH, _RATE = 32, 32, 0.1  # of a step, of a block, and of learning it
Words = tuple[Tensor, Tensor | None]  # the rows (V, D) and biases (V,) of the softmax


class Tree(NamedTuple):
    """The leaves of a binary tree, sorted by word; a word may have several."""

    paths: NDArray[np.int32]  # (L, K), padded with 0
    words: NDArray[np.int32]  # (L,)


def count_words(text: Text, vocab_size: int) -> Ints:
    """Count each word of the text, (V,)."""
    counts_V = np.zeros(vocab_size, np.int64)
    for ids in text():
        counts_V += np.bincount(ids, minlength=vocab_size)
    return counts_V


def frequency_classes(counts_V: Ints, classes: int) -> Ints:
    """Return the class of each word, (V,): by falling count, a class is closed when it has its
    share of the occurrences that are left, and in time for each class to have a word."""
    class_V = np.empty(len(counts_V), np.int64)
    number, mass, remaining = 0, 0, int(counts_V.sum())
    for place, word in enumerate(np.argsort(-counts_V, kind="stable").tolist()):
        class_V[word] = number
        mass += int(counts_V[word])
        after = classes - number - 1
        full = mass * (after + 1) >= remaining or len(counts_V) - place - 1 == after
        if after and full:
            number, remaining, mass = number + 1, remaining - mass, 0
    return class_V


class Clusters(NamedTuple):
    """Words in classes; classes near in the tree have near numbers."""

    classes: Ints  # (V,) -1 for a word that is left out
    paths: tuple[str, ...]  # (C,) bits from the root to each class, none a prefix of another


def cluster_words(
    left_N: Ints, right_N: Ints, count_N: Ints, counts_V: Ints, classes: int
) -> Clusters:
    """Cluster words into `classes`, or as many as there are words, from the counts of adjacent
    pairs. Words enter by falling `counts_V`; one with 0 is left out with its pairs."""
    from rungwise.models.kernels import merge_words

    words = np.argsort(-counts_V, kind="stable")[: np.count_nonzero(counts_V)]
    classes = min(classes, len(words))
    if not classes:
        return Clusters(np.full(len(counts_V), -1), ())
    rank_V = np.full(len(counts_V), -1)
    rank_V[words] = np.arange(len(words))
    left, right = rank_V[left_N], rank_V[right_N]
    inside = (left >= 0) & (right >= 0)
    left, right, count = left[inside], right[inside], count_N[inside]
    starts, neighbours, count_2N = [], [], []
    for of, other in ((left, right), (right, left)):
        order = np.lexsort((other, of))
        starts.append(np.searchsorted(of[order], np.arange(len(words) + 1)))
        neighbours.append(other[order])
        count_2N.append(count[order])
    small = np.arange(_SMALL, dtype=np.float64)
    table = small * np.log(np.maximum(small, 1))
    slot_of, merges = merge_words(
        np.array(starts), np.array(neighbours), np.array(count_2N), classes, table
    )
    paths = {int(slot_of[0]) if classes == 1 else int(merges[-1, 0]): ""}
    for first, second in merges[::-1].tolist():
        paths[first], paths[second] = f"{paths[first]}0", f"{paths[first]}1"
    slots = sorted(paths, key=lambda slot: paths[slot])
    class_V = np.full(len(counts_V), -1)
    class_V[words] = np.argsort(slots)[np.searchsorted(np.sort(slots), slot_of)]
    return Clusters(class_V, tuple(paths[slot] for slot in slots))


def brown_clusters(text: Text, counts_V: Ints, classes: int) -> Clusters:
    """Return Brown clusters of all words; those that do not occur count once."""
    V = len(counts_V)
    parts: list[SparseSums] = []
    for ids in text():
        keys, counts = np.unique(ids[:-1].astype(np.int64) * V + ids[1:], return_counts=True)
        parts.append(SparseSums(keys, counts))
    table = merge_sums(parts)
    left_N, right_N = np.divmod(table.keys, V)
    return cluster_words(left_N, right_N, table.sums, np.maximum(counts_V, 1), classes)


def random_tree(vocab_size: int) -> Tree:
    """Return a tree of depth ceil(log2 V)."""
    return _tree(np.random.default_rng(0).permutation(vocab_size), _halves)


def huffman_tree(counts_V: Ints) -> Tree:
    """Return the Huffman tree; words that do not occur count once."""
    return _tree(_huffman(range(len(counts_V)), counts_V), lambda pair: pair)


def cluster_tree(clusters: Clusters, counts_V: Ints) -> Tree:
    """Return the tree of clusters, each with the Huffman tree of its words."""
    below = {
        path: _huffman(np.flatnonzero(clusters.classes == number).tolist(), counts_V)
        for number, path in enumerate(clusters.paths)
    }
    while len(below) > 1:
        parent = max(below, key=len)[:-1]
        below[parent] = below.pop(f"{parent}0"), below.pop(f"{parent}1")
    (root,) = below.values()
    return _tree(root, lambda pair: pair)


def learn_tree(points_VD: Floats, balanced: bool, overlap: float) -> Tree:
    """Return the tree of points: words go to the side that is responsible, or to both within
    `overlap` of one half; with `balanced`, each side takes a half."""
    leaves_V = np.ones(len(points_VD), np.int64)

    def divide(words: Ints) -> tuple[Any, Any]:
        share_N = responsibilities(points_VD[words])
        if balanced:
            return _halves(words[np.argsort(share_N, kind="stable")])
        is_first = share_N >= 0.5
        is_near = (np.abs(share_N - 0.5) < overlap) & (leaves_V[words] < _MOST_LEAVES)
        for is_both in (is_near, np.zeros_like(is_near)):
            sides = words[is_first | is_both], words[~is_first | is_both]
            if min(map(len, sides)) > 0 and max(map(len, sides)) < len(words):
                leaves_V[words[is_both]] += 1
                return sides
        return _halves(words[np.argsort(share_N, kind="stable")])

    return _tree(np.arange(len(points_VD)), divide)


def responsibilities(points_ND: Floats) -> Floats:
    """Fit a mixture of two Gaussians with one variance, beginning with halves along a random
    direction; return the share of the first in each point, (N,)."""
    direction_D = np.random.default_rng(len(points_ND)).standard_normal(points_ND.shape[1])
    along_N = (points_ND - points_ND.mean(0)) @ direction_D
    share_N = (along_N > np.median(along_N)).astype(np.float64)
    for _ in range(_EM_STEPS):
        weights_2N = np.stack([share_N, 1 - share_N])
        mass_2 = weights_2N.sum(1) + 1e-9
        means_2D = weights_2N @ points_ND / mass_2[:, None]
        squares_2N = ((points_ND - means_2D[:, None]) ** 2).sum(2)
        variance = (weights_2N * squares_2N).sum() / points_ND.size + 1e-9
        odds_N = np.log(mass_2[0] / mass_2[1]) - (squares_2N[0] - squares_2N[1]) / 2 / variance
        share_N = 1 / (1 + np.exp(-odds_N.clip(-500, 500)))
    return share_N


def _halves(words: Ints) -> tuple[Any, Any]:
    return words[: len(words) // 2], words[len(words) // 2 :]


def huffman_merges(counts_N: Sequence[int]) -> list[tuple[int, int]]:
    """Return the merges that build the Huffman tree (1952), each of the rarer side and the other,
    as the number of a leaf, or N + k for merge k. Of equal counts the lower number comes first."""
    heap = [(count, number) for number, count in enumerate(counts_N)]
    heapq.heapify(heap)
    merges: list[tuple[int, int]] = []
    for number in range(len(heap), 2 * len(heap) - 1):
        (one, rarer), (two, other) = heapq.heappop(heap), heapq.heappop(heap)
        heapq.heappush(heap, (one + two, number))
        merges.append((rarer, other))
    return merges


def _huffman(words: Iterable[int], counts_V: Ints) -> Any:
    """Return nested pairs of words."""
    nodes: list[Any] = [*words]
    for rarer, other in huffman_merges([max(1, int(counts_V[word])) for word in nodes]):
        nodes.append((nodes[rarer], nodes[other]))
    return nodes[-1]


def _tree(root: Any, divide: Callable[[Any], tuple[Any, Any]]) -> Tree:
    """Divide `root` until only single words are left."""
    leaves: list[tuple[int, list[int]]] = []
    nodes, rest = 0, [(root, [])]
    while rest:
        below, path = rest.pop()
        if isinstance(below, int) or len(below) == 1:
            leaves.append((below if isinstance(below, int) else int(below[0]), path))
            continue
        nodes += 1
        for side, part in zip((nodes, -nodes), divide(below), strict=True):
            rest.append((part, [*path, side]))
    leaves.sort(key=lambda leaf: leaf[0])
    paths = np.zeros((len(leaves), max(len(path) for _, path in leaves)), np.int32)
    for row, (_, path) in zip(paths, leaves, strict=True):
        row[: len(path)] = path
    return Tree(paths, np.array([word for word, _ in leaves], np.int32))


class SoftmaxOutput(Config):
    """One softmax over all words."""

    kind: Literal["softmax"] = "softmax"

    def describe(self) -> str:
        return ""

    def rows(self, V: int) -> float:
        """Return the rows of the output that a token multiplies in training."""
        return V

    def build(self, V: int, width: int, bound: float) -> None:
        """Return the module that replaces the softmax, or None."""


class ClassesOutput(Config):
    """A softmax over classes of words, and one over the words of a class."""

    kind: Literal["classes"] = "classes"
    # classes of as many occurrences each, of as many words each at random, or Brown clusters
    by: Literal["frequency", "equal", "brown"] = "frequency"
    count: int | None = Field(default=None, ge=1)  # classes; null: the root of the vocabulary size

    def describe(self) -> str:
        names = {"equal": "of equal size", "brown": "by Brown clusters"}
        name = names.get(self.by, "by frequency")
        return f", {self.count or ''} classes {name}".replace("  ", " ")

    def rows(self, V: int) -> float:
        return self.classes(V) + V / self.classes(V)

    def classes(self, V: int) -> int:
        return self.count or math.isqrt(V)

    def build(self, V: int, width: int, bound: float) -> "WordClasses":
        return WordClasses(self, V, width, bound)


class TreeOutput(Config):
    """A binary choice at each node on the path to a word."""

    kind: Literal["tree"] = "tree"
    # huffman and brown come from counts of the text; balanced and adaptive are learnt from the mean
    # state before each word of this model with a random tree, after a pass over a million tokens
    shape: Literal["random", "huffman", "brown", "balanced", "adaptive"] = "huffman"
    # adaptive: how far from one half a word's share of a side may be for it to stand on both
    overlap: float = Field(default=0.0, ge=0.0, lt=0.5)

    @model_validator(mode="after")
    def _overlaps_an_adaptive_tree(self) -> Self:
        if self.overlap and self.shape != "adaptive":
            raise BlockError(
                f"overlap is {self.overlap}, but a tree of shape {self.shape} has each word once; "
                "set shape to adaptive",
                {"overlap": 0.0},
            )
        return self

    def describe(self) -> str:
        return f", {self.shape} tree"

    def rows(self, V: int) -> float:
        return max(1.0, math.log2(V))

    def build(self, V: int, width: int, bound: float) -> "WordTree":
        return WordTree(self, V, width, bound)


OutputConfig = Annotated[SoftmaxOutput | ClassesOutput | TreeOutput, Field(discriminator="kind")]


class WordClasses(nn.Module):
    """Classes of words in place of the softmax over all. `order` has the words sorted by class,
    `sizes` their number in each."""

    order: Tensor
    sizes: Tensor

    def __init__(self, config: ClassesOutput, V: int, width: int, bound: float) -> None:
        super().__init__()
        self.config, C = config, config.classes(V)
        if C > V:
            raise ConfigError(
                f"model.output.count is {C}, but the vocabulary has {V} tokens; lower it"
            )
        self.table = nn.Parameter(torch.empty(C, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(C))
        self.register_buffer("order", torch.zeros(V, dtype=torch.int64))
        self.register_buffer("sizes", torch.zeros(C, dtype=torch.int64))
        self._place(np.random.default_rng(0).permutation(V) % C)  # sizes differ by at most 1

    def _place(self, class_V: Any) -> None:
        order_V = np.argsort(class_V, kind="stable")
        self.order.copy_(torch.from_numpy(order_V))
        self.sizes.copy_(torch.from_numpy(np.bincount(class_V, minlength=len(self.sizes))))

    def arrange(self, text: Text, model: Any) -> None:
        """Place the words by the training text, before training; `model` is the whole model."""
        V, C = len(self.order), len(self.sizes)
        counts_V = count_words(text, V)
        if self.config.by == "frequency":
            self._place(frequency_classes(counts_V, C))
        elif self.config.by == "brown":
            self._place(brown_clusters(text, counts_V, C).classes)

    @torch.no_grad()
    def set_word_shares(self, shares_V: Tensor, bias_V: Tensor | None) -> None:
        """Set the biases so that states of zeros predict these shares (V,) of placed words."""
        assert bias_V is not None
        bias_V.copy_(shares_V.log())
        parts = shares_V[self.order].split(self.sizes.tolist())
        self.bias.copy_(torch.stack([part.sum() for part in parts]).log())

    def sums(
        self, states_XD: Tensor, words: Words, targets_X: Tensor, weights_X: Tensor
    ) -> TokenSums:
        """Sum the losses of the targets, and the targets that the likeliest choices lead to."""
        table_VD, bias_V = words
        assert bias_V is not None
        numbers_C = torch.arange(len(self.sizes), device=self.order.device)
        class_V = torch.empty_like(self.order)
        class_V[self.order] = numbers_C.repeat_interleave(self.sizes)
        place_V = torch.empty_like(self.order)  # of a word in its class
        first_C = self.sizes.cumsum(0) - self.sizes
        place_V[self.order] = torch.arange(len(place_V), device=place_V.device)
        place_V -= first_C[class_V]

        by_class_X = class_V[targets_X].argsort(stable=True)
        states_XD = states_XD.index_select(0, by_class_X)
        targets_X, weights_X = targets_X[by_class_X], weights_X[by_class_X]
        class_X = class_V[targets_X]
        losses_X, right_X = _choose(functional.linear(states_XD, self.table, self.bias), class_X)
        tokens_C = class_X.bincount(minlength=len(self.sizes)).tolist()
        parts = zip(
            states_XD.split(tokens_C),
            place_V[targets_X].split(tokens_C),
            table_VD.index_select(0, self.order).split(self.sizes.tolist()),
            bias_V.index_select(0, self.order).split(self.sizes.tolist()),
            strict=True,
        )
        within = [
            _choose(functional.linear(states, table, bias), places)
            for states, places, table, bias in parts
            if len(places)
        ]
        losses_X = losses_X + torch.cat([losses for losses, _ in within])
        right_X = right_X & torch.cat([right for _, right in within])
        return TokenSums((losses_X * weights_X).sum(), (right_X * weights_X).sum())

    def log_probabilities(self, states_XD: Tensor, words: Words) -> Tensor:
        """Return the log-probabilities of all words, (X, V)."""
        logits_XV = output_logits(states_XD, *words)
        class_XC = functional.linear(states_XD, self.table, self.bias)
        log_XC = at_least_float32(class_XC).log_softmax(-1)
        parts = at_least_float32(logits_XV[:, self.order]).split(self.sizes.tolist(), dim=1)
        log_XV = torch.cat([part.log_softmax(-1) for part in parts], dim=1)
        log_XV = log_XV + log_XC.repeat_interleave(self.sizes, dim=1)
        return log_XV[:, self.order.argsort()]


def _choose(logits_XC: Tensor, targets_X: Tensor) -> tuple[Tensor, Tensor]:
    """Return the losses of one choice (X,) and whether its target is likeliest (X,)."""
    logits_XC = at_least_float32(logits_XC)
    losses_X = functional.cross_entropy(logits_XC, targets_X, reduction="none")
    return losses_X, logits_XC.argmax(-1) == targets_X


class WordTree(nn.Module):
    """A binary tree with vectors of nodes in place of the softmax over all words, to be used like
    `WordClasses`. `paths` and `words` are those of `Tree`."""

    paths: Tensor
    words: Tensor

    def __init__(self, config: TreeOutput, V: int, width: int, bound: float) -> None:
        super().__init__()
        self.config, self._bound, self._vocab_size = config, bound, V
        self.table = nn.Parameter(torch.empty(0, width))
        self._plant(random_tree(V))

    def _plant(self, tree: Tree) -> None:
        for name, array in tree._asdict().items():
            self.register_buffer(name, torch.from_numpy(array))
        self._resize(len(tree.words) - 1)

    def _resize(self, N: int) -> None:
        table_ND = self.table.new_empty(N, self.table.shape[1])
        self.table = nn.Parameter(table_ND.uniform_(-self._bound, self._bound))
        self.bias = nn.Parameter(table_ND.new_zeros(N))

    def _load_from_state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, state_dict: dict[str, Any], prefix: str, *rest: Any
    ) -> None:
        # A tree in a file may have more leaves and longer paths.
        if (paths := state_dict.get(f"{prefix}paths")) is not None:
            self.paths = self.paths.new_empty(paths.shape)
            self.words = self.words.new_empty(len(paths))
            self._resize(len(paths) - 1)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def arrange(self, text: Text, model: Any) -> None:
        V, shape = self._vocab_size, self.config.shape
        counts_V = count_words(text, V)
        if shape == "huffman":
            self._plant(huffman_tree(counts_V))
        elif shape == "brown":
            clusters = brown_clusters(text, counts_V, math.isqrt(V))
            self._plant(cluster_tree(clusters, counts_V))
        elif shape in ("balanced", "adaptive"):
            points_VD = mean_states(copy.deepcopy(model), text, V)
            balanced = shape == "balanced"
            self._plant(learn_tree(points_VD, balanced, self.config.overlap))

    @torch.no_grad()
    def set_word_shares(self, shares_V: Tensor, bias_V: Tensor | None) -> None:
        share_L = (shares_V / self.words.bincount(minlength=len(shares_V)))[self.words.long()]
        leaf_P, side_P = self._steps()
        share_2N = share_L.new_zeros(2, len(self.bias))
        where = (side_P < 0).long(), side_P.abs() - 1
        share_2N.index_put_(where, share_L[leaf_P], accumulate=True)
        self.bias.copy_((share_2N[0] / share_2N[1]).log())

    def _steps(self) -> tuple[Tensor, Tensor]:
        """Return the steps of all paths: the leaf of each, and its node as in `paths`."""
        leaf_P, place_P = self.paths.nonzero(as_tuple=True)
        return leaf_P, self.paths[leaf_P, place_P].long()

    def sums(
        self, states_XD: Tensor, words: Words, targets_X: Tensor, weights_X: Tensor
    ) -> TokenSums:
        leaves_V = self.words.bincount(minlength=self._vocab_size)
        first_V = leaves_V.cumsum(0) - leaves_V
        leaves_X = leaves_V[targets_X]
        token_R = torch.arange(len(targets_X), device=targets_X.device).repeat_interleave(leaves_X)
        number_R = torch.arange(len(token_R), device=token_R.device)
        number_R = number_R - (leaves_X.cumsum(0) - leaves_X)[token_R]  # of a leaf of its word
        paths_RK = self.paths[first_V[targets_X[token_R]] + number_R]
        nodes_RK = (paths_RK.abs() - 1).clamp(min=0)
        vectors_RKD = functional.embedding(nodes_RK, self.table)
        states_RD = states_XD if len(token_R) == len(states_XD) else states_XD[token_R]
        logits_RK = torch.einsum("rkd,rd->rk", vectors_RKD, states_RD) + self.bias[nodes_RK]
        signed_RK = at_least_float32(logits_RK) * paths_RK.sign()
        log_RK = functional.logsigmoid(signed_RK).masked_fill(paths_RK == 0, 0.0)
        right_R = ((signed_RK > 0) | (paths_RK == 0)).all(1)
        log_XM = log_RK.new_full((len(targets_X), int(leaves_X.max())), -torch.inf)
        log_X = log_XM.index_put((token_R, number_R), log_RK.sum(1)).logsumexp(1)
        right = (right_R * weights_X[token_R]).sum()
        return TokenSums(-(log_X * weights_X).sum(), right)

    def log_probabilities(self, states_XD: Tensor, words: Words) -> Tensor:
        logits_XN = at_least_float32(functional.linear(states_XD, self.table, self.bias))
        both_X2N = functional.logsigmoid(torch.cat((logits_XN, -logits_XN), dim=1))
        leaf_P, side_P = self._steps()
        column_P = torch.where(side_P > 0, side_P - 1, len(self.table) - side_P - 1)
        steps_LN = torch.sparse_coo_tensor(
            torch.stack((leaf_P, column_P)),
            both_X2N.new_ones(len(leaf_P)),
            (len(self.words), both_X2N.shape[1]),
            check_invariants=False,
        )
        log_XL = torch.sparse.mm(steps_LN, both_X2N.t()).t()
        most_XV = log_XL.new_full((len(log_XL), self._vocab_size), -torch.inf)
        word_XL = self.words.long().expand_as(log_XL)
        most_XV = most_XV.scatter_reduce(1, word_XL, log_XL.detach(), "amax")
        shares_XL = (log_XL - most_XV.gather(1, word_XL)).exp()
        return torch.zeros_like(most_XV).scatter_add(1, word_XL, shares_XL).log() + most_XV


def mean_states(model: Any, text: Text, V: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Train `model`, a `NextTokenModel`, by Adagrad on the beginning of the text, and return its
    mean state before each word, (V, D); zeros for a word that does not occur there."""
    optimizer = torch.optim.Adagrad(model.parameters(), lr=_RATE)
    for ids_BT in _blocks(text):
        optimizer.zero_grad()
        states_BTD = model.states(ids_BT[:, :-1])
        targets_BT = ids_BT[:, 1:]
        weights_BT = torch.ones(targets_BT.shape, dtype=states_BTD.dtype)
        (model.sums(states_BTD, targets_BT, weights_BT).total / targets_BT.numel()).backward()
        optimizer.step()
    sums_VD = torch.zeros(V, model.factors.table.shape[1], dtype=torch.float64)
    counts_V = torch.zeros(V, dtype=torch.float64)
    model.eval()
    with torch.no_grad():
        for ids_BT in _blocks(text):
            targets_X = ids_BT[:, 1:].flatten()
            states_XD = model.states(ids_BT[:, :-1]).flatten(0, 1).double()
            sums_VD.index_add_(0, targets_X, states_XD)
            counts_V += targets_X.bincount(minlength=V)
    return (sums_VD / counts_V.clamp(min=1)[:, None]).numpy()


def _blocks(text: Text) -> Iterator[Tensor]:
    """Yield batches of blocks of T + 1 ids that overlap by one, (B, T + 1)."""
    size, remaining = _BLOCKS * _LENGTH, _LEARNT_FROM
    for ids in text():
        for start in range(0, min(len(ids), remaining) - _LENGTH, size):
            part = torch.from_numpy(ids[start : start + size + 1].astype(np.int64))
            yield part.unfold(0, _LENGTH + 1, _LENGTH)
        remaining -= len(ids)
        if remaining <= 0:
            return
