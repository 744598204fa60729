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

Shapes: X tokens, D width, V vocabulary, C classes, L leaves, N nodes, K nodes of the longest path,
R pairs of a token and a leaf.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from rungwise.core.configuration.config import Config
from rungwise.core.errors import BlockError, ConfigError
from rungwise.models.losses import word_trees
from rungwise.models.losses.cross_entropy import TokenSums, at_least_float32, output_logits
from rungwise.models.losses.word_trees import Text, Tree

_LEARNT_FROM = 1 << 20  # tokens of the text that a tree is learnt from
_BLOCKS, _LENGTH, _RATE = 32, 32, 0.1


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


Words = tuple[Tensor, Tensor | None]  # the rows (V, D) and biases (V,) of the softmax


class FactoredOutput(nn.Module, ABC):
    """Replaces the softmax over all words."""

    @abstractmethod
    def arrange(self, text: Text, model: Any) -> None:
        """Place the words by the training text, before training; `model` is the whole model."""

    @abstractmethod
    def set_word_shares(self, shares_V: Tensor, bias_V: Tensor | None) -> None:
        """Set the biases so that states of zeros predict these shares (V,) of placed words."""

    @abstractmethod
    def sums(
        self, states_XD: Tensor, words: Words, targets_X: Tensor, weights_X: Tensor
    ) -> TokenSums:
        """Sum the losses of the targets, and the targets that the likeliest choices lead to."""

    @abstractmethod
    def log_probabilities(self, states_XD: Tensor, words: Words) -> Tensor:
        """Return the log-probabilities of all words, (X, V)."""


class WordClasses(FactoredOutput):
    """Classes of words. `order` has the words sorted by class, `sizes` their number in each."""

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
        V, C = len(self.order), len(self.sizes)
        counts_V = word_trees.count_words(text, V)
        if self.config.by == "frequency":
            self._place(word_trees.frequency_classes(counts_V, C))
        elif self.config.by == "brown":
            self._place(word_trees.brown_clusters(text, counts_V, C).classes)

    @torch.no_grad()
    def set_word_shares(self, shares_V: Tensor, bias_V: Tensor | None) -> None:
        assert bias_V is not None
        bias_V.copy_(shares_V.log())
        parts = shares_V[self.order].split(self.sizes.tolist())
        self.bias.copy_(torch.stack([part.sum() for part in parts]).log())

    def sums(
        self, states_XD: Tensor, words: Words, targets_X: Tensor, weights_X: Tensor
    ) -> TokenSums:
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


class WordTree(FactoredOutput):
    """A binary tree with vectors of nodes. `paths` and `words` are those of `Tree`."""

    paths: Tensor
    words: Tensor

    def __init__(self, config: TreeOutput, V: int, width: int, bound: float) -> None:
        super().__init__()
        self.config, self._bound, self._vocab_size = config, bound, V
        self.table = nn.Parameter(torch.empty(0, width))
        self._plant(word_trees.random_tree(V))

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
        counts_V = word_trees.count_words(text, V)
        if shape == "huffman":
            self._plant(word_trees.huffman_tree(counts_V))
        elif shape == "brown":
            clusters = word_trees.brown_clusters(text, counts_V, math.isqrt(V))
            self._plant(word_trees.cluster_tree(clusters, counts_V))
        elif shape in ("balanced", "adaptive"):
            points_VD = mean_states(copy.deepcopy(model), text, V)
            balanced = shape == "balanced"
            self._plant(word_trees.learn_tree(points_VD, balanced, self.config.overlap))

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
