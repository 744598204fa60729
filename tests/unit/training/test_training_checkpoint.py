"""Checkpoints: written beside the training, valid or not there, kept by a rule, whole in parts."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from rungwise.core.errors import UserError
from rungwise.core.stages.artifact import Artifact
from rungwise.training import checkpoint
from rungwise.training.checkpoint_files import Checkpoint
from rungwise.training.optimizer import OptimizerConfig, build_optimizers
from rungwise.training.state import RunState
from rungwise.training.throughput import Progress
from tests.small_models import small_model
from tests.training_runs import checkpoints_in, config, run


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
