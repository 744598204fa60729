"""Permuted prediction, replaced tokens and spans taken out, worked text by text."""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rungwise.core.stages.artifact import Artifact
from rungwise.instances.reader import InstanceReader
from rungwise.instances.texts import _take_out
from rungwise.models.losses.masked_variants import _draw, order, row_numbers, unmasked
from rungwise.models.losses.objectives import Objective
from tests.conftest import SPECIAL_IDS
from tests.small_models import (
    gradient,
    loss_and_gradient,
    random_masked_batch,
    rows_of,
    shaken,
    small_config,
)
from tests.training_runs import LENGTH, VOCAB, config, kill_and_resume, make_instances

WEIGHT = 50.0  # of the detector's loss, in the paper
SPAN_LENGTH, MOST = 32, 6
CLS, SEP, MASK = SPECIAL_IDS.require("cls", "sep", "mask")
FAMILIES = ("mlm", "modern_bert")


@pytest.fixture(scope="module", params=[False, True], ids=["padded", "packed"])
def instances(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("instances")
    masking = {"rate": 0.3, "mask_share": 1.0, "random_share": 0.0}
    keys = {"sequence_length": LENGTH, "packed": request.param, "masking": masking}
    return make_instances(folder, "masked_blocks", **keys)


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    masking = {"unit": "token", "rate": 0.2, "max_predictions": MOST}
    folder = tmp_path_factory.mktemp("spans")
    return make_instances(folder, "denoised_spans", sequence_length=SPAN_LENGTH, masking=masking)


def read(instances: Artifact, rows: Any) -> Any:
    return InstanceReader(instances, "train").batch(rows, np.zeros_like(rows), 7)


def micro_batches(instances: Artifact, count: int, bins: int = 1) -> Any:
    batch = read(instances, np.arange(count))
    return [part.tensors() for part in batch.micro_batches(bins, False)]


def model_of(objective: str, kind: str = "mlm", **keys: Any) -> tuple[Any, Objective]:
    torch.manual_seed(53)
    family: Any = small_config(kind, max_position_embeddings=SPAN_LENGTH, **keys)
    made = family.objective(objective)
    return shaken(family.build(VOCAB, made)).double(), made


def texts(rows: Any) -> Iterator[tuple[int, Tensor]]:
    """The number of a row and the places of a text in it, for each text of a batch."""
    for row in range(len(rows.ids)):
        length = LENGTH if rows.lengths is None else int(rows.lengths[row])
        place_T = torch.arange(rows.ids.shape[1])
        number_T = (place_T < length).long() if rows.document is None else rows.document[row]
        for number in range(1, int(number_T.max()) + 1):
            yield row, (number_T == number).nonzero().flatten()


TEN_STEPS = {"pretrain.steps": 10, "pretrain.validation_every_steps": 5}


@pytest.mark.parametrize(
    ("instances", "objective", "kind"),
    [(False, "permuted", "bert"), (True, "replaced_tokens", "modern_bert")],
    indirect=["instances"],
)
def test_a_killed_run_goes_on_with_the_same_bits(
    instances: Artifact, objective: str, kind: str, tmp_path: Path
) -> None:
    settings = config("", kind, **{"pretrain.objective": objective}, **TEN_STEPS)
    kill_and_resume(settings, instances, tmp_path, (7,))


def test_a_killed_run_of_spans_goes_on_with_the_same_bits(spans: Artifact, tmp_path: Path) -> None:
    settings = config("", "modern_bert", **{"pretrain.objective": "span_denoising"}, **TEN_STEPS)
    validation = kill_and_resume(settings, spans, tmp_path, (7,)).validation
    assert validation[-1]["loss"] < validation[0]["loss"]


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
    model, objective = model_of("permuted", positions=positions)
    (rows,) = micro_batches(instances, 4)
    sums, slope = loss_and_gradient(objective, model, rows)
    losses = [each for place in texts(rows) for each in losses_of_text(model, rows, *place)]
    assert sums.count.tolist() == [len(losses)]
    expected = torch.stack(losses).mean()
    expected.backward()
    assert sums.loss().item() == pytest.approx(expected.item(), rel=1e-9)
    torch.testing.assert_close(slope, gradient(model), rtol=1e-6, atol=1e-8)


def test_every_token_may_be_the_first_whatever_the_batch(instances: Artifact) -> None:
    (rows,), firsts = micro_batches(instances, 60), set()
    for row in range(60):
        count = int(rows.masked_weights[row].sum())
        ranks = order(rows)[row, :count].tolist()
        assert sorted(ranks) == list(range(1, count + 1))
        firsts.add(ranks.index(1))
    assert firsts >= set(range(5))
    model, objective = model_of("permuted")
    parts = [objective(model, rows_of(rows, row, row + 1)).packed() for row in range(60)]
    torch.testing.assert_close(torch.stack(parts).sum(0), objective(model, rows).packed())


def test_a_blank_is_filled_in_from_its_context(instances: Artifact) -> None:
    """As the first of an order is, and whatever stands at the other blanks."""
    model, _ = model_of("permuted")
    (rows,) = micro_batches(instances, 4)
    one = dataclasses.replace(
        rows,
        masked_positions=rows.masked_positions[:, :1],
        masked_ids=rows.masked_ids[:, :1],
        masked_weights=rows.masked_weights[:, :1],
    )
    torch.testing.assert_close(model.fill(one).mlm, model(one).mlm)
    other = dataclasses.replace(rows, masked_ids=(rows.masked_ids + 1) % VOCAB)
    torch.testing.assert_close(model.fill(other).mlm, model.fill(rows).mlm)
    assert not torch.allclose(model(other).mlm, model(rows).mlm)


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
    model, objective = model_of("replaced_tokens", kind)
    (rows,) = micro_batches(instances, 12)
    sums, slope = loss_and_gradient(objective, model, rows)
    body, originals = model.body, unmasked(rows)[0]
    guesses = _draw(model.fill(rows).mlm.detach(), row_numbers(rows))
    masked, detected, right = [], [], 0
    for row, text in texts(rows):
        ids = rows.ids[row, text]
        embedded = body.embed(ids[None])
        vectors = model.generator.widen(model.generator.layers(model.generator.narrow(embedded)))
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
    model, objective = model_of("replaced_tokens", "modern_bert")
    (rows,) = micro_batches(instances, 12)
    found = model(rows)
    assert bool(found.replaced.any())
    certain = torch.full_like(found.mlm, -1e9).scatter(2, rows.masked_ids[..., None], 0.0)
    model.fill = lambda _: found._replace(mlm=certain)
    assert not bool(model(rows).replaced.any())
    assert objective(model, rows).metrics()["mlm_accuracy"] == 1.0


def test_any_split_of_a_batch_has_the_same_sums(instances: Artifact) -> None:
    model, objective = model_of("replaced_tokens", "modern_bert")
    (whole,) = micro_batches(instances, 12)
    parts = [objective(model, part).packed() for part in micro_batches(instances, 12, 5)]
    torch.testing.assert_close(torch.stack(parts).sum(0), objective(model, whole).packed())


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


def test_the_text_can_be_put_together_again(spans: Artifact) -> None:
    """From the two texts of a row alone, and what predicts a token is the place before it."""
    rows = np.arange(40)
    batch, stored = read(spans, rows), InstanceReader(spans, "train").rows(rows)
    for row in range(len(rows)):
        used = batch.masked_weights[row] > 0
        target = batch.masked_ids[row][used].tolist()
        length = int(batch.lengths[row])
        source = batch.ids[row, :length][batch.segments[row, :length] == 0].tolist()
        assert [*source, *target[:-1]] == batch.ids[row, :length].tolist()
        assert batch.masked_positions[row][used].tolist() == list(range(len(source) - 1, length))
        assert target[-1] == SEP
        starts = [place for place, token in enumerate(target) if token == MASK]
        pieces = iter(
            target[start + 1 : stop]
            for start, stop in itertools.pairwise([*starts, len(target) - 1])
        )
        text = [each for token in source for each in (next(pieces) if token == MASK else [token])]
        assert text == stored.ids[row, : stored.lengths[row]].tolist()
        assert next(pieces, None) is None
    assert batch.lengths.max() <= SPAN_LENGTH


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_loss_is_that_of_each_token_given_what_is_written_before_it(
    spans: Artifact, kind: str
) -> None:
    """Each is predicted from a row that ends with the token before."""
    model, objective = model_of("span_denoising", kind)
    (rows,) = micro_batches(spans, 4)
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


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_stack_that_writes_reads_a_text_alone_both_ways(kind: str) -> None:
    model, objective = model_of("span_denoising", kind)
    text = list(range(20, 27))
    family: Any = small_config(kind, max_position_embeddings=SPAN_LENGTH)
    trained: Any = family.trained(model, objective, SPECIAL_IDS)
    vectors = trained.sentence_vectors([text])
    ids = torch.tensor([[CLS, *text, SEP]])
    states = model.body.encode_layers(ids, torch.zeros_like(ids))[-1]
    np.testing.assert_allclose(vectors, states.mean(1).detach(), rtol=1e-6)
