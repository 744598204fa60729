"""Output layers: exact distributions, brute force, and where their words come to stand."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rungwise.models.families.nnlm import LogBilinearConfig, NnlmConfig
from rungwise.models.families.recurrent import LstmConfig
from rungwise.models.losses import output_layer
from rungwise.models.losses.objectives import CAUSAL
from rungwise.models.losses.output_layer import Clusters
from tests.conftest import SPECIAL_IDS
from tests.small_models import random_causal_batch, shaken, sum_probabilities

V = 37
CLASSES = [{"kind": "classes", "by": by} for by in ("frequency", "equal", "brown")]
TREES: list[dict[str, Any]] = [
    {"kind": "tree", "shape": shape}
    for shape in ("random", "huffman", "brown", "balanced", "adaptive")
]
MANY_LEAVES = {"kind": "tree", "shape": "adaptive", "overlap": 0.45}
FACTORED = [*CLASSES, *TREES, MANY_LEAVES]
FAMILIES = {"nnlm": NnlmConfig, "lstm": LstmConfig, "log_bilinear": LogBilinearConfig}
SIZES: dict[str, dict[str, Any]] = {
    "nnlm": {"embedding_size": 4, "hidden_size": 5},
    "lstm": {"num_layers": 1, "hidden_size": 6},
    "log_bilinear": {"embedding_size": 6},
}


def text() -> list[np.ndarray[Any, Any]]:
    """Two parts of a text whose words are as frequent as Zipf's law has it."""
    weights = 1 / np.arange(1, V + 1)
    rng = np.random.default_rng(0)
    return [rng.choice(V, 3000, p=weights / weights.sum()).astype(np.uint16) for _ in range(2)]


def built(output: dict[str, Any], family: str = "log_bilinear", **changes: Any) -> Any:
    torch.manual_seed(0)
    config = FAMILIES[family].model_validate(SIZES[family] | changes | {"output": output})
    model = config.build(V, CAUSAL)
    model.read_text(text)
    return shaken(model, 0.5).double().eval()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("output", FACTORED, ids=str)
def test_the_sums_and_gradients_are_those_of_all_probabilities(
    family: str, output: dict[str, Any]
) -> None:
    """Which sum to 1; brute force normalises them again and picks the targets."""
    model = built(output, family)
    torch.manual_seed(1)
    batch = random_causal_batch(3, 7, V, packed=False, dtype=torch.float64)
    states = model.states(batch.ids)
    log_BTV = model.to_logits(states)
    ones = torch.ones(3, 7, dtype=torch.float64)
    torch.testing.assert_close(log_BTV.exp().sum(-1), ones, atol=1e-12, rtol=0)
    picked = log_BTV.log_softmax(-1).gather(-1, batch.targets[..., None])[..., 0]
    brute = -(picked * batch.weights).sum()
    sums = model.sums(states, batch.targets, batch.weights)
    torch.testing.assert_close(sums.total, brute, rtol=1e-12, atol=0)
    assert not sums.correct.requires_grad
    parameters = [each for each in model.parameters() if each.requires_grad]
    both = [
        torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
        for value in (sums.total, brute)
    ]
    assert sum(each is not None for each in both[0]) >= 4
    for ours, expected in zip(*both, strict=True):
        if ours is None:
            assert expected is None
        else:
            torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("count", [1, V])
def test_one_class_and_as_many_as_words_are_the_softmax(count: int) -> None:
    plain = built({"kind": "softmax"})
    model = built({"kind": "classes", "count": count, "by": "equal"})
    model.load_state_dict(plain.state_dict(), strict=False)
    if count == V:  # the choice of the class is that of the word
        order = model.factors.order
        model.factors.table.data = model.output_table()[order].detach()
        model.factors.bias.data = model.bias[order].detach()
    batch = random_causal_batch(3, 7, V, packed=False, dtype=torch.float64)
    torch.testing.assert_close(model.logits(batch.ids), plain.logits(batch.ids).log_softmax(-1))
    ours, expected = model(batch), plain(batch)
    torch.testing.assert_close(ours.total, expected.total, rtol=1e-12, atol=0)
    assert ours.correct == expected.correct


@pytest.mark.parametrize("output", FACTORED, ids=str)
def test_a_prediction_is_correct_if_each_choice_is_the_likeliest(output: dict[str, Any]) -> None:
    """The word that is found so has the other choices' words behind it, one at a time."""
    model = built(output)
    states = torch.randn(1, 1, 6, dtype=torch.float64)
    found = [
        word
        for word in range(V)
        if model.sums(states, torch.tensor([[word]]), torch.ones(1, 1)).correct
    ]
    assert len(found) == 1


