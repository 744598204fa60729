"""The neural n-gram, log-bilinear and bigram models: the papers' formulas by hand."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rungwise.instances.batch import CausalBatch
from rungwise.models.families.nnlm import BigramConfig, LogBilinearConfig, NnlmConfig
from rungwise.models.losses.objectives import CAUSAL
from rungwise.models.trained import language_models
from rungwise.models.trained.capabilities import (
    Encoder,
    LanguageModel,
    NextTokenLogits,
    WordVectors,
)
from rungwise.models.transformer.block import Boundaries
from tests.conftest import SPECIAL_IDS
from tests.small_models import random_causal_batch, shaken, sum_probabilities, watch_logits

V, END = 11, 3
SMALL = {"order": 4, "embedding_size": 3, "hidden_size": 5, "initializer_range": 0.5}
LINEAR = {"order": 4, "embedding_size": 3, "initializer_range": 0.5}
CONFIGS = {
    "direct": NnlmConfig.model_validate(SMALL),
    "hidden": NnlmConfig.model_validate(SMALL | {"direct": False}),
    "tied": LogBilinearConfig.model_validate(LINEAR),
    "untied": LogBilinearConfig.model_validate(LINEAR | {"tied": False}),
}
every_config = pytest.mark.parametrize("name", CONFIGS)


def built(name: str = "direct") -> Any:
    torch.manual_seed(0)
    return shaken(CONFIGS[name].build(V, CAUSAL)).double().eval()


@every_config
def test_the_formula_by_hand(name: str) -> None:
    """y = b + W x + U tanh(d + H x), or b + R' (C_1 r_1 + C_2 r_2 + C_3 r_3)."""
    model = built(name)
    weights = {
        name.removeprefix("nnlm.").removeprefix("log_bilinear."): value.detach().numpy()
        for name, value in model.named_parameters()
    }
    C, missing = weights["token_embedding.weight"], weights["missing_embedding.weight"][0]
    rows = weights.get("output.weight", C)
    ids, document = [7, 9, END, 5, 6, 8, 10], [0, 0, 1, 1, 1, 1, 1]
    logits_TV = model.logits(torch.tensor([ids]), Boundaries(torch.tensor([document])))[0]
    for t in range(len(ids)):
        before = [
            C[ids[t - back]] if t >= back and document[t - back] == document[t] else missing
            for back in range(3)
        ]
        x = np.concatenate(before)
        if "hidden.weight" in weights:
            o = np.tanh(weights["hidden.bias"] + weights["hidden.weight"] @ x)
            y = rows @ (np.concatenate((x, o)) if name == "direct" else o)
        else:
            y = rows @ sum(
                c @ r
                for c, r in zip(np.split(weights["maps.weight"], 3, axis=1), before, strict=True)
            )
        np.testing.assert_allclose(logits_TV[t].detach().numpy(), y + weights["bias"], rtol=1e-10)


def test_parameters_are_counted_as_in_the_paper_and_operations_by_hand() -> None:
    """Section 2: |V| (1 + n m + h) + h (1 + (n-1) m); and the vector of what is missing."""
    config = NnlmConfig()
    with torch.device("meta"):
        model = config.build(10_000, CAUSAL)
    n, m, h = 5, 60, 50
    paper = 10_000 * (1 + n * m + h) + h * (1 + (n - 1) * m)
    assert sum(parameter.numel() for parameter in model.parameters()) == paper + m
    # H is 50 by 240, [W U] 10,000 by 290.
    assert config.flops_per_token(10_000, 35, CAUSAL) == 6 * (12_000 + 2_900_000)
    alone = NnlmConfig(direct=False)
    assert alone.flops_per_token(10_000, 35, CAUSAL) == 6 * (12_000 + 500_000)


@every_config
def test_a_long_text_is_read_in_windows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(name)
    trained = CONFIGS[name].trained(model, CAUSAL, SPECIAL_IDS)
    assert isinstance(trained, LanguageModel)
    assert isinstance(trained, NextTokenLogits)
    assert isinstance(trained, WordVectors)
    torch.manual_seed(3)
    texts = [torch.randint(3, V, (length,)).tolist() for length in (40, 1, 0, 17)]
    assert texts[0].count(END) > 1  # a document ends there, and contexts with it
    whole = trained.log_probabilities(texts)
    for text, scores in zip(texts, whole, strict=True):
        stream = torch.tensor([[END, *text]])
        document = (stream == END).cumsum(1)
        log_TV = model.logits(stream, Boundaries(document))[0].log_softmax(-1).detach().numpy()
        np.testing.assert_allclose(scores, log_TV[range(len(text)), text], rtol=1e-10)
    held = watch_logits(model, monkeypatch)
    monkeypatch.setattr(language_models, "_MOST_LOGITS", 6 * V)
    for scores, expected in zip(trained.log_probabilities(texts), whole, strict=True):
        np.testing.assert_allclose(scores, expected, rtol=1e-10)
    assert max(held) == 6
    assert sum_probabilities(trained, V) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("sizes", [(3, 5), (6, 4)])
