"""Checkpoints: written beside the training, valid or not there, kept by a rule, whole in parts."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from rungwise.core.errors import UserError
from rungwise.core.stages.artifact import Artifact
from rungwise.training import checkpoint
from rungwise.training.checkpoint_files import RECORD, Checkpoint
from rungwise.training.optimizer import OptimizerConfig, build_optimizers
from rungwise.training.state import RunState
from rungwise.training.throughput import Progress
from tests.small_models import small_model
from tests.training_runs import Notes, checkpoints_in, config, run, together


def trained_state() -> RunState:
    torch.manual_seed(0)
    model = small_model("mlm_nsp")
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizers = build_optimizers(model, OptimizerConfig())
    for optimizer in optimizers:
        optimizer.step()
    return RunState(model, optimizers)


def test_training_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_save_that_fails_is_named_and_the_run_ends_as_an_undisturbed_one(
    instances: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = run(config(), instances, tmp_path / "a")
    write = checkpoint.PartWriter._write_part

    def full(self: Any) -> dict[str, Any]:
        if self.step == 10:
            raise UserError("no room left on the disk")
        return write(self)

    monkeypatch.setattr(checkpoint.PartWriter, "_write_part", full)
    notes = Notes()
    progress = run(config(), instances, tmp_path / "b", report=notes)
    assert progress == undisturbed
    assert [note for note in notes.notes if "step 10 is not written" in note]
    assert [row["valid"] for row in progress.saves] == [1.0, 0.0, 1.0, 1.0]
    assert checkpoints_in(tmp_path / "b" / "checkpoints").steps() == [15, 20]
    assert notes.points["system/checkpoint_valid"] == [1.0, 0.0, 1.0, 1.0]


def test_three_failed_saves_in_a_row_end_the_run(
    instances: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Any) -> dict[str, Any]:
        raise UserError("no room left on the disk")

    monkeypatch.setattr(checkpoint.PartWriter, "_write_part", full)
    message = r"the checkpoint of step 6 is not written: no room left"
    with pytest.raises(UserError, match=message):
        run(config(), instances, tmp_path, checkpoint_every_steps=2)


def test_each_worker_of_a_sharded_model_writes_its_own_rows(
    instances: Artifact, tmp_path: Path, unused_port: int
) -> None:
    together(3, config(), instances, tmp_path, unused_port, parallel="fsdp")
    (folder,) = tmp_path.glob("checkpoints/step-000000020-*")
    record = json.loads((folder / RECORD).read_text())
    assert len(record["parts"]) == 3
    weight = record["tensors"]["optimizer/bert.token_embedding.weight/exp_avg"]
    assert sorted((start, rows) for _, start, rows in weight["pieces"]) == [
        (0, 20),
        (20, 20),
        (40, 20),
    ]
    assert weight["shape"] == [60, 16]
    sizes = [part["bytes"] for part in record["parts"]]
    assert max(sizes) < 1.3 * min(sizes)
    assert {path.name for path in folder.iterdir()} == {
        RECORD,
        *(part["file"] for part in record["parts"]),
    }
