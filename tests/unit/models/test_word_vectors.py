"""word2vec and GloVe against formulas and their gradients, slower code and cases by hand."""

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor
from torch.nn import functional

from rungwise.models import kernels
from rungwise.models.trained.encoders import count_marks
from rungwise.models.word_vectors.word2vec import (
    GloveConfig,
    Word2vecConfig,
    alias_table,
    huffman_paths,
    keep_probabilities,
)
from tests.conftest import text_of_words

COUNTS = np.array([5, 9, 12, 13, 16, 45, 0])
P = 16  # rows in memory are multiples of this


def rows(rng: np.random.Generator, count: int) -> NDArray[np.float32]:
    return rng.normal(0, 0.5, (count, P)).astype(np.float32)


def step(
    inputs: Any, outputs: Any, window: list[int], targets: Any, labels: Any, mean: bool, rate: float
) -> float:
    """One step of the kernel, in place; the loss if the rate is 0."""
    ids, right = np.array(window), np.array(labels, np.float32)
    room = (np.empty(P, np.float32), np.empty(P, np.float32), np.empty(len(right), np.float32))
    return kernels.take_step(inputs, outputs, ids, np.array(targets), right, mean, rate, *room)


def slow_loss(
    tables: Sequence[Tensor], window: list[int], targets: Any, labels: Any, mean: bool
) -> Tensor:
    """Minus the logs of equations 1 and 4 of Mikolov et al. 2013b, in double precision."""
    inputs, outputs = tables
    vectors = inputs[window].mean(0, keepdim=True) if mean else inputs[window]
    signs = 2 * torch.tensor(labels) - 1
    return -functional.logsigmoid(signs * (vectors @ outputs[targets].T)).sum()


def test_huffman_codes_by_hand() -> None:
    """The textbook's frequencies (Cormen et al., 16.3): inner nodes 14, 25, 30, 55, 100."""
    starts, nodes, labels = huffman_paths(COUNTS)
    paths = [
        list(zip(nodes[a:b].tolist(), labels[a:b].astype(int).tolist(), strict=True))
        for a, b in itertools.pairwise(starts)
    ]
    assert paths == [
        [(4, 0), (3, 0), (2, 1), (0, 1)],
        [(4, 0), (3, 0), (2, 1), (0, 0)],
        [(4, 0), (3, 1), (1, 1)],
        [(4, 0), (3, 1), (1, 0)],
        [(4, 0), (3, 0), (2, 0)],
        [(4, 1)],
        [],
    ]


def test_hierarchical_softmax_sums_to_one_over_the_vocabulary() -> None:
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 50, 300)
    starts, nodes, labels = huffman_paths(counts)
    inputs, outputs = rows(rng, 1), rows(rng, len(counts)) * 3
    total = 0.0
    for word in np.flatnonzero(counts):
        path = slice(starts[word], starts[word + 1])
        total += math.exp(-step(inputs, outputs, [0], nodes[path], labels[path], False, 0.0))
    assert total == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("mean", [False, True], ids=["skip_gram", "cbow"])
@pytest.mark.parametrize(
    ("targets", "labels"),
    [([2, 5, 1, 7], [1, 0, 0, 0]), ([6, 3, 0], [0, 1, 1])],
    ids=["negative", "hierarchical"],
)
def test_a_step_is_the_gradient_of_the_papers_loss(
    targets: list[int], labels: list[int], mean: bool
) -> None:
    rng = np.random.default_rng(4)
    inputs, outputs = rows(rng, 8), rows(rng, 8)
    # Words of skip-gram take turns, each with the outputs that the one before has left.
    windows = [[1, 4, 4, 6]] if mean else [[1], [4]]
    for window in windows:
        tables = inputs, outputs
        before: list[Any] = [torch.from_numpy(each).double().requires_grad_() for each in tables]
        expected = slow_loss(before, window, targets, labels, mean)
        expected.backward()
        measured = step(inputs, outputs, window, targets, labels, mean, 0.0)
        assert measured == pytest.approx(expected.item(), rel=1e-5)
        step(inputs, outputs, window, targets, labels, mean, 1.0)
        for start, after in zip(before, tables, strict=True):
            np.testing.assert_allclose(start.detach().numpy() - after, start.grad, atol=2e-5)


