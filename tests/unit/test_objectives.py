"""The losses of pretraining: by hand, at the start, under any split, and their gradient.

Shapes: B batch, T sequence, V vocabulary, M masked positions.
"""

import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rungwise.models.bert import BertConfig, BertForPretraining
from rungwise.objectives import (
    LossSum,
    ObjectiveConfig,
    PretrainingBatch,
    build_objective,
)

MLM_NSP = build_objective(ObjectiveConfig())
MLM = build_objective(ObjectiveConfig(kind="mlm"))
SMALL = BertConfig(
    num_layers=2, num_heads=2, hidden_size=16, intermediate_size=32, max_position_embeddings=16
)
VOCAB_SIZE = 50


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed():
    torch.set_num_threads(1)
    torch.manual_seed(21)


def random_batch(B, T, M, vocab_size=VOCAB_SIZE, padded=True, dtype=torch.float32):
    """Ragged rows with ragged counts of masked positions; the first row has none."""
    lengths = torch.randint(2, T + 1, (B,)) if padded else torch.full((B,), T)
    positions = torch.stack([torch.randint(1, int(n), (M,)) for n in lengths])
    counts = torch.randint(0, M + 1, (B,))
    counts[0] = 0
    weights = (torch.arange(M) < counts[:, None]).to(dtype)
    return PretrainingBatch(
        ids=torch.randint(vocab_size, (B, T)),
        segments=torch.randint(2, (B, T)),
        lengths=lengths if padded else None,
        masked_positions=positions * weights.long(),
        masked_ids=torch.randint(vocab_size, (B, M)) * weights.long(),
        masked_weights=weights,
        is_next=torch.randint(2, (B,)),
    )


def gradient(model):
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_sums_by_hand():
    """Two rows, three classes, one filling: every number here fits on paper."""
    logits = SimpleNamespace(
        mlm=torch.log(torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]] * 2)),
        nsp=torch.log(torch.tensor([[0.25, 0.75], [0.6, 0.4]])),
    )
    batch = PretrainingBatch(
        ids=torch.zeros(2, 4, dtype=torch.int64),
        segments=torch.zeros(2, 4, dtype=torch.int64),
        lengths=None,
        masked_positions=torch.tensor([[1, 2], [1, 0]]),
        masked_ids=torch.tensor([[0, 2], [1, 0]]),
        masked_weights=torch.tensor([[1.0, 1.0], [1.0, 0.0]]),
        is_next=torch.tensor([1, 1]),
    )
    sums = MLM_NSP(lambda *_: logits, batch)
    mlm, nsp = -math.log(0.5 * 0.8 * 0.25), -math.log(0.75 * 0.4)
    torch.testing.assert_close(sums.total, torch.tensor([mlm, nsp]))
    assert sums.count.tolist() == [3.0, 2.0]
    assert sums.correct.tolist() == [2.0, 1.0]
    assert sums.loss().item() == pytest.approx(mlm / 3 + nsp / 2, rel=1e-6)
    assert sums.metrics() == pytest.approx(
        {
            "loss": mlm / 3 + nsp / 2,
            "mlm_loss": mlm / 3,
            "mlm_accuracy": 2 / 3,
            "nsp_loss": nsp / 2,
            "nsp_accuracy": 1 / 2,
        }
    )
    alone = MLM(lambda *_: logits, batch)
    assert alone.parts == ("mlm",)
    assert alone.loss().item() == pytest.approx(mlm / 3, rel=1e-6)


@pytest.mark.parametrize("objective", [MLM, MLM_NSP], ids=["mlm", "mlm_nsp"])
def test_the_loss_starts_at_the_logarithm_of_the_number_of_classes(objective):
    """With 640 masked positions and weights of 0.02; logits then spread by about 0.2."""
    vocab_size = 1000
    model = BertForPretraining(
        BertConfig.tiny(), vocab_size, next_sentence="nsp" in objective.parts
    )
    batch = random_batch(64, 32, 20, vocab_size)
    found = objective(model, batch).metrics()
    for part, expected in objective.expected_initial_losses(vocab_size).items():
        assert found[f"{part}_loss"] == pytest.approx(expected, abs=0.1), part
    expected = {"mlm": math.log(vocab_size), "nsp": math.log(2)}
    assert objective.expected_initial_losses(vocab_size).items() <= expected.items()


def test_the_config_says_whether_the_model_needs_the_nsp_head():
    assert ObjectiveConfig().next_sentence
    assert not ObjectiveConfig(kind="mlm").next_sentence


def test_counts_need_no_forward_pass():
    batch = random_batch(5, 9, 4)
    masked = batch.masked_weights.sum().item()
    assert MLM_NSP.counts(batch).tolist() == [masked, 5.0]
    assert MLM.counts(batch).tolist() == [masked]
    model = BertForPretraining(SMALL, VOCAB_SIZE)
    assert torch.equal(MLM_NSP(model, batch).count, MLM_NSP.counts(batch))


