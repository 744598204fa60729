"""Heads, the mix of layers and the BiLSTM: by hand, and that padding and order do not count.

The comparison with transformers is in reference/. Shapes: R rows, B items, T sequence, E width.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from rungwise.finetune.model import BiLstm, HeadedEncoder, ScalarMix
from rungwise.tasks import interface
from rungwise.tasks.kinds.heads import ChoiceHead, Rows, SequenceHead, SpanHead, TokenHead
from tests.small_models import VOCAB_SIZE, objective_of, shaken, small_config

KINDS = ("mlm_nsp", "left_to_right", "causal", "bidirectional")
LENGTHS = [9, 4, 6]


def headed(kind, head, top=None, mixed=(), **changes):
    """A random model with one of the heads; `head` is given the width of what it reads."""
    encoder = small_config(kind, **changes).encoder(objective_of(kind), VOCAB_SIZE, 0.1, 3)
    lstm = BiLstm(encoder.width, 5, 2, 0.1) if top == "bilstm" else None
    width = 10 if lstm else encoder.width
    mix = ScalarMix(len(mixed)) if mixed else None
    return shaken(HeadedEncoder(encoder, head(width), top=lstm, mix=mix, mixed=mixed)).eval()


HEADS = {
    "cls": lambda width: SequenceHead(width, 3, "cls", 0.1, pooler=True),
    "mean": lambda width: SequenceHead(width, 3, "mean", 0.1),
    "last": lambda width: SequenceHead(width, 1, "last", 0.1),
    "all": lambda width: SequenceHead(width, 2, "last_max_mean", 0.1),
    "token": lambda width: TokenHead(width, 4, 0.1),
    "span": lambda width: SpanHead(width),
    "choice": lambda width: ChoiceHead(width, 1, "mean", 0.1),
}


@torch.no_grad()
@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("kind", KINDS)
def test_padding_does_not_change_an_answer(kind, name):
    """Each head below every encoder, with a bidirectional LSTM in between below every other."""
    top = ("linear", "bilstm")[([*HEADS].index(name) + [*KINDS].index(kind)) % 2]
    model = headed(kind, HEADS[name], top, mixed=(0, 1, 2) if name == "mean" else ())
    ids_RT, segments_RT = torch.randint(VOCAB_SIZE, (3, 9)), torch.randint(2, (3, 9))
    word_row, word_place = torch.tensor([0, 0, 1, 2, 2]), torch.tensor([8, 1, 3, 0, 5])
    item = torch.zeros(3, dtype=torch.int64) if name == "choice" else torch.arange(3)
    count = int(item.max()) + 1
    together = model(
        ids_RT, segments_RT, Rows(torch.tensor(LENGTHS), item, count, word_row, word_place)
    )
    for row, length in enumerate(LENGTHS):
        words = word_place[word_row == row]
        alone = model(
            ids_RT[[row], :length],
            segments_RT[[row], :length],
            Rows(None, torch.zeros(1, dtype=torch.int64), 1, torch.zeros_like(words), words),
        )
        match name:
            case "token":
                own_part = together[word_row == row]
            case "span":
                own_part = together[[row], :length]
            case "choice":
                own_part = together[:, [row]]
            case _:
                own_part = together[[row]]
        torch.testing.assert_close(own_part, alone, atol=1e-5, rtol=1e-5)
    if name == "span":
        assert (together[1, 4:] == -math.inf).all(), "no probability at padding"


@torch.no_grad()
@pytest.mark.parametrize("top", ["linear", "bilstm"])
@pytest.mark.parametrize("kind", KINDS)
def test_with_both_orders_the_order_of_a_pair_does_not_matter(kind, top):
    """SPEC K20: swapped is the same item with its rows the other way round."""
    model = headed(
        kind, lambda width: SequenceHead(width, 2, "last", 0.1, pairs="both_orders"), top
    )
    ids_RT = torch.randint(VOCAB_SIZE, (4, 9))
    lengths_R = torch.tensor([9, 9, 6, 6])
    item_R = torch.tensor([0, 0, 1, 1])
    swapped = torch.tensor([1, 0, 3, 2])
    one, other = (
        model(ids_RT[order], None, Rows(lengths_R[order], item_R, 2))
        for order in (torch.arange(4), swapped)
    )
    torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)
    model.head.pairs = "joined"
    first_alone = model(ids_RT[[0, 2]], None, Rows(lengths_R[[0, 2]], torch.arange(2), 2))
    second_alone = model(ids_RT[[1, 3]], None, Rows(lengths_R[[1, 3]], torch.arange(2), 2))
    assert not torch.allclose(first_alone, second_alone, atol=1e-3), "one order alone does matter"
    # The vectors are added before the linear layer: its bias is there once.
    added = first_alone + second_alone - model.head.linear.bias
    torch.testing.assert_close(one, added, atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_texts_apart_are_compared_by_their_vectors(kind):
    """Conneau et al. 2017, figure 1, computed for each pair by itself."""
    model = headed(kind, lambda width: SequenceHead(width, 3, "mean", 0.1, pairs="apart"), "linear")
    ids_RT, lengths = torch.randint(VOCAB_SIZE, (4, 9)), [9, 4, 6, 9]
    item_R = torch.tensor([0, 0, 1, 1])
    logits_BC = model(ids_RT, None, Rows(torch.tensor(lengths), item_R, 2))
    linear = model.head.linear
    for index, (one, other) in enumerate(((0, 1), (2, 3))):
        u, v = (
            model.states(ids_RT[[row], : lengths[row]], None, None)[0].numpy().mean(axis=0)
            for row in (one, other)
        )
        read = np.concatenate([u, v, np.abs(u - v), u * v])
        expected = linear.weight.numpy() @ read + linear.bias.numpy()
        np.testing.assert_allclose(logits_BC[index].numpy(), expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_last_maximum_and_mean_stand_side_by_side_and_see_no_padding():
    """Howard & Ruder 2018, section 3.3, in the order of fastai."""
    states_RTE = torch.randn(3, 9, 4)
    head = SequenceHead(4, 2, "last_max_mean", 0.0)
    vectors = head.vectors(states_RTE, torch.tensor(LENGTHS)).numpy()
    for row, length in enumerate(LENGTHS):
        real = states_RTE[row, :length].numpy()
        expected = np.concatenate([real[-1], real.max(axis=0), real.mean(axis=0)])
        np.testing.assert_allclose(vectors[row], expected, rtol=1e-6)
        alone = head.vectors(states_RTE[[row], :length], None).numpy()
        np.testing.assert_allclose(alone[0], expected, rtol=1e-6)
    assert head.linear.in_features == 12


@pytest.mark.parametrize("kind", KINDS)
def test_a_dropped_word_is_gone_at_all_its_places_in_training_alone(kind):
    encoder = small_config(kind).encoder(objective_of(kind), VOCAB_SIZE, 0.0, 3)
    ids_RT = torch.randint(VOCAB_SIZE, (3, 9))
    whole_RTE = encoder.eval().body.token_embedding(ids_RT)
    encoder.drop_words(0.5)
    assert torch.equal(encoder.body.token_embedding(ids_RT), whole_RTE)
    vectors_RTE = encoder.train().body.token_embedding(ids_RT)
    gone_RT = (vectors_RTE == 0).all(-1)
    gone = set(ids_RT[gone_RT].tolist())
    assert gone
    assert not gone & set(ids_RT[~gone_RT].tolist())
    torch.testing.assert_close(vectors_RTE[~gone_RT], 2 * whole_RTE[~gone_RT])


@torch.no_grad()
def test_a_choice_of_unequal_size_is_each_item_by_itself():
    states_RTE = torch.randn(4, 1, 8)
    head = shaken(ChoiceHead(8, 1, "cls", 0.0)).eval()
    logits_BO = head(states_RTE, Rows(None, torch.tensor([0, 0, 0, 1]), 2))
    scores_R = head.linear(states_RTE[:, 0]).squeeze(-1)
    assert torch.equal(logits_BO[0], scores_R[:3])
    assert logits_BO[1].tolist() == [scores_R[3].item(), -math.inf, -math.inf]
    total, count = interface.KINDS["choice"].loss_sums(logits_BO, torch.tensor([2, 0]))
    torch.testing.assert_close(total, functional.cross_entropy(scores_R[:3], torch.tensor(2)))
    assert count == 2


def test_a_scalar_mix_by_hand():
    """softmax(log 1, log 3) is 1/4 and 3/4; times gamma 2."""
    mix = ScalarMix(2)
    layers = [torch.full((1, 1, 2), 4.0), torch.full((1, 1, 2), 8.0)]
    assert mix(layers).tolist() == [[[6.0, 6.0]]], "at the start the plain mean"
    with torch.no_grad():
        mix.scores.copy_(torch.tensor([0.0, math.log(3)]))
        mix.gamma.fill_(2.0)
    torch.testing.assert_close(mix(layers), torch.full((1, 1, 2), 14.0))
    assert mix.shares() == pytest.approx((0.25, 0.75))
    layers = [torch.tensor([[[1.0, 3.0]]]), torch.tensor([[[8.0, -8.0]]])]
    normed = ScalarMix(2, layer_norm=True)(layers)  # (-1, 1) and (1, -1), but for the epsilon
    torch.testing.assert_close(normed, torch.zeros(1, 1, 2), atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_bilstm_is_that_of_torch_on_each_row_without_padding():
    top = shaken(BiLstm(6, 4, 2, 0.3)).eval()
    reference = nn.LSTM(6, 4, 2, batch_first=True, bidirectional=True)
    reference.load_state_dict(top.lstm.state_dict())
    states_BTE = torch.randn(3, 9, 6)
    found_BTH = top(states_BTE, torch.tensor(LENGTHS))
    for row, length in enumerate(LENGTHS):
        alone, _ = reference(states_BTE[[row], :length])
        torch.testing.assert_close(found_BTH[[row], :length], alone, atol=1e-6, rtol=1e-6)
        assert (found_BTH[row, length:] == 0).all()
    torch.testing.assert_close(top(states_BTE, None), reference(states_BTE)[0])


def test_a_fixed_encoder_drops_nothing_and_has_no_gradient():
    encoder = small_config("mlm").encoder(objective_of("mlm"), VOCAB_SIZE, 0.5)
    model = HeadedEncoder(
        encoder, SequenceHead(16, 2, "mean", 0.5), mix=ScalarMix(2), mixed=(0, 2), fixed=True
    ).train()
    ids_RT, rows = torch.randint(VOCAB_SIZE, (2, 5)), Rows(None, torch.arange(2), 2)
    assert torch.equal(model.states(ids_RT, None, None), model.states(ids_RT, None, None))
    model(ids_RT, None, rows).sum().backward()
    learns = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert learns == {"mix.scores", "mix.gamma", "head.linear.weight", "head.linear.bias"}
    layers = encoder.layers(ids_RT)
    torch.testing.assert_close(model.states(ids_RT, None, None), (layers[0] + layers[2]) / 2)
