"""Steps that go wrong are skipped, counted and bounded; budgets and plateaus end a run."""

import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rungwise.core.errors import UserError
from rungwise.core.stages.artifact import Artifact, PerSplit
from rungwise.instances.summary import InstancesSummary
from rungwise.models.transformer.block import StackedLinear
from rungwise.training import step as training_step
from rungwise.training.optimizer import Muon, MuonConfig, OptimizerConfig, build_optimizers, update
from rungwise.training.throughput import Clock, Costs, Progress, totals
from tests.small_models import small_model
from tests.training_runs import Killed, KilledAt, Notes, config, make_instances, run, weights


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of steps 3 and 6 holds a NaN."""
    clip, steps = training_step.clip_gradients, iter(range(1, 10**6))

    def spoil(model: torch.nn.Module, settings: Any) -> torch.Tensor:
        if next(steps) in (3, 6):
            parameter = next(model.parameters())
            assert parameter.grad is not None
            parameter.grad[0, 0] = math.nan
        return clip(model, settings)

    monkeypatch.setattr(training_step, "clip_gradients", spoil)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_that_is_not_finite_changes_nothing_and_is_named(
    instances: Artifact, tmp_path: Path, poisoned: None, optimizer: str
) -> None:
    notes = Notes()
    settings = config(**{"pretrain.steps": 8, "pretrain.optimizer.kind": optimizer})
    progress = run(settings, instances, tmp_path, report=notes)
    assert progress.skipped == [3, 6]
    assert [note for note in notes.notes if "step 3 is skipped" in note]
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path).values())
    assert [row["step"] for row in progress.history] == [1, 2, 4, 5, 7, 8]
    assert progress.history[-1]["skipped_steps"] == 2
    assert progress.step == 8


def test_too_many_bad_steps_end_it(instances: Artifact, tmp_path: Path, poisoned: None) -> None:
    message = r"not finite at step 6; .*skipped 2 steps.*max_skipped_steps is 1"
    with pytest.raises(UserError, match=message):
        run(config(**{"pretrain.max_skipped_steps": 1}), instances, tmp_path)


@pytest.mark.parametrize("kind", [OptimizerConfig, MuonConfig])
def test_a_skipped_update_leaves_weights_and_moments_as_they_are(kind: Any) -> None:
    torch.manual_seed(0)
    model = small_model("mlm_nsp")
    optimizers = build_optimizers(model, kind())

    def state() -> list[torch.Tensor]:
        moments = [
            torch.as_tensor(value).clone()
            for optimizer in optimizers
            for values in optimizer.state.values()
            for value in values.values()
        ]
        return [parameter.detach().clone() for parameter in model.parameters()] + moments

    for finite in (True, False, True):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        before = state()
        update(optimizers, torch.tensor(finite), kind().learning_rate)
        same = [torch.equal(a, b) for a, b in zip(before, state(), strict=False)]
        assert all(same) != finite


def test_a_run_ends_on_a_plateau_resumed_or_not(instances: Artifact, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"pretrain.early_stop": {"patience": 1, "minimum_improvement": 10.0}}
    settings = config(**changes, **{"pretrain.validation_every_steps": 4})
    progress = run(settings, instances, tmp_path)
    assert progress.step == 4
    assert len(progress.validation) == 2
    assert run(settings, instances, tmp_path) == progress


def test_a_budget_of_tokens_ends_run_and_schedule(instances: Artifact, tmp_path: Path) -> None:
    whole = run(config(), instances, tmp_path / "a")
    half = whole.tokens // 2
    progress = run(config(**{"pretrain.max_tokens": half}), instances, tmp_path / "b")
    assert progress.tokens >= half
    assert progress.tokens - half < whole.tokens / 10
    assert progress.history[-1]["learning_rate"] < 0.15 * 0.01
    assert progress.validation[-1]["step"] == progress.step == 11


def test_seconds_count_over_all_attempts(instances: Artifact, tmp_path: Path) -> None:
    short = {"pretrain.steps": 10}
    with pytest.raises(Killed):
        run(config(**short), instances, tmp_path, report=KilledAt(7))
    settings = config(**short, **{"pretrain.max_seconds": 1e6})
    progress = run(settings, instances, tmp_path)
    assert progress.step == 10
    assert [attempt["step"] for attempt in progress.attempts] == [0, 5]
    seconds = [row["seconds"] for row in progress.timings]
    assert progress.seconds > 0.5 * sum(seconds)


def test_muon_is_pytorchs_but_in_float32_and_with_queries_keys_and_values_apart() -> None:
    torch.manual_seed(0)
    D = 64
    gradients = [torch.randn(D, D) * scale for scale in (1.0, 0.1, 0.01)]
    stacked = StackedLinear(D, (D, D, D), bias=False)
    lone = [nn.Linear(D, D, bias=False) for _ in range(3)]
    keys: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1, "momentum": 0.9}
    assert isinstance(stacked.weight, nn.Parameter)
    ours = Muon([stacked.weight], {stacked.weight: stacked.sizes}, **keys)
    weights = [layer.weight for layer in lone]
    theirs = torch.optim.Muon(weights, adjust_lr_fn="match_rms_adamw", **keys)
    with torch.no_grad():
        stacked.weight.copy_(torch.cat(weights))
    for _ in range(3):
        stacked.weight.grad = torch.cat(gradients)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        for optimizer in (ours, theirs):
            optimizer.step()
    torch.testing.assert_close(stacked.weight, torch.cat(weights), atol=5e-4, rtol=0)


def test_rates_and_shares_follow_from_times_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 14.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    progress = Progress(step=10, tokens=1000, flops=1000 * 6e6, seconds=36.0)
    costs = Costs(matmul_flops_per_second=6e10, price_per_hour=20.0)
    clock = Clock(progress, costs)
    clock.waited, clock.stalled, clock.validated = 0.1, 0.5, 2.0
    progress.step, progress.tokens, progress.flops = 20, 9000, 9000 * 6e6
    timing = clock.timing(progress)
    assert timing["tokens_per_second"] == 8000 / 2
    assert timing["step_seconds"] == 2 / 10
    assert timing["mfu"] == pytest.approx(4000 * 6e6 / 6e10)
    assert (timing["data_wait_share"], timing["checkpoint_stall_share"]) == (0.05, 0.25)
    assert timing["cost"] == pytest.approx(0.2)
    progress.timings.append(timing)
    # A killed attempt made the ten steps before; when it ended, nobody saw their times.
    total = totals(progress, costs)
    assert total["tokens_per_second"] == pytest.approx(8000 / 2)
    assert total["step_seconds"] == pytest.approx(2 / 10)
    assert total["mfu"] == pytest.approx(4000 * 6e6 / 6e10)


def test_a_causal_model_is_judged_by_bits_per_byte(tmp_path: Path) -> None:
    """By hand: nats a token, over ln 2, times the tokens of a byte."""
    instances = make_instances(tmp_path / "instances", "causal")
    summary = InstancesSummary.of(instances)
    predicted = sum(row.tokens - row.instances for row in summary.split_files("validation"))
    text_bytes = PerSplit(train=1, validation=4 * predicted)
    instances = summary.model_copy(update={"text_bytes": text_bytes}).replace_summary(instances)
    progress = run(config("causal"), instances, tmp_path / "run")
    last = progress.validation[-1]
    assert last["bits_per_byte"] == pytest.approx(last["lm_loss"] / math.log(2) / 4)
    assert last["perplexity"] == pytest.approx(math.exp(last["lm_loss"]))
    assert last["lm_loss"] < progress.validation[0]["lm_loss"] - 0.1


# Of pairs, tests/unit/training/test_gpu_step.py takes ragged rows and counts graphs as well.
@pytest.mark.parametrize("kind", [pytest.param("masked_pairs", marks=pytest.mark.slow), "causal"])
def test_graphs_are_made_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """With ragged rows and validation in between, and three micro-batches a step."""
    instances = make_instances(tmp_path / "instances", kind)
    steps: list[int] = []
    graphs_before: list[int] = []
    clip, real = training_step.clip_gradients, torch.compile

    def count_step(*arguments: Any) -> torch.Tensor:
        steps.append(len(steps))
        return clip(*arguments)

    def count_graph(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs_before.append(len(steps))
        return graph

    monkeypatch.setattr(training_step, "clip_gradients", count_step)
    monkeypatch.setattr(torch, "compile", functools.partial(real, backend=count_graph))
    torch._dynamo.reset()
    settings = config(kind, **{"pretrain.steps": 15, "model.num_layers": 1})
    run(settings, instances, tmp_path / "run", compile=True)
    torch._dynamo.reset()
    assert len(steps) == 15
    assert graphs_before, "nothing was compiled"
    assert max(graphs_before) < 10


def test_without_a_compiler_the_key_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instances = make_instances(tmp_path / "instances", "causal")
    monkeypatch.setenv("CXX", "absent-compiler")
    with pytest.raises(UserError, match=r"compute\.compile: .* found no absent-compiler"):
        run(config("causal"), instances, tmp_path / "run", compile=True)
