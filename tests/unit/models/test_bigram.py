"""The neural bigram model: its optimum is the table of relative frequencies."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rungwise.instances.batch import CausalBatch
from rungwise.models.families.nnlm import BigramConfig
from rungwise.models.losses.objectives import CAUSAL
from rungwise.models.trained.capabilities import LanguageModel, NextTokenLogits, WordVectors
from tests.conftest import SPECIAL_IDS
from tests.small_models import random_causal_batch, shaken, sum_probabilities

V, END = 11, 3


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
