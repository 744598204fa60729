"""Spans taken out of a text and written after it: the rows by hand, and the loss text by text."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from rungwise.core.stages.artifact import Artifact
from rungwise.instances.reader import InstanceReader
from rungwise.instances.texts import _take_out
from rungwise.models.losses.objectives import Objective
from tests.conftest import SPECIAL_IDS
from tests.small_models import gradient, loss_and_gradient, shaken, small_config
from tests.training_runs import VOCAB, config, kill_and_resume, make_instances

LENGTH, MOST = 32, 6
MASKING = {"unit": "token", "rate": 0.2, "max_predictions": MOST}
CLS, SEP, MASK = SPECIAL_IDS.require("cls", "sep", "mask")


@pytest.fixture(scope="module")
def instances(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("instances")
    return make_instances(folder, "denoised_spans", sequence_length=LENGTH, masking=MASKING)


def read(instances: Artifact, rows: Any) -> Any:
    return InstanceReader(instances, "train").batch(rows, np.zeros_like(rows), 7)


@pytest.mark.parametrize(
    ("ids", "hidden", "source", "target"),
    [
        ([CLS, 10, 11, 12, 13, SEP], [2, 3], [CLS, 10, MASK, 13, SEP], [MASK, 11, 12, SEP]),
        ([CLS, 10, 11, 12, SEP], [1, 3], [CLS, MASK, 11, MASK, SEP], [MASK, 10, MASK, 12, SEP]),
        ([CLS, 10, SEP], [1], [CLS, MASK, SEP], [MASK, 10, SEP]),
    ],
)
def test_a_span_is_a_mask_in_both_texts(
    ids: list[int], hidden: list[int], source: list[int], target: list[int]
) -> None:
    marks = np.isin(np.arange(len(ids)), hidden)
    first, second = _take_out(np.array(ids), marks, MASK, SEP)
    assert (first.tolist(), second.tolist()) == (source, target)


def test_the_text_can_be_put_together_again(instances: Artifact) -> None:
    """From the two texts of a row alone, and what predicts a token is the place before it."""
    rows = np.arange(40)
    batch, stored = read(instances, rows), InstanceReader(instances, "train").rows(rows)
    for row in range(len(rows)):
        used = batch.masked_weights[row] > 0
        target = batch.masked_ids[row][used].tolist()
        length = int(batch.lengths[row])
        source = batch.ids[row, :length][batch.segments[row, :length] == 0].tolist()
        assert [*source, *target[:-1]] == batch.ids[row, :length].tolist()
        assert batch.masked_positions[row][used].tolist() == list(range(len(source) - 1, length))
        assert target[-1] == SEP
        starts = [place for place, token in enumerate(target) if token == MASK]
        spans = iter(
            target[start + 1 : stop]
            for start, stop in itertools.pairwise([*starts, len(target) - 1])
        )
        text = [each for token in source for each in (next(spans) if token == MASK else [token])]
        assert text == stored.ids[row, : stored.lengths[row]].tolist()
        assert next(spans, None) is None
    assert batch.lengths.max() <= LENGTH


def model_of(kind: str) -> tuple[Any, Objective]:
    torch.manual_seed(47)
    family: Any = small_config(kind, max_position_embeddings=LENGTH)
    objective = family.objective("span_denoising")
    return shaken(family.build(VOCAB, objective)).double(), objective


@pytest.mark.parametrize("kind", ["mlm", "modern_bert"])
def test_the_loss_is_that_of_each_token_given_what_is_written_before_it(
    instances: Artifact, kind: str
) -> None:
    """Each is predicted from a row that ends with the token before, so nothing after it is seen;
    states of the first text do not depend on the second."""
    model, objective = model_of(kind)
    (rows,) = (part.tensors() for part in read(instances, np.arange(4)).micro_batches(1, False))
    sums, slope = loss_and_gradient(objective, model, rows)
    losses = []
    for row in range(len(rows.ids)):
        for place, target, weight in zip(
            rows.masked_positions[row], rows.masked_ids[row], rows.masked_weights[row], strict=True
        ):
            if weight:
                ids = rows.ids[row : row + 1, : int(place) + 1]
                segments = rows.segments[row : row + 1, : int(place) + 1]
                states = model.body.encode_layers(ids, segments)[-1]
                logits_1V = model.mlm(states[:, -1], model.body.word_table())
                losses.append(functional.cross_entropy(logits_1V, target[None]))
    assert sums.count.tolist() == [len(losses)]
    expected = torch.stack(losses).mean()
    expected.backward()
    assert sums.loss().item() == pytest.approx(expected.item(), rel=1e-9)
    torch.testing.assert_close(slope, gradient(model), rtol=1e-6, atol=1e-8)
    row = int((rows.masked_weights.sum(1)).argmax())
    end = int(rows.masked_positions[row].max()) + 1
    ids, segments = rows.ids[row : row + 1, :end], rows.segments[row : row + 1, :end]
    first = segments[0] == 0
    alone = model.body.encode_layers(ids[:, first], segments[:, first])[-1]
    torch.testing.assert_close(model.body.encode_layers(ids, segments)[-1][:, first], alone)


def test_a_killed_run_goes_on_with_the_same_bits(instances: Artifact, tmp_path: Path) -> None:
    settings = config("", "modern_bert", **{"pretrain.objective": "span_denoising"})
    validation = kill_and_resume(settings, instances, tmp_path).validation
    assert validation[-1]["loss"] < validation[0]["loss"]
