"""The recurrent language models: their state, gradients, dropouts, and what they offer."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rungwise.instances.batch import CausalBatch
from rungwise.models.families.recurrent import (
    LstmConfig,
    RecurrentFamily,
    RecurrentForPretraining,
    RnnConfig,
)
from rungwise.models.losses.objectives import CAUSAL
from rungwise.models.trained import language_models
from rungwise.models.trained.capabilities import (
    Encoder,
    LanguageModel,
    NextTokenLogits,
    WordVectors,
)
from tests.conftest import SPECIAL_IDS
from tests.small_models import sum_probabilities, watch_logits

V, B, T, D = 23, 3, 8, 6
KINDS: dict[str, type[RecurrentFamily]] = {"lstm": LstmConfig, "rnn": RnnConfig}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def config(kind: str, **changes: Any) -> RecurrentFamily:
    sizes: dict[str, Any] = {"num_layers": 2, "hidden_size": D}
    return KINDS[kind](**(sizes | changes))


def built(kind: str, **changes: Any) -> RecurrentForPretraining:
    torch.manual_seed(0)
    model = config(kind, **changes).build(V, CAUSAL)
    assert isinstance(model, RecurrentForPretraining)
    return model


def batch() -> CausalBatch[Tensor]:
    torch.manual_seed(1)
    stream_BT = torch.randint(V, (B, T + 1))
    return CausalBatch(stream_BT[:, :-1], stream_BT[:, 1:], torch.ones(B, T))


@pytest.mark.parametrize("tied", [True, False])
def test_the_cell_is_the_one_of_the_paper(kind: str, tied: bool) -> None:
    """Token by token: Elman's h, or the gates in PyTorch's order: input, forget, cell, output."""
    model = built(kind, num_layers=1, initializer_range=0.8, tied=tied)
    ids_BT = batch().ids
    body: Any = model.body
    cell = body.layers[0]
    weight_GE = torch.cat((cell.weight_ih_l0, cell.weight_hh_l0), dim=1)
    h_BD = c_BD = torch.zeros(B, D)
    hidden = []
    for x_BD in body.token_embedding(ids_BT).unbind(1):
        both_BE = torch.cat((x_BD, h_BD), dim=1)
        sums_BG = functional.linear(both_BE, weight_GE, cell.bias_ih_l0 + cell.bias_hh_l0)
        if kind == "rnn":
            h_BD = sums_BG.tanh()
        else:
            into, keep, new, out = sums_BG.chunk(4, dim=1)
            c_BD = keep.sigmoid() * c_BD + into.sigmoid() * new.tanh()
            h_BD = out.sigmoid() * c_BD.tanh()
        hidden.append(h_BD)
    table = model.get_parameter(f"{kind}.token_embedding.weight" if tied else "output.weight")
    assert (table is body.token_embedding.weight) == tied
    expected = functional.linear(torch.stack(hidden, 1), table, model.bias)
    torch.testing.assert_close(model.logits(ids_BT), expected)


def test_a_dropout_holds_for_all_of_a_block(kind: str) -> None:
    """Units of a row, and a word in all rows; after training none. Weights: test_awd_lstm.py."""
    model = built(kind, initializer_range=0.5, dropout=0.5).train()
    ids_BT = batch().ids
    dropped_BTD = model.states(ids_BT) == 0
    assert 0 < dropped_BTD[:, 0].sum() < B * D
    assert torch.equal(dropped_BTD, dropped_BTD[:, :1].expand_as(dropped_BTD))
    assert not torch.equal(dropped_BTD[0], dropped_BTD[1])

    model = built(kind, word_dropout=0.5).train()
    embedded_BTD = model.body.encode_layers(ids_BT)[0]
    gone_BT = (embedded_BTD == 0).all(-1)
    gone = set(ids_BT[gone_BT].tolist())
    assert gone
    assert not gone & set(ids_BT[~gone_BT].tolist())
    table = model.body.token_embedding.weight
    torch.testing.assert_close(embedded_BTD[~gone_BT], 2 * table[ids_BT[~gone_BT]])

    plain = built(kind)
    every = {"dropout": 0.5, "word_dropout": 0.5, "recurrent_dropout": 0.5}
    quiet = built(kind, **every).eval()
    assert torch.equal(quiet.logits(ids_BT), plain.eval().logits(ids_BT))
    encoder = config(kind, **every).encoder(CAUSAL, V, 0.0).train()
    encoder.load(quiet.state_dict())
    torch.testing.assert_close(encoder(ids_BT), plain.states(ids_BT))


def test_parameters_and_operations_by_hand() -> None:
    """Zaremba's medium LSTM over a vocabulary of 10,000, and Mikolov's network with 100 units."""
    medium = LstmConfig()
    small = RnnConfig(num_layers=1, hidden_size=100, tied=False)
    with torch.device("meta"):
        lstm, rnn = medium.build(10_000, CAUSAL), small.build(10_000, CAUSAL)
    of_layers = 2 * (8 * 650 * 650 + 8 * 650)
    assert sum(p.numel() for p in lstm.parameters()) == 10_000 * 650 + of_layers + 10_000
    assert medium.flops_per_token(10_000, 35, CAUSAL) == 6 * (2 * 8 * 650**2 + 650 * 10_000)
    of_layers = 2 * 100 * 100 + 2 * 100
    assert sum(p.numel() for p in rnn.parameters()) == 2 * 10_000 * 100 + of_layers + 10_000
    assert small.flops_per_token(10_000, 35, CAUSAL) == 6 * (2 * 100**2 + 100 * 10_000)


def test_what_it_offers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(kind, initializer_range=0.5).eval()
    trained = config(kind).trained(model, CAUSAL, SPECIAL_IDS)
    assert isinstance(trained, LanguageModel)
    assert isinstance(trained, NextTokenLogits)
    assert isinstance(trained, WordVectors)
    (end,) = SPECIAL_IDS.require("end")
    torch.manual_seed(3)
    texts = [torch.randint(3, V, (length,)).tolist() for length in (40, 1, 0, 17, 3)]
    expected = [
        torch.log_softmax(model.logits(torch.tensor([[end, *text]]))[0], dim=-1)[:-1]
        .gather(1, torch.tensor(text, dtype=torch.int64)[:, None])[:, 0]
        .detach()
        .numpy()
        for text in texts
    ]
    held = watch_logits(model, monkeypatch)
    for most in (64, 6):  # the second in pieces, with the state handed on
        monkeypatch.setattr(language_models, "_MOST_LOGITS", most * V)
        held.clear()
        for scores, row in zip(trained.log_probabilities(texts), expected, strict=True):
            np.testing.assert_allclose(scores, row, rtol=1e-4)
        assert max(held) <= most
    assert sum_probabilities(trained, V) == pytest.approx(1.0, abs=1e-5)


def test_its_encoder_has_a_level_a_layer_and_reads_to_the_left(kind: str) -> None:
    encoder = config(kind).encoder(CAUSAL, V, 0.0, new_tokens=3).eval()
    assert isinstance(encoder, Encoder)
    ids_BT = torch.randint(V + 3, (2, 5))
    layers = encoder.layers(ids_BT)
    assert len(layers) == len(encoder.depth()) == 3
    changed = ids_BT.clone()
    changed[:, 3:] = 1
    for one, other in zip(layers, encoder.layers(changed), strict=True):
        torch.testing.assert_close(one[:, :3], other[:, :3], atol=0, rtol=0)
    encoder.load(built(kind).state_dict())
