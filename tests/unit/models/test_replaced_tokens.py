"""Replaced-token detection: the guesses, both losses worked text by text, and their gradients."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from rungwise.core.stages.artifact import Artifact
from rungwise.instances.reader import InstanceReader
from rungwise.models.losses.masked_variants import _draw, row_numbers
from rungwise.models.losses.objectives import Objective
from rungwise.models.losses.sentences import unmasked
from tests.small_models import (
    gradient,
    loss_and_gradient,
    random_masked_batch,
    rows_of,
    shaken,
    small_config,
)
from tests.training_runs import LENGTH, VOCAB, config, kill_and_resume, make_instances

FAMILIES = ("mlm", "modern_bert")
WEIGHT = 50.0  # of the detector's loss, in the paper


@pytest.fixture(scope="module", params=[False, True], ids=["padded", "packed"])
def instances(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("instances")
    keys = {"sequence_length": LENGTH, "packed": request.param}
    return make_instances(folder, "masked_blocks", **keys)


def micro_batches(instances: Artifact, bins: int = 1) -> Any:
    rows = np.arange(12)
    batch = InstanceReader(instances, "train").batch(rows, np.zeros_like(rows), 7)
    return [part.tensors() for part in batch.micro_batches(bins, False)]


def model_of(kind: str, dtype: torch.dtype = torch.float64) -> tuple[Any, Objective]:
    family: Any = small_config(kind, max_position_embeddings=LENGTH)
    objective = family.objective("replaced_tokens")
    return shaken(family.build(VOCAB, objective)).to(dtype), objective


def test_guesses_follow_the_distribution_and_their_numbers_the_row() -> None:
    logits = torch.tensor([0.1, 0.2, 0.7]).log().expand(1, 1000, 3)
    even = (torch.arange(1000, dtype=torch.float64) + 0.5)[None] / 1000
    assert _draw(logits, even).flatten().bincount().tolist() == [100, 200, 700]
    batch = random_masked_batch(4000, 16, 4, padded=False)
    numbers = row_numbers(batch)
    used = numbers[batch.masked_weights > 0]
    counts = torch.histc(used, bins=10, min=0.0, max=1.0)
    expected = len(used) / 10
    assert float(((counts - expected) ** 2 / expected).sum()) < 27.9  # chi-squared, p 0.001
    assert len(used.unique()) == len(used)
    alone = rows_of(batch, 5, 6)
    assert torch.equal(row_numbers(alone), numbers[5:6])


@pytest.mark.parametrize("kind", FAMILIES)
def test_both_losses_are_those_of_each_text_alone(instances: Artifact, kind: str) -> None:
    model, objective = model_of(kind)
    (rows,) = micro_batches(instances)
    sums, slope = loss_and_gradient(objective, model, rows)
    body, originals = model.body, unmasked(rows)[0]
    guesses = _draw(model.fill(rows).mlm.detach(), row_numbers(rows))
    masked, detected, right = [], [], 0
    for row in range(len(rows.ids)):
        document = rows.document[row] if rows.document is not None else None
        length = LENGTH if rows.lengths is None else int(rows.lengths[row])
        numbers = (
            (torch.arange(len(rows.ids[row])) < length).long() if document is None else document
        )
        for number in range(1, int(numbers.max()) + 1):
            text = (numbers == number).nonzero().flatten()
            ids = rows.ids[row, text]
            embedded = body.embed(ids[None])
            vectors = model.generator.widen(
                model.generator.layers(model.generator.narrow(embedded))
            )
            logits = model.mlm(vectors, body.word_table())[0]
            read = ids.clone()
            for column in rows.masked_weights[row].nonzero().flatten().tolist():
                place = int(rows.masked_positions[row, column])
                if place in text.tolist():
                    here, target = place - int(text[0]), rows.masked_ids[row, column]
                    masked.append(functional.cross_entropy(logits[here][None], target[None]))
                    read[here] = guesses[row, column]
            replaced = (read != originals[row, text]).double()
            answers = model.detector(body.encode(read[None]))[0]
            right += int(((answers > 0) == (replaced > 0)).sum())
            detected.append(
                functional.binary_cross_entropy_with_logits(answers, replaced, reduction="none")
            )
    both = torch.stack(masked).mean(), torch.cat(detected).mean()
    assert sums.count.tolist() == [len(masked), sum(map(len, detected))]
    assert int(sums.correct[1]) == right
    values = sums.metrics()
    assert values["mlm_loss"] == pytest.approx(both[0].item(), rel=1e-7)
    assert values["detection_loss"] == pytest.approx(both[1].item(), rel=1e-7)
    (both[0] + WEIGHT * both[1]).backward()
    # Angles of rotary positions are float32, and count from the beginning of a packed row.
    torch.testing.assert_close(slope, gradient(model), rtol=1e-5, atol=1e-5)


def test_a_right_guess_is_an_original_token(instances: Artifact) -> None:
    model, objective = model_of("modern_bert")
    (rows,) = micro_batches(instances)
    found = model(rows)
    assert bool(found.replaced.any())
    certain = torch.full_like(found.mlm, -1e9).scatter(2, rows.masked_ids[..., None], 0.0)
    model.fill = lambda _: found._replace(mlm=certain)
    assert not bool(model(rows).replaced.any())
    assert objective(model, rows).metrics()["mlm_accuracy"] == 1.0


def test_any_split_of_a_batch_has_the_same_sums(instances: Artifact) -> None:
    model, objective = model_of("modern_bert")
    (whole,) = micro_batches(instances)
    parts = [objective(model, part).packed() for part in micro_batches(instances, 5)]
    torch.testing.assert_close(torch.stack(parts).sum(0), objective(model, whole).packed())


def test_a_killed_run_goes_on_with_the_same_bits(instances: Artifact, tmp_path: Path) -> None:
    settings = config("", "modern_bert", **{"pretrain.objective": "replaced_tokens"})
    validation = kill_and_resume(settings, instances, tmp_path).validation
    assert validation[-1]["loss"] < validation[0]["loss"]