def test_classes_by_frequency_have_equal_shares_and_falling_counts() -> None:
    counts = np.sort(np.random.default_rng(1).zipf(1.3, 500).clip(max=3000))[::-1]
    class_V = output_layer.frequency_classes(counts, 20)
    sizes = np.bincount(class_V)
    assert len(sizes) == 20
    assert (np.diff(class_V) >= 0).all()
    mass = np.bincount(class_V, counts)
    for number in range(19):  # a class is closed by the word with which it reaches its share
        share = mass[number:].sum() / (20 - number)
        last = counts[class_V == number][-1]
        assert mass[number] - last < share
    nothing_left = output_layer.frequency_classes(np.zeros(7, np.int64), 7)
    assert nothing_left.tolist() == list(range(7))


def check_tree(tree: output_layer.Tree, words: int) -> None:
    """Every node has both sides, every word a leaf, and the leaves fill the tree (Kraft)."""
    depths = (tree.paths != 0).sum(1)
    assert math.fsum(0.5**depth for depth in depths.tolist()) == 1.0
    assert set(tree.words.tolist()) == set(range(words))
    assert (np.diff(tree.words) >= 0).all()
    sides = set(tree.paths[tree.paths != 0].tolist())
    assert sides == {sign * node for node in range(1, len(depths)) for sign in (1, -1)}


@settings(max_examples=30)
@given(counts=st.lists(st.integers(0, 1000), min_size=1, max_size=60), seed=st.integers(0, 99))
def test_every_tree_is_full_and_huffmans_is_within_a_bit_of_the_entropy(
    counts: list[int], seed: int
) -> None:
    count = len(counts)
    balanced = output_layer.random_tree(count)
    check_tree(balanced, count)
    assert balanced.paths.shape[1] == math.ceil(math.log2(count))
    points = np.random.default_rng(seed).standard_normal((count, 3)).round()
    for overlap in (0.0, 0.2, 0.4, 0.49):
        several = output_layer.learn_tree(points, False, overlap)
        check_tree(several, count)
        assert np.bincount(several.words).max() <= (8 if overlap else 1)
    halves = output_layer.learn_tree(points, True, 0.0)
    check_tree(halves, count)
    assert halves.paths.shape == balanced.paths.shape
    tree = output_layer.huffman_tree(np.array(counts))
    check_tree(tree, count)
    shares = np.maximum(counts, 1) / np.maximum(counts, 1).sum()
    entropy = -(shares * np.log2(shares)).sum()
    mean = ((tree.paths != 0).sum(1) * shares).sum()
    assert entropy - 1e-9 <= mean < entropy + 1 - 1e-9 or count == 1


def test_a_tree_of_clusters_keeps_their_codes() -> None:
    class_V = np.array([0, 1, 2, 0, 1, 0])
    counts = np.array([9, 5, 3, 4, 2, 1])
    tree = output_layer.cluster_tree(Clusters(class_V, ("00", "01", "1")), counts)
    check_tree(tree, 6)
    signs = [np.sign(row).tolist() for row in tree.paths]
    tops = [{tuple(signs[word][:2]) for word in np.flatnonzero(class_V == c)} for c in range(2)]
    assert tops == [{(1, 1)}, {(1, -1)}]
    assert signs[2] == [-1, 0, 0, 0]


def test_words_between_two_clouds_stand_on_both_sides() -> None:
    points = np.array([[-3.0], [-2.9], [0.0], [2.9], [3.0]])
    tree = output_layer.learn_tree(points, False, 0.45)
    check_tree(tree, 5)
    assert Counter(tree.words.tolist())[2] == 2
    assert (output_layer.learn_tree(points, False, 0.0).words == np.arange(5)).all()


@pytest.mark.parametrize("output", [CLASSES[0], MANY_LEAVES], ids=str)
def test_a_trained_layer_is_read_from_its_file_and_scores_texts(output: dict[str, Any]) -> None:
    """A tree in a file may have more leaves than the one that a new model begins with."""
    model = built(output)
    if output is MANY_LEAVES:
        assert len(model.factors.words) > V
    again = model_of(output).double()
    again.load_state_dict(model.state_dict())
    trained = FAMILIES["log_bilinear"](**SIZES["log_bilinear"]).trained(again, CAUSAL, SPECIAL_IDS)
    assert sum_probabilities(trained, V) == pytest.approx(1.0, abs=1e-9)
    with torch.device("meta"):
        bare = model_of(output)
    bare.load_state_dict(model.state_dict(), assign=True)
    torch.testing.assert_close(bare.factors.table, model.factors.table)


def model_of(output: dict[str, Any]) -> Any:
    return LogBilinearConfig.model_validate(SIZES["log_bilinear"] | {"output": output}).build(
        V, CAUSAL
    )
