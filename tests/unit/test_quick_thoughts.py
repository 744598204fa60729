"""Quick-thoughts: the loss against worked figures and against a loop, the vectors, and training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rungwise.core.configuration.config import validate
from rungwise.core.configuration.overrides import with_overrides
from rungwise.core.errors import ConfigError
from rungwise.core.stages.artifact import Artifact
from rungwise.instances.sentence_runs import SentenceRuns
from rungwise.models.families.quick_thoughts import (
    QUICK_THOUGHTS,
    QuickThoughtsConfig,
    QuickThoughtsModel,
    own_scores,
)
from rungwise.models.trained.capabilities import SentenceVectors
from rungwise.pretraining.config import PretrainStageConfig, require_gradient
from tests.small_models import shaken
from tests.training_runs import VOCAB, make_instances, run, together, weights

SIZES: dict[str, Any] = {"embedding_size": 6, "hidden_size": 6}
NETWORKS = ("gru", "two_grus", "sum")


def runs(
    lengths: list[list[int]], document: list[list[int]], seed: int = 0
) -> SentenceRuns[Tensor]:
    """Random sentences of these lengths, and rubbish behind them."""
    generator = torch.Generator().manual_seed(0)
    lengths_BR = torch.tensor(lengths)
    shape = (*lengths_BR.shape, int(lengths_BR.max()) + 2)
    ids = torch.randint(5, VOCAB, shape, generator=generator)
    return SentenceRuns(ids, lengths_BR, torch.tensor(document))


def built(seed: int = 0, **keys: Any) -> Any:
    torch.manual_seed(seed)
    config = QuickThoughtsConfig(**(SIZES | keys))
    return shaken(config.build(VOCAB, QUICK_THOUGHTS))


def loss_of(scores_BRR: Tensor, document: list[list[int]]) -> float:
    empty = torch.zeros(len(document), len(document[0]), dtype=torch.int64)
    batch = SentenceRuns(empty[:, :, None], empty, torch.tensor(document))
    return QUICK_THOUGHTS(lambda *_: scores_BRR, batch).loss().item()  # pyright: ignore


@pytest.mark.parametrize(
    ("masked", "expected", "candidates"),
    [(False, 1.3918189266, 400), (True, 1.1646884461, 399)],
)
def test_the_loss_is_the_worked_one_and_starts_at_the_logarithm_of_the_candidates(
    masked: bool, expected: float, candidates: int
) -> None:
    """With S_ii = 0 as in the released code, and without S_ii as in the paper."""
    f = torch.arange(12, dtype=torch.float64).reshape(4, 3) / 10
    g = [[0.1, 0.2, 0.3], [0.3, 0.1, 0], [0, -0.2, 0.4], [0.5, 0.5, -0.1]]
    scores = (f @ torch.tensor(g, dtype=torch.float64).T)[None]
    assert loss_of(own_scores(scores, masked), [[1] * 4]) == pytest.approx(expected, abs=1e-10)
    zero = own_scores(torch.zeros(1, 400, 400, dtype=torch.float64), masked)
    assert loss_of(zero, [[1] * 400]) == pytest.approx(math.log(candidates), abs=1e-9)


@pytest.mark.parametrize("own_score", ["masked", "zero"])
@pytest.mark.parametrize("network", NETWORKS)
def test_the_loss_is_that_of_each_row_worked_alone(network: str, own_score: str) -> None:
    """Documents of 3, 1 and 2 sentences in a run, and a run of 1 and 2 with padding behind."""
    model = built(network=network, own_score=own_score).double()
    batch = runs([[3, 1, 4, 2, 5, 1], [2, 6, 3, 0, 0, 0]], [[1, 1, 1, 2, 3, 3], [1, 2, 2, 0, 0, 0]])
    total, count, correct = 0.0, 0, 0
    for ids, lengths, document in zip(batch.ids, batch.lengths, batch.document, strict=True):
        read = [ids[i, : lengths[i]][None] for i in range(6) if lengths[i]]
        vectors = [
            torch.cat([encoder(one, torch.tensor([one.shape[1]])) for one in read])
            for encoder in (model.f, model.g)
        ]
        for i in range(len(read)):
            scores = {j: (vectors[0][i] @ vectors[1][j]).item() for j in range(len(read))}
            if own_score == "masked":
                del scores[i]
            else:
                scores[i] = 0.0
            near = [j for j in (i - 1, i + 1) if 0 <= j < len(read) and document[j] == document[i]]
            if not near:
                continue
            log_sum = math.log(sum(map(math.exp, scores.values())))
            total += sum(log_sum - scores[j] for j in near) / len(near)
            count += 1
            correct += max(scores, key=scores.__getitem__) in near
    sums = QUICK_THOUGHTS(model, batch)
    assert sums.count.tolist() == [count] == [7]
    assert sums.total.item() == pytest.approx(total, rel=1e-12)
    assert sums.correct.item() == correct
    sums.loss().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


def test_runs_without_any_neighbour_add_nothing_to_loss_and_gradient() -> None:
    model = built(network="gru")
    alone = runs([[3], [2]], [[1], [1]])
    sums = QUICK_THOUGHTS(model, alone)
    sums.loss().backward()
    assert (sums.total.item(), sums.count.item()) == (0.0, 0.0)
    assert not any(p.grad.any() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_vector_does_not_depend_on_padding_and_is_both_halves_of_length_one(
    network: str,
) -> None:
    model = QuickThoughtsModel(built(network=network).eval())
    assert isinstance(model, SentenceVectors)
    texts = [[7, 8, 9], [10], [], [11, 12, 13, 14, 15]]
    together_ND = model.sentence_vectors(texts)
    assert together_ND.shape == (4, 12)
    assert not together_ND[2].any()
    for text, vector in zip(texts, together_ND, strict=True):
        np.testing.assert_allclose(model.sentence_vectors([text])[0], vector, atol=1e-6)
        if text:
            ids, length = torch.tensor([text]), torch.tensor([len(text)])
            halves = [model.module.f(ids, length), model.module.g(ids, length)]
            whole = torch.cat([functional.normalize(half) for half in halves], dim=1)[0]
            np.testing.assert_allclose(vector, whole.detach().numpy(), atol=1e-6)


def test_the_two_directions_are_those_of_a_bidirectional_gru() -> None:
    encoder = built(network="two_grus").f
    reference = torch.nn.GRU(6, 3, bidirectional=True, batch_first=True)
    for number, suffix in enumerate(("", "_reverse")):
        for name, value in encoder.directions[number].named_parameters():
            reference.get_parameter(name + suffix).data.copy_(value)
    ids, lengths = torch.randint(5, VOCAB, (4, 7)), torch.tensor([7, 1, 4, 6])
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        encoder.embedding(ids), lengths, batch_first=True, enforce_sorted=False
    )
    last = reference(packed)[1]  # (2, N, D / 2)
    torch.testing.assert_close(encoder(ids, lengths), torch.cat(tuple(last), dim=1))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"network": "two_grus", "hidden_size": 7}, "set hidden_size=8"),
        ({"network": "sum", "hidden_size": 8, "embedding_size": 6}, "set hidden_size=6"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(QuickThoughtsConfig, keys)


# Training.


def settings(**changes: Any) -> Any:
    data = {
        "model": {"kind": "quick_thoughts", "network": "gru", **SIZES},
        "pretrain": {
            "steps": 20,
            "global_batch_size": 4,
            "optimizer": {"learning_rate": 0.01},
            "precision": "float32",
            "validation_every_steps": 10,
            "validation_instances": 20,
            "log_every_steps": 1,
        },
    }
    return require_gradient(validate(PretrainStageConfig, with_overrides(data, changes)), "steps")


@pytest.fixture(scope="module")
def instances(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return make_instances(
        tmp_path_factory.mktemp("runs"),
        "sentence_runs",
        documents=(120,),
        sentences=8,
        sentence_length=9,
    )


def test_a_short_training_beats_chance(instances: Artifact, tmp_path: Path) -> None:
    """A word calls for the next, so a sentence begins where the one before it ends."""
    changes = {"pretrain.steps": 150, "model.embedding_size": 24, "model.hidden_size": 24}
    progress = run(settings(**changes), instances, tmp_path)
    first, last = progress.validation[0], progress.validation[-1]
    assert first["neighbour_loss"] == pytest.approx(math.log(7), abs=0.1)
    assert last["neighbour_loss"] < first["neighbour_loss"] - 0.2
    assert last["neighbour_accuracy"] > 0.45 > 14 / 56  # of 7 others, 1 or 2 are neighbours


def test_killed_and_resumed_on_another_number_of_workers_the_run_ends_the_same(
    instances: Artifact, tmp_path: Path, free_ports: list[int]
) -> None:
    """Exact on as many logical workers; without them, the same rows and losses but for rounding."""
    compute: dict[str, Any] = {"micro_batch_size": 2, "logical_workers": 2}
    two = together(2, settings(), instances, tmp_path / "two", free_ports[0], **compute)
    together(2, settings(), instances, tmp_path / "broken", free_ports[1], killed_at=14, **compute)
    resumed = run(settings(), instances, tmp_path / "broken", **compute)
    assert two is not None
    assert [attempt["workers"] for attempt in resumed.attempts] == [2, 1]
    assert resumed.data == two.data
    assert resumed.history == two.history
    mine, expected = weights(tmp_path / "broken"), weights(tmp_path / "two")
    assert all(torch.equal(mine[name], expected[name]) for name in expected)
    alone = run(settings(), instances, tmp_path / "alone", micro_batch_size=4)
    assert alone.data == two.data
    for one, other in zip(alone.history, two.history, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