@settings(max_examples=25, deadline=None)
@given(cuts=st.sets(st.integers(1, 7), max_size=7), seed=st.integers(0, 1000))
def test_any_split_gives_the_same_loss_and_gradient(cuts, seed):
    """Cut into micro-batches anywhere, one of them without a masked token perhaps."""
    torch.manual_seed(seed)
    model = BertForPretraining(SMALL, VOCAB_SIZE).double()
    batch = random_batch(8, 12, 5, dtype=torch.float64)
    whole = MLM_NSP(model, batch)
    model.zero_grad()
    whole.loss().backward()
    expected = gradient(model)

    bounds = [0, *sorted(cuts), 8]
    pieces = [batch.rows(a, b) for a, b in pairwise(bounds)]
    global_count = torch.stack([MLM_NSP.counts(piece) for piece in pieces]).sum(0)
    model.zero_grad()
    loss, merged = 0.0, None
    for piece in pieces:
        sums = MLM_NSP(model, piece)
        share = sums.loss(global_count)
        share.backward()
        loss += share.item()
        merged = sums if merged is None else merged + sums
    assert loss == pytest.approx(whole.loss().item(), rel=1e-12)
    torch.testing.assert_close(gradient(model), expected, rtol=1e-10, atol=1e-12)
    assert merged.metrics() == pytest.approx(whole.metrics(), rel=1e-12)


def test_a_sum_of_shares_is_not_a_mean_of_means():
    """Losses 4, 4 in one micro-batch and 1, 1, 1 in the other: 11/5, not (4 + 1)/2."""
    pieces = [
        LossSum(torch.tensor([8.0]), torch.tensor([2.0]), torch.tensor([0.0]), ("mlm",)),
        LossSum(torch.tensor([3.0]), torch.tensor([3.0]), torch.tensor([1.0]), ("mlm",)),
    ]
    shares = [piece.loss(torch.tensor([5.0])).item() for piece in pieces]
    assert sum(shares) == pytest.approx(2.2)
    assert (pieces[0] + pieces[1]).metrics()["loss"] == pytest.approx(2.2)
    assert sum(piece.loss().item() for piece in pieces) / 2 == pytest.approx(2.5)


def test_a_batch_without_a_masked_token_adds_exactly_nothing():
    model = BertForPretraining(SMALL, VOCAB_SIZE)
    batch = random_batch(3, 9, 4).rows(0, 1)
    sums = MLM(model, batch)
    assert sums.count.tolist() == [0.0]
    sums.loss().backward()
    assert sums.loss().item() == 0.0
    assert not gradient(model).any()
    assert sums.metrics() == {"loss": 0.0, "mlm_loss": 0.0, "mlm_accuracy": 0.0}


def test_the_filling_of_masked_positions_changes_nothing():
    model = BertForPretraining(SMALL, VOCAB_SIZE)
    batch = random_batch(4, 9, 4)
    filling = batch.masked_weights == 0
    other = PretrainingBatch(
        **{
            **vars(batch),
            "masked_positions": batch.masked_positions + 5 * filling,
            "masked_ids": batch.masked_ids + 7 * filling,
        }
    )
    torch.testing.assert_close(MLM_NSP(model, batch).total, MLM_NSP(model, other).total)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("positions", ["learned", "sinusoid"])
def test_the_gradient_is_that_of_finite_differences(norm, positions):
    """In float64, along a random direction of every parameter on its own."""
    config = BertConfig(
        num_layers=1,
        num_heads=2,
        hidden_size=8,
        intermediate_size=12,
        max_position_embeddings=8,
        norm=norm,
        positions=positions,
    )
    model = BertForPretraining(config, 11, pad_vocab_to_multiple_of=8).double()
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    batch = random_batch(3, 7, 3, vocab_size=11, dtype=torch.float64)
    MLM_NSP(model, batch).loss().backward()
    epsilon = 1e-6
    for name, parameter in model.named_parameters():
        direction = torch.randn_like(parameter)
        values = []
        for sign in (1, -1):
            parameter.data.add_(sign * epsilon * direction)
            values.append(MLM_NSP(model, batch).loss().item())
            parameter.data.sub_(sign * epsilon * direction)
        slope = (values[0] - values[1]) / (2 * epsilon)
        assert (parameter.grad * direction).sum().item() == pytest.approx(
            slope, rel=1e-6, abs=1e-8
        ), name


def test_half_width_logits_are_summed_in_float32():
    model = BertForPretraining(SMALL, VOCAB_SIZE).bfloat16()
    assert MLM_NSP(model, random_batch(2, 9, 4)).total.dtype == torch.float32


def test_packed_survives_more_tokens_than_float32_can_count():
    one = torch.ones(1, requires_grad=True)
    large = LossSum(one * 3, torch.tensor([2.0**24]), torch.zeros(1), ("mlm",))
    small = LossSum(one * 3, torch.ones(1), torch.ones(1), ("mlm",))
    packed = large.packed() + small.packed()
    assert packed.tolist() == [[6.0], [2.0**24 + 1], [1.0]]
    assert not packed.requires_grad
    assert LossSum.unpacked(packed, ("mlm",)).metrics()["mlm_loss"] == 6 / (2**24 + 1)


def test_a_batch_without_padding_stays_without_lengths():
    batch = random_batch(4, 9, 2, padded=False)
    assert batch.lengths is None
    assert batch.to("cpu").lengths is None
    piece = batch.rows(1, 3)
    assert piece.lengths is None
    assert piece.ids.data_ptr() == batch.ids[1:].data_ptr()
