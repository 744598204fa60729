"""Counts and a network mixed: a distribution, the mixture of its parts, and a gate that learns."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from rungwise.core.errors import DataError
from rungwise.core.tokens import SpecialIds
from rungwise.models.families.counts_and_network import CountsAndNetwork, CountsAndNetworkConfig
from rungwise.models.families.kneser_ney import Smoothing, estimate_model
from rungwise.models.families.ngram import NgramConfig
from rungwise.models.family import Size
from rungwise.models.ngram_model import NextTokenCounts, NgramLanguageModel
from rungwise.models.trained.capabilities import LanguageModel
from tests.conftest import text_of_words
from tests.small_models import LENGTH, shaken, small_config

V, START, END = 12, 0, 1
SPECIAL = SpecialIds(cls=START, end=END)
NETWORKS: dict[str, dict[str, Any]] = {
    "gpt": small_config("causal").model_dump(),
    "lstm": {"kind": "lstm", "num_layers": 1, "hidden_size": 8},
}


def draw_texts(count: int, seed: int) -> list[list[int]]:
    """Documents in which a token mostly follows the one before it, closed by the end symbol."""
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(count):
        steps = np.where(rng.random(rng.integers(1, 3 * LENGTH)) < 0.7, 1, rng.integers(2, 9))
        texts.append([*(2 + np.cumsum(steps) % (V - 2)).tolist(), END])
    return texts


def count(texts: list[list[int]]) -> NgramLanguageModel:
    text = text_of_words([[text[:-1]] for text in texts])
    table = NgramConfig(order=3).count(text, SPECIAL)
    model = estimate_model(table, V, START, Smoothing((0.5, 1.0, 1.5)))
    return dataclasses.replace(model, end_id=END)


def mixed(
    network: str, gate: str, scale: float = 0.3, exact: bool = True
) -> tuple[CountsAndNetworkConfig, CountsAndNetwork]:
    config = CountsAndNetworkConfig.model_validate(
        {"counts": {"order": 3}, "network": NETWORKS[network], "gate": gate}
    )
    objective = config.network.objective("causal")
    torch.manual_seed(0)
    module = shaken(config.network.build(V, objective), scale).eval()
    if exact:
        module.double()
    trained: Any = config.network.trained(module, objective, SPECIAL)
    return config, config.mix(count(draw_texts(3, 1)), trained, draw_texts(60, 2), seed=0)


@pytest.mark.parametrize(
    ("network", "gate"), [*itertools.product(NETWORKS, ["constant", "learnt"]), ("gpt", "residual")]
)
def test_it_is_the_distribution_that_mixes_those_of_its_parts(network: str, gate: str) -> None:
    _, model = mixed(network, gate)
    assert isinstance(model, LanguageModel)
    texts = [text[: LENGTH - 1] for text in draw_texts(6, 3)]
    for text in texts:
        row = torch.tensor([[END, *text]])
        logs_TV = model.next_logits(row)[0, :-1]
        np.testing.assert_allclose(logs_TV.exp().sum(dim=-1), 1, rtol=1e-6)
        (own,) = model.log_probabilities([text])
        np.testing.assert_allclose(logs_TV[range(len(text)), text], own, atol=1e-8)
        (of_counts,) = model.counts.log_probabilities([text])
        (of_network,) = model.network.log_probabilities([text])
        if gate == "residual":  # as numpy has it from the two models alone
            words = [word for word in range(V) if word != START]
            of_words_TV = [
                [model.counts.log_probabilities([[*text[:place], w]])[0][-1] for w in words]
                for place in range(len(text))
            ]
            beside, model.network.module.beside = model.network.module.beside, None
            alone_TV = model.network.next_logits(row)[0, :-1][:, words].detach().numpy()
            model.network.module.beside = beside
            sums_TV = np.exp(alone_TV + np.array(of_words_TV))
            places = [words.index(token) for token in text]
            shares_T = sums_TV[range(len(text)), places] / sums_TV.sum(axis=1)
            np.testing.assert_allclose(of_network, np.log(shares_T), atol=1e-8)
        least, most = np.minimum(of_counts, of_network), np.maximum(of_counts, of_network)
        assert (least - 1e-9 <= own).all()
        assert (own <= most + 1e-9).all()
        if gate == "constant":
            weight = 1 / (1 + math.exp(-model.gate.bias.item()))
            expected = np.log(weight * np.exp(of_counts) + (1 - weight) * np.exp(of_network))
            np.testing.assert_allclose(own, expected, atol=1e-9)


@pytest.mark.parametrize(
    ("network", "gate"), [*((network, "learnt") for network in NETWORKS), ("gpt", "residual")]
)
def test_it_comes_back_from_its_arrays(network: str, gate: str) -> None:
    config, model = mixed(network, gate, exact=False)
    again = config.from_tensors(model.to_tensors(), SPECIAL)
    texts = draw_texts(6, 3)
    for one, other in zip(
        model.log_probabilities(texts), again.log_probabilities(texts), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_the_weight_is_the_likeliest_and_a_gate_is_likelier() -> None:
    texts = draw_texts(60, 2)
    losses = {}
    for gate in ("constant", "learnt"):
        _, model = mixed("gpt", gate, scale=0.0)  # almost uniform, beside three documents
        losses[gate] = -np.concatenate(model.log_probabilities(texts)).mean()
        if gate == "constant":
            counts_N, network_N, _ = model._read_texts(texts)
            weights_W1 = np.linspace(0.001, 0.999, 999)[:, None]
            grid_W = -np.log(
                weights_W1 * counts_N.exp().numpy() + (1 - weights_W1) * network_N.exp().numpy()
            ).mean(axis=1)
            assert grid_W.min() - 1e-3 <= losses[gate] <= grid_W.min() + 1e-6
            assert losses[gate] < min(-counts_N.mean(), -network_N.mean())
    assert losses["learnt"] < losses["constant"]


def test_the_counts_of_a_context_are_those_of_each_token_alone() -> None:
    model = count(draw_texts(40, 1))
    for text in draw_texts(8, 4):
        context = text[:-1][:5]
        logs_V = NextTokenCounts(model)(torch.tensor([[3, END, *context]]))[-1]
        words = [word for word in range(V) if word != START]
        expected = [row[-1] for row in model.log_probabilities([[*context, w] for w in words])]
        np.testing.assert_allclose(logs_V[words], expected, rtol=1e-12)
        assert logs_V[START] == -np.inf


def test_a_gate_without_text_is_refused() -> None:
    config, model = mixed("gpt", "constant")
    with pytest.raises(DataError, match=r"raise pretrain\.set_aside"):
        config.mix(model.counts, model.network, [], seed=0)


@pytest.mark.parametrize("documents", [20, 41, 100, 159, 160, 5000])
def test_a_gate_surely_has_text_of_few_documents(documents: int) -> None:
    """Each document is drawn by itself, so that none is with this probability."""
    config = CountsAndNetworkConfig()
    keys = config.suggest(Size(100_000, 1000, 60.0, documents=documents))
    share = keys.get("pretrain.set_aside", 0.05)
    assert (1 - share) ** documents < 0.004
    assert ("pretrain.set_aside" in keys) == (documents < 160)


def test_how_unsure_counts_are_is_nearly_their_entropy() -> None:
    model = count(draw_texts(200, 1))
    mixture = CountsAndNetwork(model, None, None)  # pyright: ignore[reportArgumentType]
    for text in draw_texts(8, 4):
        logs_TV = NextTokenCounts(model)(torch.tensor([[END, *text[:-1]]]))
        entropies_T = torch.distributions.Categorical(logits=logs_TV).entropy()
        lengths_T, measured_T = mixture._measure_counts([text]).T
        assert lengths_T.max() == model.order - 1
        np.testing.assert_allclose(measured_T, entropies_T, atol=0.3)