def test_its_encoder_is_the_lookup_and_the_hidden_layer(sizes: tuple[int, int]) -> None:
    M, D = sizes
    config = NnlmConfig(order=3, embedding_size=M, hidden_size=D, initializer_range=0.5)
    encoder = config.encoder(CAUSAL, V, 0.0, new_tokens=3).double().eval()
    assert isinstance(encoder, Encoder)
    model = shaken(config.build(V, CAUSAL)).double()
    encoder.load(model.state_dict())
    ids_BT = torch.randint(V, (2, 5))
    table, states = encoder.layers(ids_BT)
    assert table.shape == states.shape == (2, 5, max(M, D))
    torch.testing.assert_close(table[..., :M], model.nnlm.token_embedding(ids_BT))
    expected = model.nnlm.activate(model.nnlm.context(ids_BT))
    torch.testing.assert_close(states[..., :D], expected)
    assert not table[..., M:].any()
    assert not states[..., D:].any()
    assert [len(level) for level in encoder.depth()] == [2, 2]


def test_a_log_bilinear_model_of_one_word_and_an_identity_is_the_bigram_model() -> None:
    """Vectors as long as the vocabulary, C the identity, and an output of its own."""
    config = LogBilinearConfig(order=2, embedding_size=V, tied=False)
    model: Any = shaken(config.build(V, CAUSAL)).double()
    model.log_bilinear.token_embedding.weight.data = torch.eye(V).double()
    model.log_bilinear.maps.weight.data = torch.eye(V).double()
    bigram: Any = BigramConfig().build(V, CAUSAL).double()
    bigram.pairs.weight.data = model.output.weight.data.t()
    bigram.bias.data = model.bias.data
    batch = random_causal_batch(3, 7, V, dtype=torch.float64)
    ours, expected = CAUSAL(model, batch), CAUSAL(bigram, batch)
    torch.testing.assert_close(ours.total, expected.total)
    torch.testing.assert_close(ours.correct, expected.correct)
    torch.testing.assert_close(model.logits(batch.ids), bigram.logits(batch.ids))


def test_it_learns_the_bigram_entropy_of_a_text_and_goes_no_lower(real_data: Path) -> None:
    """Tinyshakespeare by characters: 2.45257 nats, counted here by hand, and a start at ln 65."""
    text = (real_data / "corpora/en/tinyshakespeare/input.txt").read_text("utf-8")
    ids = np.unique(list(text), return_inverse=True)[1]
    pairs, counts = np.unique(ids[:-1] * 65 + ids[1:], return_counts=True)
    before = np.bincount(ids[:-1], minlength=65)
    assert (len(ids), len(pairs)) == (1_115_394, 1_403)
    entropy = -(counts * np.log(counts / before[pairs // 65])).sum() / counts.sum()
    assert entropy == pytest.approx(2.45257, abs=5e-6)

    model = BigramConfig().build(65, CAUSAL).double()
    weights = torch.from_numpy(counts / 1e3)[None]
    batch = CausalBatch(
        torch.from_numpy(pairs // 65)[None], torch.from_numpy(pairs % 65)[None], weights
    )
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=25, line_search_fn="strong_wolfe")
    losses: list[float] = []

    def closure() -> Any:
        optimizer.zero_grad()
        loss = CAUSAL(model, batch).loss()
        loss.backward()
        losses.append(loss.item())
        return loss

    while len(losses) < 1500 and (not losses or losses[-1] > entropy + 1e-3):
        optimizer.step(closure)
    assert losses[0] == pytest.approx(math.log(65), abs=1e-12)
    assert entropy < losses[-1] < entropy + 1e-3
    assert min(losses) > entropy


def test_the_loss_of_repeated_words_is_that_of_each_alone() -> None:
    """And so are its gradients and its right guesses, although each word is normalised once."""
    model: Any = shaken(BigramConfig().build(V, CAUSAL)).double()
    batch = random_causal_batch(4, 9, V, dtype=torch.float64)
    sums = CAUSAL(model, batch)
    gradients = torch.autograd.grad(sums.total.sum(), list(model.parameters()))
    logits = (model.pairs.weight[batch.ids] + model.bias).flatten(0, 1)
    losses = torch.nn.functional.cross_entropy(logits, batch.targets.flatten(), reduction="none")
    total = (losses * batch.weights.flatten()).sum()
    torch.testing.assert_close(sums.total.sum(), total)
    torch.testing.assert_close(gradients, torch.autograd.grad(total, list(model.parameters())))
    right = (logits.argmax(1) == batch.targets.flatten()) * batch.weights.flatten()
    assert sums.correct.item() == right.sum().item()


def test_what_it_offers() -> None:
    """Probabilities, of which those of all texts of two words sum to 1, and no vectors."""
    model: Any = shaken(BigramConfig().build(V, CAUSAL)).double()
    trained = BigramConfig().trained(model, CAUSAL, SPECIAL_IDS)
    for capability in (LanguageModel, NextTokenLogits):
        assert isinstance(trained, capability)
    assert not isinstance(trained, WordVectors)
    assert sum_probabilities(trained, V) == pytest.approx(1.0, abs=1e-6)
    assert [len(row) for row in trained.log_probabilities([[], [END, 7]])] == [0, 2]
