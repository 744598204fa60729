"""CoVe: the encoder, attention and loss of the translator by hand, and fixed word vectors."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from rungwise.instances.batch import TextPairs
from rungwise.models.families.recurrent import TRANSLATION, CoveConfig

V = 23


def built(**changes: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"embedding_size": 5, "hidden_size": 4, "initializer_range": 0.6}
    return CoveConfig(**(sizes | changes)).build(V, TRANSLATION).eval()


def pairs() -> TextPairs[Any]:
    torch.manual_seed(1)
    return TextPairs(torch.randint(V, (3, 2, 7)), torch.tensor([[7, 3], [2, 7], [4, 1]]))


def test_the_encoder_has_the_parameters_of_the_paper() -> None:
    config = CoveConfig()
    with torch.device("meta"):
        body: Any = config.body(10, TRANSLATION)
    assert sum(p.numel() for p in body.layers.parameters()) == 3_609_600
    encoder = config.model_copy(update={"hidden_size": 2, "embedding_size": 3}).encoder(
        TRANSLATION, 10, 0.0
    )
    assert encoder.widths == [3, 4, 4]


@torch.no_grad()
def test_states_are_those_of_a_bilstm_whatever_the_padding() -> None:
    model = built()
    rows = pairs()
    cells = nn.LSTM(5, 4, 2, batch_first=True, bidirectional=True)
    weights = {
        f"{name.replace('_l0', f'_l{layer}')}": value
        for layer in (0, 1)
        for name, value in model.cove.layers[layer].state_dict().items()
    }
    cells.load_state_dict(weights)
    layers, (h_BE, c_BE) = model.body.encode(rows.ids[:, 0], rows.lengths[:, 0])
    for row, length in enumerate(rows.lengths[:, 0].tolist()):
        x_1TD = model.cove.token_embedding(rows.ids[row, :1, :length])
        states_1TE, (h, c) = cells(x_1TD)
        torch.testing.assert_close(layers[-1][row, :length], states_1TE[0])
        torch.testing.assert_close(h_BE[row], h[2:].flatten())
        torch.testing.assert_close(c_BE[row], c[2:].flatten())


@torch.no_grad()
def test_each_word_is_predicted_from_its_past_and_a_mix_of_the_source() -> None:
    """McCann et al. 2017, section 3, row by row and word by word."""
    model, rows = built(), pairs()
    decoder, total = model.decoder, 0.0
    _, shares_BTS = model.read(rows)
    for row, (source, target) in enumerate(rows.lengths.tolist()):
        layers, (h, c) = model.body.encode(rows.ids[row, :1, :source], None)
        states_SE, output, before = layers[-1][0], torch.zeros(1, 8), torch.zeros(1, 5)
        for place in range(target):
            h, c = decoder.cell(torch.cat((before, output), 1), (h, c))
            share_S = (states_SE @ decoder.score.weight @ h[0]).softmax(0)
            torch.testing.assert_close(shares_BTS[row, place, :source], share_S)
            mix = share_S @ states_SE
            output = (decoder.joined.weight @ torch.cat((mix, h[0]))).tanh()[None]
            logits = functional.linear(output[0], model.output.weight, model.bias)
            word = rows.ids[row, 1, place]
            total -= logits.log_softmax(0)[word].item()
            before = decoder.embedding(word)[None]
    losses = TRANSLATION(model, rows)
    assert losses.total.item() == pytest.approx(total, rel=1e-5)
    assert losses.count.item() == 11
    torch.testing.assert_close(shares_BTS.sum(2), torch.ones(3, 7))
    assert (shares_BTS[1, :, 2:] == 0).all(), "padding"
