"""BERT against the paper and arithmetic; the comparison with transformers is in reference/.

Shapes: B batch, T sequence, D hidden, V vocabulary, M masked positions.
"""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rungwise.core.configuration.config import validate
from rungwise.core.errors import ConfigError
from rungwise.instances.batch import MaskedBatch
from rungwise.models.families.bert import Bert, BertConfig
from rungwise.models.transformer.attention import WHOLE, Boundaries
from rungwise.models.transformer.block import gather_positions, sinusoid_positions
from tests.small_models import objective_of, shaken, small_config

SMALL = BertConfig(
    num_layers=2, num_heads=4, hidden_size=32, intermediate_size=64, max_position_embeddings=24
)
VOCAB_SIZE = 40


# Configuration.


def test_a_hidden_size_that_does_not_split_is_refused_in_one_sentence():
    with pytest.raises(
        ConfigError, match=r"hidden_size 100 and num_heads 12; set hidden_size=108"
    ) as caught:
        validate(BertConfig, {"hidden_size": 100})
    assert "\n" not in str(caught.value)


def test_a_sequence_beyond_the_learned_table_is_refused():
    with pytest.raises(ValueError, match=r"24 learned positions, found a sequence of 25"):
        Bert(SMALL, VOCAB_SIZE).encode(torch.zeros(1, 25, dtype=torch.int64))


# Positions: SPEC B4 and B5.


def test_sinusoid_is_the_formula():
    table = sinusoid_positions(50, 12, dtype=torch.float64)
    for position in (0, 1, 7, 49):
        for i in range(6):
            angle = position / 10_000 ** (2 * i / 12)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)


def test_sinusoid_extends_and_starts_as_wide_as_a_learned_table():
    sinusoid = SMALL.model_copy(update={"positions": "sinusoid"})
    model = Bert(sinusoid, VOCAB_SIZE)
    assert model.encode(torch.zeros(1, 100, dtype=torch.int64)).shape == (1, 100, 32)
    spread = model.position_vectors(100).square().mean().sqrt().item()
    assert spread == pytest.approx(sinusoid.initializer_range, rel=1e-4)


@pytest.mark.parametrize("positions", ["learned", "sinusoid"])
def test_the_two_i_of_i_think_therefore_i_am_differ(positions, monkeypatch):
    #            [CLS] i think , therefore i am [SEP]
    ids_BT = torch.tensor([[2, 7, 11, 5, 13, 7, 17, 3]])
    model = Bert(SMALL.model_copy(update={"positions": positions}), VOCAB_SIZE).eval()
    embedded_TD = model.embed(ids_BT)[0]
    hidden_TD = model.encode(ids_BT)[0]
    assert not torch.allclose(embedded_TD[1], embedded_TD[5], atol=1e-2)
    assert not torch.allclose(hidden_TD[1], hidden_TD[5], atol=1e-2)

    # What tells them apart is the position and nothing else.
    def no_positions(sequence_length, positions_BT):
        return torch.zeros(sequence_length, 32)

    monkeypatch.setattr(model, "position_vectors", no_positions)
    torch.testing.assert_close(*model.encode(ids_BT)[0, [1, 5]])


# The start: B6, B7.


def test_the_start_is_a_cut_normal_with_zero_biases():
    config = BertConfig(num_layers=2, num_heads=2, hidden_size=128, intermediate_size=512)
    model: Any = config.masked(5_000, pairs=True)
    weight = model.bert.token_embedding.weight
    assert weight.abs().max() <= 0.04
    # The deviation of a normal cut at two deviations is 0.8796 of it; 640,000 draws.
    assert weight.std().item() == pytest.approx(0.8796 * 0.02, rel=0.005)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert bool((parameter == 1).all()), name


# Padding and direction: B9.


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    extra=st.integers(0, 5),
    seed=st.integers(0, 1000),
)
def test_padding_changes_nothing(lengths, extra, seed):
    """Each row padded in a batch, with rubbish, is that row alone and unmasked."""
    torch.manual_seed(seed)
    model: Any = shaken(SMALL.masked(VOCAB_SIZE, pairs=True)).eval()
    T = max(lengths) + extra
    ids_BT, segments_BT = (
        torch.randint(VOCAB_SIZE, (len(lengths), T)),
        torch.randint(2, (len(lengths), T)),
    )
    positions_BM = torch.zeros(len(lengths), 1, dtype=torch.int64)
    lengths_B = torch.tensor(lengths)
    logits = model(MaskedBatch.to_predict(ids_BT, segments_BT, lengths_B, positions_BM))
    for row, length in enumerate(lengths):
        alone_ids, alone_segments = ids_BT[[row], :length], segments_BT[[row], :length]
        alone = model(MaskedBatch.to_predict(alone_ids, alone_segments, None, positions_BM[[row]]))
        torch.testing.assert_close(logits.mlm[row], alone.mlm[0], atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(logits.nsp[row], alone.nsp[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["mlm", "modern_bert"])
@pytest.mark.parametrize("layers", [1, 3])
def test_chosen_positions_have_the_states_and_gradients_of_a_whole_layer(kind, layers):
    family: Any = small_config(kind, num_layers=layers)
    body = family.body(VOCAB_SIZE, objective_of(kind)).double()
    B, T, M = 4, 12, 5
    ids_BT, lengths_B = torch.randint(VOCAB_SIZE, (B, T)), torch.tensor([12, 7, 1, 9])
    document_BT = torch.randint(2, (B, T)).cumsum(1)
    chosen_BM = (torch.rand(B, M) * lengths_B[:, None]).long()  # some of them twice
    weight_BMD = torch.randn(B, M, body.width, dtype=torch.float64)
    for where in ((lengths_B, WHOLE), (None, Boundaries(document_BT)), (None, WHOLE)):
        found = []
        for states_BMD in (
            gather_positions(body.encode(ids_BT, None, *where), chosen_BM),
            body.encode(ids_BT, None, *where, chosen_BM=chosen_BM),
        ):
            body.zero_grad()
            (states_BMD * weight_BMD).sum().backward()
            gradients = [p.grad.clone() for p in body.parameters() if p.grad is not None]
            found.append([states_BMD.detach(), *gradients])
        torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-12)