def test_noise_is_drawn_by_the_counts_to_the_power() -> None:
    weights = COUNTS**0.75
    share, other = alias_table(weights.astype(np.float64))
    state = np.array([12345], np.uint64)
    drawn = [kernels.draw_noise(state, share, other) for _ in range(100_000)]
    found = np.bincount(drawn, minlength=len(COUNTS))
    assert found[6] == 0
    expected = weights[:6] / weights.sum() * len(drawn)
    assert stats.chisquare(found[:6], expected).pvalue > 1e-3
    # And exactly: a slot's own share, and what others leave to its word.
    whole = Fraction(1, 2**32)
    exact = [Fraction(int(each)) * whole for each in share]
    for slot, left in enumerate(other.tolist()):
        if left != slot:
            exact[left] += 1 - Fraction(int(share[slot])) * whole
    np.testing.assert_allclose(
        np.array(exact, float) / len(exact), weights / weights.sum(), atol=1e-8
    )


def reading(config: Word2vecConfig, negatives: int | None = None) -> Callable[..., Any]:
    """The kernel on sentences of one text, all words kept."""
    plan = config.model_copy(update={"subsample": 0.0}).plan(COUNTS)

    def read(sentences: list[list[int]], inputs: Any, outputs: Any, rate: float, seed: int) -> Any:
        starts = np.cumsum([0, *map(len, sentences)])
        ids = np.array([word for sentence in sentences for word in sentence], np.int32)
        reach = (config.window, config.dynamic_window)
        count = config.negatives if negatives is None else negatives
        mean = config.architecture == "cbow"
        stretch = (ids, starts, 0, len(sentences))
        return kernels.read_sentences(
            *stretch, plan, inputs, outputs, *reach, count, mean, rate, rate, seed
        )

    return read


@pytest.mark.parametrize("window", [1, 2, 5])
def test_pairs_of_skip_gram_by_hand(window: int) -> None:
    """With one-hot vectors, and nothing but what is right to predict, the output counts pairs."""
    read = reading(Word2vecConfig(window=window, dynamic_window=False), negatives=0)
    sentences = [[0, 1, 2, 3], [4], [5, 0, 5, 6]]  # 6 is not counted, so it is left out first
    outputs = np.zeros((7, P), np.float32)
    rate = 1e-4
    _, number = read(sentences, np.eye(7, P, dtype=np.float32), outputs, rate, 1)
    expected = np.zeros((7, P))
    for sentence in ([0, 1, 2, 3], [4], [5, 0, 5]):
        for i, middle in enumerate(sentence):
            for j, near in enumerate(sentence):
                expected[middle, near] += 0 < abs(i - j) <= window
    np.testing.assert_allclose(outputs / (rate / 2), expected, atol=1e-3)
    assert number == expected.sum()


def test_a_dynamic_window_reads_a_word_at_distance_d_in_its_share_of_draws() -> None:
    read = reading(Word2vecConfig(window=4), negatives=0)
    outputs = np.zeros((7, P), np.float32)
    for seed in range(4000):
        read([[0, 1, 2, 3, 4]], np.eye(7, P, dtype=np.float32), outputs, 1e-6, seed * 7919 + 1)
    share = outputs[0, 1:5] / (0.5e-6 * 4000)
    np.testing.assert_allclose(share, [1, 3 / 4, 2 / 4, 1 / 4], atol=0.04)


def test_subsampling_is_that_of_the_first_implementation() -> None:
    share = COUNTS / COUNTS.sum()
    for word, kept in enumerate(keep_probabilities(COUNTS, 0.05)):
        ratio = 0.05 / share[word] if share[word] else 0.0
        assert kept / 2**32 == pytest.approx(min(1.0, math.sqrt(ratio) + ratio), abs=1e-9)
    assert (keep_probabilities(COUNTS, 0.0)[:6] == 2**32 - 1).all()


def slow_cells(sentences: list[list[int]], window: int, counts: Any) -> NDArray[np.float64]:
    """The table X of the paper, symmetric."""
    table = np.zeros((len(counts), len(counts)))
    for sentence in sentences:
        words = [word for word in sentence if counts[word]]
        for i, word in enumerate(words):
            for j, near in enumerate(words):
                if 0 < abs(i - j) <= window:
                    table[word, near] += 1 / abs(i - j)
    return table


