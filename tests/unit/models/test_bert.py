"""BERT against the paper and arithmetic; the comparison with transformers is in reference/.

Shapes: B batch, T sequence, D hidden, V vocabulary, M masked positions.
"""

import math
from typing import Any

import pytest
import torch

from rungwise.core.configuration.config import validate
from rungwise.core.errors import ConfigError
from rungwise.models.families.bert import Bert, BertConfig
from rungwise.models.transformer.block import (
    WHOLE,
    Boundaries,
    gather_positions,
    sinusoid_positions,
)
from tests.small_models import objective_of, small_config

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
