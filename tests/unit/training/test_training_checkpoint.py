"""Checkpoints: written beside the training, kept by a rule, and before a node goes."""

import socket
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from ray.train.v2._internal.execution.controller.state import ResizingState, RunningState
from ray.train.v2._internal.execution.scaling_policy import ResizeDecision

from rungwise.core.errors import UserError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.storage.folder import Folder
from rungwise.training import checkpoint
from rungwise.training.checkpoint import Checkpoint, SaveRequests, request_saves
from rungwise.training.optimizer import OptimizerConfig, build_optimizers
from rungwise.training.ray.gradient import SaveBeforeResize, find_interface
from rungwise.training.state import RunState
from rungwise.training.throughput import Progress
from tests.small_models import small_model
from tests.training_runs import checkpoints_in, config, run
from tests.waiting import wait_until


def trained_state() -> RunState:
    torch.manual_seed(0)
    model = small_model("mlm_nsp")
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizers = build_optimizers(model, OptimizerConfig())
    for optimizer in optimizers:
        optimizer.step()
    return RunState(model, optimizers)


def test_training_goes_on_during_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is the state at the save, whatever happens to the model meanwhile."""
    state = trained_state()
    expected = {name: t.clone() for name, t in state.tensors().items()}
    gate = threading.Event()
    digest = checkpoint.file_digest
    monkeypatch.setattr(checkpoint, "file_digest", lambda path: gate.wait(30) and digest(path))
    kept = checkpoints_in(tmp_path)
    kept.save(state, Progress(step=5))
    assert kept.steps() == []  # save has returned, nothing is valid yet
    with torch.no_grad():
        for parameter in state.model.parameters():
            parameter.zero_()
    gate.set()
    kept.settle()
    assert kept.steps() == [5]
    assert [saved.step for saved in kept.settled] == [5]
    assert kept.settled[0].save_seconds > 0
    other = trained_state()
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.add_(1)
    assert checkpoints_in(tmp_path).load(Checkpoint(5, 0), other) == Progress(step=5)
    restored = other.tensors()
    assert restored.keys() == expected.keys()
    assert all(torch.equal(restored[name], expected[name]) for name in expected)


def test_the_last_ones_and_every_nth_are_kept(instances: Artifact, tmp_path: Path) -> None:
    run(config(), instances, tmp_path, checkpoint_every_steps=2, keep_checkpoint_every_steps=8)
    assert checkpoints_in(tmp_path / "checkpoints").steps() == [8, 16, 18, 20]


def test_three_failed_saves_in_a_row_end_the_run(
    instances: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Any) -> dict[str, Any]:
        raise UserError("no room left on the disk")

    monkeypatch.setattr(checkpoint.PartWriter, "_write_part", full)
    message = r"the checkpoint of step 6 is not written: no room left"
    with pytest.raises(UserError, match=message):
        run(config(), instances, tmp_path, checkpoint_every_steps=2)


RESIZING = ResizingState(scaling_decision=ResizeDecision(2, {"CPU": 1}))


def test_gloo_gets_the_interface_that_has_the_address_of_the_node() -> None:
    named = psutil.net_if_addrs()
    loopback = find_interface("127.0.0.1")
    assert loopback is not None
    assert any(entry.address == "127.0.0.1" for entry in named[loopback])
    assert find_interface("127.3.2.1") == loopback  # which it does not list
    assert find_interface("203.0.113.7") is None  # of a documentation's network
    for name, entries in named.items():
        for entry in entries:
            if entry.family == socket.AF_INET:
                assert find_interface(entry.address) == name


def test_the_controller_waits_until_all_have_saved(tmp_path: Path) -> None:
    scratch = Folder.at(tmp_path)
    requests, other = SaveRequests(scratch, leads=True), SaveRequests(scratch, leads=False)
    assert not requests()
    held = threading.Thread(
        target=SaveBeforeResize(scratch).after_controller_state_update,
        args=(RunningState(), RESIZING),
    )
    held.start()
    wait_until("the mark", lambda: scratch.exists("save"), 10)
    assert requests()  # and now the loop saves, and asks again when that is done
    assert not other()
    assert held.is_alive()
    assert not requests()
    held.join(10)
    assert not held.is_alive()
    assert not requests()
    assert scratch.names() == []


def test_a_run_that_does_not_save_is_not_waited_for_without_an_end(tmp_path: Path) -> None:
    request_saves([Folder.at(tmp_path)], 0.1)
    assert Folder.at(tmp_path).names() == []