def test_cooccurrences_by_hand_and_of_random_sentences() -> None:
    config, counts = GloveConfig(window=3), COUNTS
    by_hand = config.count(text_of_words([[[0, 1, 0, 2]]]), counts)
    cells = config.cells(by_hand, 7)
    found = {(r, c): x for r, c, x in zip(*(a.tolist() for a in cells), strict=True)}
    # 0 1 at 1 and 1, 0 0 at 2 in both windows, 0 2 at 3 and 1, 1 2 at 2
    expected = {(0, 1): 2.0, (0, 0): 1.0, (0, 2): 4 / 3, (1, 2): 0.5}
    assert found == pytest.approx(expected)

    rng = np.random.default_rng(0)
    sentences = [rng.integers(0, 7, length).tolist() for length in rng.integers(1, 30, 60)]
    table = config.count(text_of_words([sentences]), counts)
    whole = np.zeros((7, 7))
    for row, column, amount in zip(*config.cells(table, 7), strict=True):
        whole[row, column] = whole[column, row] = amount
    np.testing.assert_allclose(whole, slow_cells(sentences, 3, counts), rtol=1e-6)


def test_glove_against_the_paper_in_double_precision() -> None:
    """Equation 8 and its gradient, with AdaGrad as in glove.c, cell by cell."""
    config, rng = GloveConfig(size=5, x_max=4.0), np.random.default_rng(1)
    sentences = [rng.integers(0, 6, 12).tolist() for _ in range(8)]
    table = config.count(text_of_words([sentences]), COUNTS)
    cells = config.cells(table, 7)
    weights = config.start(COUNTS, 0, 0)
    for name in ("words", "contexts"):
        weights[name][:6, :5] = rng.normal(0, 0.5, (6, 5))
    slow = {name: array.astype(np.float64) for name, array in weights.items()}
    order = rng.permutation(len(cells.rows))
    x = slow_cells(sentences, config.window, COUNTS)
    f = np.minimum(x / 4.0, 1.0) ** 0.75

    def wrong(i: int, j: int) -> float:
        products = slow["words"][i] @ slow["contexts"][j]
        return products + slow["word_bias"][i] + slow["context_bias"][j] - math.log(x[i, j])

    every = [(i, j) for i in range(7) for j in range(7) if x[i, j]]
    loss, number = config.read(weights, cells, order, 0.0)
    assert number == len(every)
    assert loss == pytest.approx(sum(f[i, j] * wrong(i, j) ** 2 / 2 for i, j in every), rel=1e-5)
    config.read(weights, cells, order, 0.05)
    for cell in order:
        i, j = int(cells.rows[cell]), int(cells.columns[cell])
        for a, b in [(i, j)] if i == j else [(i, j), (j, i)]:
            g = 0.05 * f[a, b] * wrong(a, b)
            steps = {
                ("words", a): g * slow["contexts"][b],
                ("contexts", b): g * slow["words"][a],
                ("word_bias", a): g,
                ("context_bias", b): g,
            }
            for (name, row), gradient in steps.items():
                squares = slow[f"{name}_squares"]
                slow[name][row] -= gradient / np.sqrt(squares[row])
                squares[row] += gradient**2
    for name, array in weights.items():
        np.testing.assert_allclose(array, slow[name], atol=1e-5, err_msg=name)


@pytest.mark.parametrize("config", [Word2vecConfig(size=12), GloveConfig(size=12)], ids=["w", "g"])
def test_the_encoder_takes_the_vectors_and_gets_marks(config: Any) -> None:
    counts = np.array([0, 3, 3, 3])
    model = config.model(config.start(counts, 0, 0), counts)
    vectors = model.vectors([0, 1, 2, 3])
    assert vectors.shape == (4, 12)
    assert not vectors[0].any()
    assert vectors[1].any()
    marks = count_marks(config.objectives[0])
    encoder = config.encoder(config.objectives[0], 4, 0.0, marks).eval()
    encoder.load({name: torch.from_numpy(each) for name, each in model.to_tensors().items()})
    states = encoder(torch.tensor([[1, 3, 4]]))
    assert torch.equal(states[0, :2], torch.from_numpy(vectors[[1, 3]]))
    assert encoder.num_layers == 0
    assert states[0, 2].abs().sum() > 0
