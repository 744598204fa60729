"""Permuted prediction: its two streams worked token by token, the order, and what is seen."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rungwise.core.stages.artifact import Artifact
from rungwise.instances.reader import InstanceReader
from rungwise.models.losses.masked_variants import order
from rungwise.models.losses.objectives import Objective
from rungwise.models.losses.sentences import unmasked
from tests.small_models import gradient, loss_and_gradient, rows_of, shaken, small_config
from tests.training_runs import LENGTH, VOCAB, config, kill_and_resume, make_instances


@pytest.fixture(scope="module", params=[False, True], ids=["padded", "packed"])
def instances(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("instances")
    masking = {"rate": 0.3, "mask_share": 1.0, "random_share": 0.0}
    keys = {"sequence_length": LENGTH, "packed": request.param, "masking": masking}
    return make_instances(folder, "masked_blocks", **keys)


def micro_batch(instances: Artifact, count: int = 4) -> Any:
    rows = np.arange(count)
    batch = InstanceReader(instances, "train").batch(rows, np.zeros_like(rows), 7)
    return next(batch.micro_batches(1, False)).tensors()


def new_model(positions: str = "learned") -> tuple[Any, Objective]:
    torch.manual_seed(53)
    family: Any = small_config("mlm", max_position_embeddings=LENGTH, positions=positions)
    objective = family.objective("permuted")
    return shaken(family.build(VOCAB, objective)).double(), objective


def through(block: Any, x_D: Tensor, seen_ND: Tensor) -> Tensor:
    """A block of BERT for one vector that attends to others."""
    attention, D = block.attention, len(x_D)
    query_NH = attention.query_key_value(x_D)[:D].view(-1, attention.head_size)
    keys, values = (
        part.unflatten(1, (-1, attention.head_size))  # (N, D) -> (N, heads, H)
        for part in attention.query_key_value(seen_ND)[:, D:].split(D, dim=1)
    )
    weights = torch.einsum("hd,nhd->hn", query_NH, keys) / attention.head_size**0.5
    mixed_D = torch.einsum("hn,nhd->hd", weights.softmax(1), values).flatten()
    x_D = block.attention_norm(x_D + attention.output(mixed_D))
    return block.mlp_norm(x_D + block.mlp(x_D))


def losses_of_text(model: Any, rows: Any, row: int, text: Tensor) -> list[Tensor]:
    """Both streams over one text of a row, each place at a time, as Yang et al. write them."""
    originals, ranks = unmasked(rows)[0][row, text], order(rows)[row]
    place_of = {int(place): here for here, place in enumerate(text)}
    columns = [
        column
        for column in rows.masked_weights[row].nonzero().flatten().tolist()
        if int(rows.masked_positions[row, column]) in place_of
    ]
    targets = {
        place_of[int(rows.masked_positions[row, column])]: int(ranks[column]) for column in columns
    }
    content = list(model.body.embed(originals[None])[0])
    query = {here: model.body.embed(rows.ids[row, text][None])[0][here] for here in targets}
    places = range(len(text))
    for block in model.body.transformer.blocks:
        known = torch.stack(content)
        rank = [targets.get(here, 0) for here in places]
        content = [
            through(block, content[i], known[[rank[j] <= rank[i] for j in places]]) for i in places
        ]
        query = {
            i: through(block, each, known[[rank[j] < rank[i] for j in places]])
            for i, each in query.items()
        }
    table = model.body.word_table()
    return [
        functional.cross_entropy(model.mlm(query[here][None], table), originals[here][None])
        for here in targets
    ]


@pytest.mark.parametrize("positions", ["learned", "sinusoid"])
def test_the_loss_is_that_of_two_streams(instances: Artifact, positions: str) -> None:
    model, objective = new_model(positions)
    rows = micro_batch(instances)
    sums, slope = loss_and_gradient(objective, model, rows)
    losses = []
    for row in range(len(rows.ids)):
        length = LENGTH if rows.lengths is None else int(rows.lengths[row])
        here = torch.arange(rows.ids.shape[1])
        numbers = (here < length).long() if rows.document is None else rows.document[row]
        for number in range(1, int(numbers.max()) + 1):
            losses += losses_of_text(model, rows, row, (numbers == number).nonzero().flatten())
    assert sums.count.tolist() == [len(losses)]
    expected = torch.stack(losses).mean()
    expected.backward()
    assert sums.loss().item() == pytest.approx(expected.item(), rel=1e-9)
    torch.testing.assert_close(slope, gradient(model), rtol=1e-6, atol=1e-8)


def test_every_token_may_be_the_first_whatever_the_batch(instances: Artifact) -> None:
    rows, firsts = micro_batch(instances, 60), set()
    for row in range(60):
        count = int(rows.masked_weights[row].sum())
        ranks = order(rows)[row, :count].tolist()
        assert sorted(ranks) == list(range(1, count + 1))
        firsts.add(ranks.index(1))
    assert firsts >= set(range(5))
    model, objective = new_model()
    parts = [objective(model, rows_of(rows, row, row + 1)).packed() for row in range(60)]
    torch.testing.assert_close(torch.stack(parts).sum(0), objective(model, rows).packed())


def test_a_blank_is_filled_in_from_its_context(instances: Artifact) -> None:
    """As the first of an order is, and whatever stands at the other blanks."""
    model, _ = new_model()
    rows = micro_batch(instances)
    one = dataclasses.replace(
        rows,
        masked_positions=rows.masked_positions[:, :1],
        masked_ids=rows.masked_ids[:, :1],
        masked_weights=rows.masked_weights[:, :1],
    )
    torch.testing.assert_close(model.blanks()(one).mlm, model(one).mlm)
    other = dataclasses.replace(rows, masked_ids=(rows.masked_ids + 1) % VOCAB)
    torch.testing.assert_close(model.blanks()(other).mlm, model.blanks()(rows).mlm)
    assert not torch.allclose(model(other).mlm, model(rows).mlm)


def test_a_killed_run_goes_on_with_the_same_bits(instances: Artifact, tmp_path: Path) -> None:
    settings = config("", "bert", **{"pretrain.objective": "permuted"})
    kill_and_resume(settings, instances, tmp_path)
