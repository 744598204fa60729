"""Keys of the recipe of fine-tuning: the best epoch, class weights, parts of a batch."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight

from rungwise.core.errors import ConfigError
from rungwise.finetune import Scores, finetune, loop
from rungwise.finetune.loop import add_gradients, build, class_weights, collate
from rungwise.tasks.interface import KINDS
from rungwise.tasks.kinds.examples import Kind
from rungwise.tuning.trials import check_values
from tests.toy_sweeps import stage_config
from tests.toy_tasks import INFO, config_of, stand_in, toy_data

TASKS: tuple[Kind, ...] = ("classification", "regression", "tagging", "span", "choice")


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)


def test_weights_of_the_best_epoch_are_kept_over_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    # By score, then by loss, then the earlier: the second of the epochs.
    scripted = [(0.5, 0.1), (0.9, 0.4), (0.9, 0.6), (0.9, 0.4)]

    def run(best: bool, start: bytes | None = None, done: int = 0) -> Any:
        left = iter([*scripted[done:], (0.9, 0.4)])

        def scores(*data: Any, calibrate: bool) -> Scores:
            score, loss = next(left)
            return Scores(loss, {"accuracy": score}, [], [])

        told: list[dict[str, float]] = []
        states: list[bytes] = []

        def on_epoch(epoch: int, metrics: dict[str, float], state: Any = None) -> None:
            told.append(metrics)
            states.append(state())

        monkeypatch.setattr(loop, "evaluate", scores)
        config = config_of(epochs=4, best_epoch=best)
        model = finetune(config, toy_data("classification"), 3, on_epoch, start)
        return model.state_dict(), told, states

    last, told, after = run(best=False)
    assert not any(key.startswith("kept/") for key in told[-1])
    kept, told, states = run(best=True)
    assert [metrics["kept/epoch"] for metrics in told] == [1, 2, 2, 2]
    assert [metrics["kept/score"] for metrics in told] == [0.5, 0.9, 0.9, 0.9]
    assert [metrics["accuracy"] for metrics in told] == [0.5, 0.9, 0.9, 0.9]
    head = "head.linear.weight"
    second, fourth = (torch.load(io.BytesIO(after[n]), weights_only=True)["model"] for n in (1, 3))
    assert torch.equal(kept[head], second[head])
    assert torch.equal(last[head], fourth[head])
    assert not torch.equal(kept[head], last[head])
    for done in (1, 2, 3, 4):
        again, *_ = run(best=True, start=states[done - 1], done=done)
        assert all(torch.equal(tensor, again[name]) for name, tensor in kept.items()), done


def test_class_weights_are_those_of_scikit_learn_and_1_for_a_class_without_examples() -> None:
    targets = np.random.default_rng(0).choice(4, size=200, p=[0.6, 0.3, 0.02, 0.08])
    present = np.unique(targets)
    expected = compute_class_weight("balanced", classes=present, y=targets)
    found = class_weights(KINDS["classification"], targets.tolist(), 6)
    np.testing.assert_allclose(found[present].numpy(), expected, rtol=1e-6)
    assert found[4:].tolist() == [1.0, 1.0]
    assert class_weights(KINDS["classification"], [0, 1, 1, 0], 2).tolist() == [1.0, 1.0]


def test_a_weighed_loss_over_all_of_a_split_is_scikit_learns() -> None:
    rng = np.random.default_rng(1)
    targets, logits = rng.choice(3, size=50, p=[0.7, 0.2, 0.1]), rng.normal(size=(50, 3))
    weights = class_weights(KINDS["classification"], targets.tolist(), 3)
    total, count = KINDS["classification"].loss_sums(
        torch.tensor(logits), torch.tensor(targets), weights.double()
    )
    shares = torch.tensor(logits).softmax(dim=1).numpy()
    each = weights.numpy()[targets]
    assert total.item() / count == pytest.approx(
        log_loss(targets, shares, sample_weight=each, labels=[0, 1, 2]), rel=1e-6
    )


def test_of_several_labels_each_is_weighed_as_two_classes() -> None:
    rng = np.random.default_rng(2)
    targets, logits = rng.random((80, 3)) < [0.5, 0.1, 0.0], rng.normal(size=(80, 3))
    weights = class_weights(KINDS["multilabel"], targets.astype(int).tolist(), 3).double()
    given = torch.tensor(targets).double()
    total, count = KINDS["multilabel"].loss_sums(torch.tensor(logits), given, weights)
    expected = []
    for gold, each in zip(targets.T, logits.T, strict=True):
        shares, own = 1 / (1 + np.exp(-each)), compute_sample_weight("balanced", gold)
        expected.append(np.mean(own * -np.log(np.where(gold, shares, 1 - shares))))
    assert total.item() / count == pytest.approx(np.mean(expected), rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "objective", "auxiliary"),
    [*((kind, "mlm_nsp", 0.0) for kind in TASKS), *((kind, "causal", 0.5) for kind in TASKS)],
)
def test_a_gradient_does_not_depend_on_parts(kind: Kind, objective: str, auxiliary: float) -> None:
    data = toy_data(kind, objective, examples=7)
    weights = torch.tensor([0.3, 2.0]).double() if kind == "classification" else None
    keys: dict[str, Any] = {"dropout": 0, "auxiliary_language_model": auxiliary}
    model = build(config_of(pooling="mean", **keys), data).double().train()
    items = data.splits["train"].items

    def gradient(*sizes: int) -> tuple[float, dict[str, torch.Tensor]]:
        model.zero_grad()
        ends = np.cumsum(sizes)
        parts = [items[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        loss = add_gradients(model, [collate(part, KINDS[kind]) for part in parts], weights)
        return loss, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    loss, whole = gradient(7)
    for sizes in ((3, 2, 2), (1, 6)):
        same, parts = gradient(*sizes)
        assert same == pytest.approx(loss, rel=1e-9)
        for name, tensor in whole.items():
            torch.testing.assert_close(parts[name], tensor, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", TASKS)
def test_an_auxiliary_language_model_adds_its_share_row_by_row(kind: Kind) -> None:
    data = toy_data(kind, "causal", examples=7)
    items = data.splits["train"].items
    losses = []
    for share in (0.0, 0.3):
        keys: dict[str, Any] = {"dropout": 0, "auxiliary_language_model": share}
        model = build(config_of(pooling="mean", **keys), data).double().eval()
        model.load_state_dict(losses[0][1] if losses else model.state_dict())
        losses.append((add_gradients(model, [collate(items, KINDS[kind])]), model.state_dict()))
    by_hand = []
    for row in (row for item in items for row in item.rows):
        ids_1T = torch.tensor([row.ids])
        logits_TV = model.encoder(ids_1T)[0] @ model.encoder.word_table().T
        log_TV = logits_TV.log_softmax(-1)
        by_hand += [
            -torch.stack([log_TV[t - 1, row.ids[t]] for t in range(1, len(row.ids))]).mean()
        ]
    mean = torch.stack(by_hand).mean().item()
    assert losses[1][0] - losses[0][0] == pytest.approx(0.3 * mean, rel=1e-9)


def test_a_swept_value_without_sense_is_refused() -> None:
    config = stage_config(space={"finetune.crf": {"kind": "choice", "values": [False, True]}})
    with pytest.raises(ConfigError, match=r"finetune\.crf is true.* a task of span; leave it out"):
        check_values(config, INFO["span"])
