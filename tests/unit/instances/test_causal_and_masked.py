"""Causal and masked rows in one batch: each sort as its own objective, and the mean over both."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from rungwise.core.stages.artifact import Artifact
from rungwise.instances.batch import CausalBatch, MaskedBatch
from rungwise.instances.reader import InstanceReader
from rungwise.models.losses.objectives import LossSum, Objective
from rungwise.training.parallel import Group
from rungwise.training.step import _compile
from tests.small_models import gradient, loss_and_gradient, shaken, small_config
from tests.training_runs import LENGTH, VOCAB, make_instances

FAMILIES = ("mlm", "modern_bert")
ROWS = np.arange(24)
MASKING = {"rate": 0.3, "max_predictions": 20}


@pytest.fixture(scope="module", params=[False, True], ids=["padded", "packed"])
def instances(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("instances")
    keys = {"sequence_length": LENGTH, "packed": request.param, "masking": MASKING}
    return make_instances(folder, "causal_and_masked", **keys)


def micro_batch(instances: Artifact, share: float, rows: Any = ROWS, bins: int = 1) -> Any:
    """The micro-batches of rows of which this share is causal; alone, if it is one."""
    reader = InstanceReader(instances, "train")
    reader.config = reader.config.model_copy(update={"causal_share": share})
    batch = reader.batch(rows, np.zeros_like(rows), 7)
    parts = [part.tensors() for part in batch.micro_batches(bins, False)]
    return parts if bins > 1 else parts[0]


def model_of(kind: str, dtype: torch.dtype = torch.float32) -> tuple[Any, Objective]:
    family: Any = small_config(kind, max_position_embeddings=LENGTH)
    objective = family.objective("causal_and_masked")
    return shaken(family.build(VOCAB, objective)).to(dtype), objective


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_rows_of_one_sort_are_those_of_its_objective_to_the_bit(
    instances: Artifact, kind: str, share: float
) -> None:
    model, objective = model_of(kind)
    batch = micro_batch(instances, share)
    assert (batch.causal is None, batch.masked is None) == (share == 0, share == 1)
    sums, slope = loss_and_gradient(objective, model, batch)
    family: Any = small_config(kind, max_position_embeddings=LENGTH)
    pure = family.objective("left_to_right" if share else "mlm")
    alone = family.build(VOCAB, pure)
    alone.load_state_dict(model.state_dict())
    rows = batch.causal
    if not share:  # the logits of the places before, which is all that differs
        before = (batch.masked.masked_positions - 1).clamp(min=0)
        rows = dataclasses.replace(batch.masked, masked_positions=before)
    expected, expected_slope = loss_and_gradient(pure, alone, rows)
    assert torch.equal(sums.packed(), expected.packed())
    assert torch.equal(slope, expected_slope)


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_loss_is_the_mean_over_tokens_worked_row_by_row(instances: Artifact, kind: str) -> None:
    """Each text alone, without padding and boundaries; a causal one under a triangle."""
    model, objective = model_of(kind, torch.float64)
    batch = micro_batch(instances, 0.5, ROWS[:16])
    assert 0 < int(batch.is_causal.sum()) < 16
    body, losses = model.body, []

    def loss(states_1TD: Any, place: int, target: Any) -> Any:
        logits_1V = model.mlm(states_1TD[:, place], body.word_table())
        return functional.cross_entropy(logits_1V, target[None])

    for row, (ids, targets, weights_T) in enumerate(
        zip(batch.causal.ids, batch.causal.targets, batch.causal.weights, strict=True)
    ):
        document = _texts(batch.causal, row)
        for place in weights_T.nonzero().flatten().tolist():
            text = (document[: place + 1] == document[place]).nonzero().flatten()
            triangle = torch.ones(len(text), len(text), dtype=torch.bool).tril()
            states = body.transformer.layers(body.embed(ids[None, text]), visible=triangle)[-1]
            losses.append(loss(states, len(text) - 1, targets[place]))
    masked = batch.masked
    for row in range(len(masked.ids)):
        document = _texts(masked, row)
        for column in masked.masked_weights[row].nonzero().flatten().tolist():
            place = int(masked.masked_positions[row, column])
            text = (document == document[place]).nonzero().flatten()
            target = masked.masked_ids[row, column]
            states = body.encode(masked.ids[None, row, text])
            losses.append(loss(states, place - int(text[0]) - 1, target))
    assert objective.counts(batch).tolist() == [len(losses)]
    sums, slope = loss_and_gradient(objective, model, batch)
    model.zero_grad()
    expected = torch.stack(losses).mean()
    expected.backward()
    assert sums.loss().item() == pytest.approx(expected.item(), rel=1e-9)
    # Angles of rotary positions are float32, and count from the beginning of a packed row.
    torch.testing.assert_close(slope, gradient(model), rtol=1e-6, atol=1e-7)


def _texts(rows: CausalBatch[Any] | MaskedBatch[Any], row: int) -> Any:
    """Which text each place of a row belongs to; -1 at padding."""
    if rows.document is not None:
        return rows.document[row]
    T = rows.ids.shape[1]
    length = getattr(rows, "lengths", None)
    return torch.where(torch.arange(T) < (T if length is None else length[row]), 0, -1)


@pytest.mark.slow
def test_five_graphs_serve_any_rows(instances: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of both sorts, of one row of either, and of one sort; their sums are those of no graph."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    # The compiler takes another sum of losses than the plain CPU does (cross_entropy.py). Pairwise
    # sums of n losses over V classes, rounded to u, differ by up to about 2 (log2 n + log2 V) u of
    # their size: 2e-6 in float32, where u = 2^-24, but 3e-15 in float64. `packed` is of float64,
    # which is compared to 1e-7.
    model, objective = model_of("modern_bert", torch.float64)
    compiled = _compile(objective, model, Group(0, 1, torch.device("cpu")))
    batch: Any = InstanceReader(instances, "train").batch(ROWS[:6], ROWS[:6] * 0, 7)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for causal in (3, 1, 0, 5, 6, 2, 4, 1, 0):
        sorts = dataclasses.replace(batch, is_causal=np.arange(6) < causal)
        part = next(sorts.micro_batches(1, fixed_shapes=True)).tensors()
        (total, correct, _), counts = compiled(part)
        sums = LossSum(total, counts, correct, objective.parts)
        torch.testing.assert_close(sums.packed(), objective(model, part).packed())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 5
    torch._dynamo.reset()
