"""The LSTM language model: its state, its gradients, and the capabilities that it offers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rungwise.models.capabilities import Encoder, LanguageModel, NextTokenLogits, WordVectors
from rungwise.models.objectives import CAUSAL
from rungwise.models.recurrent import LstmConfig, LstmForPretraining
from rungwise.tokenizer import SpecialIds
from tests.conftest import SPECIAL_IDS

V, B, T = 23, 3, 8


def built(**changes: float) -> LstmForPretraining:
    torch.manual_seed(0)
    config = LstmConfig(**({"num_layers": 2, "hidden_size": 6} | changes))
    return LstmForPretraining(config, V)


def batch() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    stream_BT = torch.randint(V, (B, T + 1))
    return stream_BT[:, :-1], stream_BT[:, 1:], torch.ones(B, T)


def test_two_halves_with_the_state_handed_over_are_the_whole() -> None:
    model, (ids_BT, targets_BT, weights_BT) = built(), batch()
    zero = torch.zeros(B, *model.state_shape)
    whole, right, end = model(ids_BT, targets_BT, weights_BT, zero)
    total, count, state = 0.0, 0.0, zero
    for part in (slice(0, 3), slice(3, T)):
        one, hits, state = model(ids_BT[:, part], targets_BT[:, part], weights_BT[:, part], state)
        total, count = total + one, count + hits
    torch.testing.assert_close(total, whole)
    assert count == right
    torch.testing.assert_close(state, end)


def test_the_cell_is_the_one_of_the_paper() -> None:
    """One layer, token by token, from the gates of Hochreiter & Schmidhuber as PyTorch orders
    them: input, forget, cell, output."""
    model, (ids_BT, _, _) = built(num_layers=1, initializer_range=0.8), batch()
    lstm = model.lstm.layers[0]
    h_BD = c_BD = torch.zeros(B, 6)
    hidden = []
    for x_BD in model.lstm.token_embedding(ids_BT).unbind(1):
        gates_BG = functional.linear(x_BD, lstm.weight_ih_l0, lstm.bias_ih_l0)
        gates_BG = gates_BG + functional.linear(h_BD, lstm.weight_hh_l0, lstm.bias_hh_l0)
        into, keep, new, out = gates_BG.chunk(4, dim=1)
        c_BD = keep.sigmoid() * c_BD + into.sigmoid() * new.tanh()
        h_BD = out.sigmoid() * c_BD.tanh()
        hidden.append(h_BD)
    expected = functional.linear(
        torch.stack(hidden, 1), model.lstm.token_embedding.weight, model.bias
    )
    torch.testing.assert_close(model.logits(ids_BT), expected)


def test_gradients_agree_with_finite_differences() -> None:
    model, (ids_BT, targets_BT, weights_BT) = built(initializer_range=0.5).double(), batch()
    state = torch.randn(B, *model.state_shape, dtype=torch.float64) * 0.3

    def loss() -> Tensor:
        return model(ids_BT, targets_BT, weights_BT.double(), state)[0]

    loss().backward()
    torch.manual_seed(2)
    for parameter in model.parameters():
        assert parameter.grad is not None
        place = int(torch.randint(parameter.numel(), ()))
        flat = parameter.data.view(-1)
        before, step = flat[place].item(), 1e-6
        values = []
        for sign in (1, -1):
            flat[place] = before + sign * step
            values.append(loss().item())
        flat[place] = before
        numeric = (values[0] - values[1]) / (2 * step)
        assert parameter.grad.view(-1)[place].item() == pytest.approx(numeric, rel=1e-4, abs=1e-7)


def test_tied_weights_count_once() -> None:
    config = LstmConfig()  # Zaremba's medium model over a vocabulary of 10,000
    with torch.device("meta"):
        model = config.build(10_000, CAUSAL)
    of_layers = 2 * (8 * 650 * 650 + 8 * 650)
    assert sum(p.numel() for p in model.parameters()) == 10_000 * 650 + of_layers + 10_000
    assert config.flops_per_token(10_000, 35, CAUSAL) == 6 * (2 * 8 * 650**2 + 650 * 10_000)


def test_what_it_offers() -> None:
    model = built(initializer_range=0.5).eval()
    trained = LstmConfig(num_layers=2, hidden_size=6).trained(model, CAUSAL, SPECIAL_IDS)
    assert isinstance(trained, LanguageModel)
    assert isinstance(trained, NextTokenLogits)
    assert isinstance(trained, WordVectors)
    end = _end(SPECIAL_IDS)
    text = [7, 9, 11]
    (scores,) = trained.log_probabilities([text])
    log_TV = torch.log_softmax(model.logits(torch.tensor([[end, *text[:-1]]]))[0], dim=-1)
    np.testing.assert_allclose(scores, log_TV[range(3), text].detach().numpy(), rtol=1e-5)
    every = [[first, second] for first in range(V) for second in range(V)]
    total = math.fsum(math.exp(row.sum()) for row in trained.log_probabilities(every))
    assert total == pytest.approx(1.0, abs=1e-5)


def test_its_encoder_has_a_level_a_layer_and_reads_to_the_left() -> None:
    encoder = LstmConfig(num_layers=2, hidden_size=6).encoder(CAUSAL, V, 0.0, new_tokens=3).eval()
    assert isinstance(encoder, Encoder)
    ids_BT = torch.randint(V + 3, (2, 5))
    layers = encoder.layers(ids_BT)
    assert len(layers) == len(encoder.depth()) == 3
    changed = ids_BT.clone()
    changed[:, 3:] = 1
    for one, other in zip(layers, encoder.layers(changed), strict=True):
        torch.testing.assert_close(one[:, :3], other[:, :3], atol=0, rtol=0)
    encoder.load({f"lstm.{k}": v for k, v in built().lstm.state_dict().items()})


def _end(special: SpecialIds) -> int:
    (end,) = special.require("end")
    return end
