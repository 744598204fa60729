"""The training step on a real GPU: its kernels, its numbers and what it waits for."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from rungwise.instances.batch import Batch
from rungwise.models.family import Family
from rungwise.training.optimizer import MuonConfig, OptimizerConfig, build_optimizers
from rungwise.training.parallel import Group, distribute
from rungwise.training.step import Step
from tests.gpu_step_cases import DENSE, FAMILIES, NO_ATTENTION, V, micro_batch
from tests.small_models import shaken

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
CASES = [*FAMILIES, "packed"]
# Heads of 32, which the kernel for variable lengths takes.
WIDER = {"hidden_size": 64, "intermediate_size": 128}


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch.cuda.set_sync_debug_mode("default")


def family_of(name: str) -> tuple[Family, str]:
    family, kind = FAMILIES["mlm" if name == "packed" else name]
    known = {key: value for key, value in WIDER.items() if key in type(family).model_fields}
    if name in NO_ATTENTION:
        known.pop("intermediate_size", None)
    return family.model_copy(update=known), kind


def step_of(name: str, optimizer: str, bfloat16: bool, compile: bool, seed: int = 0) -> Step:
    torch.manual_seed(seed)
    family, kind = family_of(name)
    objective = family.objective(kind)
    model = shaken(family.build(V, objective), 0.1).cuda()
    group = Group(0, 1, torch.device("cuda"))
    config = MuonConfig() if optimizer == "muon" else OptimizerConfig()
    optimizers = build_optimizers(model, config)
    exchange = distribute(model, group, "ddp")
    return Step(model, objective, exchange, optimizers, config, group, bfloat16, compile)


def batch_of(name: str, seed: int) -> Batch[Tensor]:
    family, kind = family_of(name)
    return micro_batch(family, kind, seed, name == "packed").to(torch.device("cuda"))


def loss_and_gradients(step: Step, part: Batch[Tensor]) -> tuple[float, Tensor]:
    losses = step.losses(part)
    loss = losses.loss()
    loss.backward()
    flat = [p.grad.double().flatten() for p in step.model.parameters() if p.grad is not None]
    return float(loss.detach()), torch.cat(flat)


@pytest.mark.parametrize("name", CASES)
def test_kernels_in_bfloat16_agree_with_the_mask_in_float32(name: str) -> None:
    """One forward and backward: variable lengths and one graph beside dense and eager."""
    part = batch_of(name, 0)
    exact, exact_gradient = loss_and_gradients(step_of(name, "adamw", False, False), part)
    ours, gradient = loss_and_gradients(step_of(name, "adamw", True, True), part)
    assert ours == pytest.approx(exact, rel=5e-3)
    assert torch.cosine_similarity(exact_gradient, gradient, dim=0) > 0.999


@pytest.mark.parametrize("name", [case for case in CASES if case not in NO_ATTENTION + DENSE])
def test_attention_is_the_flash_kernel(name: str) -> None:
    step, part = step_of(name, "adamw", True, True), batch_of(name, 0)
    loss_and_gradients(step, part)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        loss_and_gradients(step, part)
        torch.cuda.synchronize()
    kernels = " ".join(event.key for event in seen.key_averages()).lower()
    assert "flash" in kernels
    assert "softmax" not in kernels.replace("log_softmax", "").replace("cross_entropy", "")


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("name", ["mlm_nsp", "packed", "llama"])
def test_a_step_waits_for_nothing(name: str, optimizer: str) -> None:
    """Any read of a number on the host raises, in forward, backward, clipping and update."""
    step = step_of(name, optimizer, True, True)
    batches = [batch_of(name, seed) for seed in range(4)]
    counts = [step.objective.counts(part) for part in batches]

    def take(number: int) -> Any:
        return step([batches[number]] * 2, 2 * counts[number], 1e-3)

    for number in range(2):
        take(number)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    sums = [take(number)[0] for number in (2, 3)]
    torch.cuda.set_sync_debug_mode("default")
    assert all(bool(found.isfinite().all()) for found in sums)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_losses_fall_as_on_a_cpu(optimizer: str) -> None:
    """Twenty float32 steps from the same weights on the same batches, device beside device."""
    torch.backends.cuda.matmul.allow_tf32 = False
    on_gpu = step_of("mlm_nsp", optimizer, False, False)
    group = Group(0, 1, torch.device("cpu"))
    model = copy.deepcopy(on_gpu.model).cpu()
    config = MuonConfig() if optimizer == "muon" else OptimizerConfig()
    exchange = distribute(model, group, "ddp")
    on_cpu = Step(
        model, on_gpu.objective, exchange, build_optimizers(model, config), config, group, False
    )
    batches = [batch_of("mlm_nsp", seed) for seed in range(4)]
    for number in range(20):
        part = batches[number % 4]
        counts = on_gpu.objective.counts(part)
        ours = on_gpu([part], counts, 1e-3)[0]
        theirs = on_cpu([part.to(torch.device("cpu"))], counts.cpu(), 1e-3)[0]
        torch.testing.assert_close(ours.cpu()[0], theirs[0], rtol=2e-3, atol=1e-3)
