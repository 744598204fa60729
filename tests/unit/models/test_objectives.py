"""The losses of pretraining: by hand, at the start, and where there is nothing to sum.

test_gradients.py has their gradients, and any split of a batch.

Shapes: B batch, T sequence, V vocabulary, M masked positions.
"""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch

from rungwise.instances.batch import CausalBatch, MaskedBatch
from rungwise.models.losses.cross_entropy import sum_weighted_losses
from rungwise.models.losses.objectives import LossSum
from tests.small_models import (
    CAUSAL_KINDS,
    KINDS,
    gradient,
    objective_of,
    random_batch,
    small_model,
)

MLM_NSP = objective_of("mlm_nsp")
MLM = objective_of("mlm")


class Answers(torch.nn.Module):
    """A model whose answer is a function of the rows."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def forward(self, rows):
        return self.answer(rows)


def test_sums_by_hand():
    """Two rows, three classes, one filling: every number here fits on paper."""
    logits = SimpleNamespace(
        mlm=torch.log(torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]] * 2)),
        nsp=torch.log(torch.tensor([[0.25, 0.75], [0.6, 0.4]])),
    )
    batch = MaskedBatch(
        ids=torch.zeros(2, 4, dtype=torch.int64),
        segments=torch.zeros(2, 4, dtype=torch.int64),
        lengths=None,
        masked_positions=torch.tensor([[1, 2], [1, 0]]),
        masked_ids=torch.tensor([[0, 2], [1, 0]]),
        masked_weights=torch.tensor([[1.0, 1.0], [1.0, 0.0]]),
        label=torch.tensor([1, 1]),
    )
    sums = MLM_NSP(Answers(lambda _: logits), batch)
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
    # Sentence order is the same pair of losses under another name; in order is class 1.
    order = objective_of("sentence_order")(Answers(lambda _: logits), batch)
    assert order.parts == ("mlm", "sop")
    torch.testing.assert_close(order.packed(), sums.packed())
    alone = MLM(Answers(lambda _: logits), batch)
    assert alone.parts == ("mlm",)
    assert alone.loss().item() == pytest.approx(mlm / 3, rel=1e-6)


def test_sums_of_next_tokens_by_hand():
    """Two rows of two tokens, three classes, one token of padding; nothing is left to a model."""
    logits_XV = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]] * 2))
    batch = CausalBatch(
        ids=torch.zeros(2, 2, dtype=torch.int64),
        targets=torch.tensor([[0, 2], [1, 0]]),
        weights=torch.tensor([[1.0, 1.0], [1.0, 0.0]]),
    )

    def model(rows):
        return sum_weighted_losses(logits_XV, rows.targets.flatten(), rows.weights.flatten())

    for kind, part in (
        ("causal", "lm"),
        ("left_to_right", "lm"),
        ("bidirectional", "bidirectional"),
    ):
        sums = objective_of(kind)(Answers(model), batch)
        assert sums.total.item() == pytest.approx(-math.log(0.5 * 0.8 * 0.25))
        assert sums.count.tolist() == [3.0]
        assert sums.correct.tolist() == [2.0]
        assert sums.parts == (part,)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_starts_at_the_logarithm_of_the_number_of_classes(kind):
    """With hundreds of tokens and weights of 0.02; logits then spread by about 0.2."""
    objective, vocab_size = objective_of(kind), 1000
    sizes = {"hidden_size": 128, "intermediate_size": 512, "max_position_embeddings": 32}
    model = small_model(kind, vocab_size, **sizes)
    metrics = objective(model, random_batch(kind, 64, 32, 20, vocab_size)).metrics()
    parts = [part for part in (objective.tokens, objective.pair) if part]
    expected = {part.key: part.expected_start(math.log(vocab_size)) for part in parts}
    assert tuple(expected) == objective.parts
    assert expected[objective.parts[0]] == math.log(vocab_size)
    assert all(expected[part] == math.log(2) for part in objective.parts[1:])
    for part in objective.parts:
        assert metrics[f"{part}_loss"] == pytest.approx(expected[part], abs=0.1), part


@pytest.mark.parametrize("kind", ["mlm", *CAUSAL_KINDS])
def test_rows_of_which_nothing_is_predicted_add_exactly_nothing(kind):
    objective, model, batch = objective_of(kind), small_model(kind), random_batch(kind, 2, 9)
    weights = "masked_weights" if objective.masks else "weights"
    empty = torch.zeros_like(getattr(batch, weights))
    sums = objective(model, dataclasses.replace(batch, **{weights: empty}))
    assert sums.count.tolist() == [0.0]
    sums.loss().backward()
    assert sums.loss().item() == 0.0
    assert not gradient(model).any()
    assert set(sums.metrics().values()) == {0.0}


def test_packed_survives_more_tokens_than_float32_can_count():
    one = torch.ones(1, requires_grad=True)
    large = LossSum(one * 3, torch.tensor([2.0**24]), torch.zeros(1), ("mlm",))
    small = LossSum(one * 3, torch.ones(1), torch.ones(1), ("mlm",))
    packed = large.packed() + small.packed()
    assert packed.tolist() == [[6.0], [2.0**24 + 1], [1.0]]
    assert not packed.requires_grad
    assert LossSum.unpacked(packed, ("mlm",)).metrics()["mlm_loss"] == 6 / (2**24 + 1)
