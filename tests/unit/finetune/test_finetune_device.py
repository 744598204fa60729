"""Fine-tuning and scoring on a device that is made up.

Fake tensors have a shape and a device and no numbers: an operation on tensors of two devices fails
as it would on the machine, so that whatever is left behind is found by whatever reads it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from rungwise.finetune import TaskModel, finetune
from rungwise.finetune import loop as finetune_loop
from rungwise.tasks.kinds.examples import Kind
from rungwise.training.optimizer import build_optimizer
from tests.toy_tasks import INFO, config_of, stand_in, toy_data

TASKS: tuple[Kind, ...] = tuple(INFO)
DEVICE = torch.device("meta")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device without numbers; what has to be a number on the host is made up as well."""

    def numbers(tensor: FakeTensor) -> Any:
        assert tensor.device.type == "cpu", "numpy reads what is on the host"
        return np.zeros(tensor.shape, np.float32)

    def moved(model: TaskModel, device: torch.device) -> TaskModel:
        # What Module.to does; its way of replacing a weight is not for fake tensors.
        for module in model.modules():
            for name, weight in module._parameters.items():
                if weight is not None:
                    module._parameters[name] = nn.Parameter(
                        weight.detach().to(device), weight.requires_grad
                    )
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(device)
        return model

    def unfused(*arguments: Any) -> torch.optim.Optimizer:
        # One kernel for all weights is there for real devices only.
        optimizer = build_optimizer(*arguments)
        for group in optimizer.param_groups:
            group["fused"] = False
        return optimizer

    monkeypatch.setattr(TaskModel, "to", moved)
    monkeypatch.setattr(finetune_loop.optimizers, "build_optimizer", unfused)
    monkeypatch.setattr(finetune_loop.devices, "list_devices", lambda: [DEVICE])
    monkeypatch.setattr(finetune_loop.devices, "seed_generators", lambda number, devices: None)
    monkeypatch.setattr(FakeTensor, "item", lambda tensor: 0.5, raising=False)
    monkeypatch.setattr(FakeTensor, "__int__", lambda tensor: 3, raising=False)
    monkeypatch.setattr(FakeTensor, "__bool__", lambda tensor: False, raising=False)
    monkeypatch.setattr(FakeTensor, "numpy", numbers, raising=False)
    stand_in(monkeypatch)


def trained(kind: Kind, objective: str, **keys: Any) -> TaskModel:
    """A model of one layer after an epoch, which ends with an evaluation."""
    data = toy_data(kind, objective, examples=2, num_layers=1)

    def on_epoch(
        epoch: int, metrics: dict[str, float], state: Callable[[], bytes] | None = None, /
    ) -> None:
        assert np.isfinite(metrics["loss"])

    return finetune(config_of(learning_rate=5e-5, batch_size=4, **keys), data, 0, on_epoch)


@pytest.mark.parametrize(
    ("kind", "objective"),
    [*((kind, "mlm_nsp") for kind in TASKS), ("tagging", "causal"), ("generation", "causal")],
)
def test_no_tensor_is_left_on_the_host(gpu: None, kind: Kind, objective: str) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = trained(kind, objective, pooling="mean")
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    assert {name for name, tensor in tensors.items() if tensor.device != DEVICE} == set()


@pytest.mark.parametrize(
    "keys",
    [
        {"adaptation": {"kind": "features", "layer_norm": True}},
        {"adaptation": {"kind": "discriminative"}, "pooling": "last"},
        {"adaptation": {"kind": "frozen"}, "initialisation": "random"},
        {"adaptation": {"kind": "full"}, "accumulation": 2},
    ],
)
def test_every_way_of_use_stays_on_the_device(gpu: None, keys: dict[str, Any]) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        trained("classification", "mlm_nsp", **keys)


@pytest.mark.parametrize("native", [False, True])
def test_bfloat16_is_taken_if_native(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    stand_in(monkeypatch)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": native})
    narrow, wide = (
        trained("classification", "mlm_nsp", bfloat16=bfloat16).state_dict()
        for bfloat16 in (True, False)
    )
    assert all(torch.equal(narrow[name], wide[name]) for name in wide) is not native
    for name in wide:
        torch.testing.assert_close(narrow[name], wide[name], atol=1e-3, rtol=1e-2)


def test_a_batch_that_stays_behind_is_found(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from rungwise.tasks.kinds.heads import Rows

    monkeypatch.setattr(Rows, "to", lambda rows, device: rows)
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(RuntimeError, match="meta"):
        trained("choice", "mlm_nsp", pooling="mean")
