"""The loop without Ray: exact resume, sums whatever the split, checkpoints that lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing as multiprocessing
from torch import distributed as dist

from rungwise.artifact import Artifact
from rungwise.config import validate, with_overrides
from rungwise.context import ComputeConfig, SilentReporter
from rungwise.errors import DataError, UserError
from rungwise.instances import masked_pairs
from rungwise.instances.masked_pairs import MaskedPairsConfig
from rungwise.instances.text import TokenisedText
from rungwise.storage import Folder
from rungwise.training.checkpoint import MODEL, OPTIMIZER, RECORD, Checkpoints, load_tensors
from rungwise.training.parallel import Group
from rungwise.training.trainer import PretrainStageConfig, check_fit, pretrain
from tests.conftest import SPECIAL_IDS, write_shards

VOCAB = 60
CPU = torch.device("cpu")


@pytest.fixture
def instances(tmp_path: Path) -> Artifact:
    return make_instances(tmp_path / "instances")


def make_instances(folder: Path) -> Artifact:
    """An instances artifact of a made-up language, built without Ray: a word calls for the next."""
    rng = np.random.default_rng(0)
    settings = MaskedPairsConfig(sequence_length=32)
    shards = {}
    for number, split in enumerate(("train", "validation")):
        lengths = rng.integers(3, 9, size=(60, 8))
        total = int(lengths.sum())
        steps = rng.choice([1] * 19 + [7], size=total)
        text = TokenisedText(
            ids=(5 + np.cumsum(steps) % (VOCAB - 5)).astype(np.uint16),
            starts=np.concatenate([[0], np.cumsum(lengths.ravel())]),
            first_sentence=np.arange(0, 60 * 8 + 1, 8),
            documents=[f"{split}{n}" for n in range(60)],
        )
        generator = np.random.Generator(np.random.Philox(number))
        built = masked_pairs.build(text, settings, SPECIAL_IDS, generator)
        shards[f"{split}-00000.arrow"] = built.shard
    summary = {**write_shards(folder, shards, VOCAB), "sequence_length": 32}
    record = {"summary": summary, "config": settings.model_dump()}
    return Artifact("instances", "f" * 12, Folder.at(folder), record)


def config(**changes: Any) -> PretrainStageConfig:
    data: dict[str, Any] = {
        "model": {
            "num_layers": 1,
            "num_heads": 2,
            "hidden_size": 16,
            "intermediate_size": 32,
            "max_position_embeddings": 32,
        },
        "pretrain": {
            "steps": 20,
            "global_batch_size": 12,
            "optimizer": {"learning_rate": 0.01},
            "validation_every_steps": 10,
            "validation_instances": 30,
            "log_every_steps": 3,
        },
    }
    return validate(PretrainStageConfig, with_overrides(data, changes))


def run(
    settings: PretrainStageConfig,
    instances: Artifact,
    output: Path,
    micro: int = 4,
    group: Group | None = None,
    report: Any = None,
    every: int = 5,
) -> Any:
    torch.set_num_threads(1)
    compute = ComputeConfig(micro_batch_size=micro, checkpoint_every_steps=every)
    group = group or Group.current(CPU)
    reporter = report or SilentReporter()
    folder = Folder.at(output)
    return pretrain(settings, instances, folder, "identity", compute, group, reporter)


class Killed(Exception):
    """Stands for a kill at a step."""


class KilledAt(SilentReporter):
    def __init__(self, step: int) -> None:
        self.step = step

    def progress(self, done: float, total: float, **shown: float | str) -> None:
        if done >= self.step:
            raise Killed


def weights(output: Path) -> dict[str, torch.Tensor]:
    return load_tensors(Folder.at(output), MODEL)


@pytest.mark.parametrize(
    "changes", [{}, {"model.dropout": 0.1}, {"pretrain.precision": "bfloat16"}], ids=str
)
def test_a_killed_run_ends_with_the_bits_of_an_undisturbed_one(
    instances: Artifact, tmp_path: Path, changes: dict[str, Any]
) -> None:
    settings = config(**changes)
    undisturbed = run(settings, instances, tmp_path / "a")
    for step in (
        8,
        14,
        19,
    ):  # each attempt is killed between two checkpoints, the last goes through
        with pytest.raises(Killed):
            run(settings, instances, tmp_path / "b", report=KilledAt(step))
    resumed = run(settings, instances, tmp_path / "b")
    assert resumed == undisturbed
    first, second = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_it_learns_what_can_be_learned(instances: Artifact, tmp_path: Path) -> None:
    changes = {"pretrain.steps": 400, "model.hidden_size": 32, "pretrain.global_batch_size": 24}
    progress = run(config(**changes), instances, tmp_path, micro=24, every=400)
    assert progress.validation[0]["mlm_loss"] == pytest.approx(np.log(VOCAB), abs=0.2)
    assert progress.validation[0]["nsp_loss"] == pytest.approx(np.log(2), abs=0.1)
    assert progress.validation[-1]["mlm_loss"] < progress.validation[0]["mlm_loss"] - 0.5


@pytest.mark.parametrize("micro", [1, 5, 12])
def test_the_split_into_micro_batches_changes_nothing(
    instances: Artifact, tmp_path: Path, micro: int
) -> None:
    whole = run(config(), instances, tmp_path / "a", micro=12)
    parts = run(config(), instances, tmp_path / "b", micro=micro)
    for one, other in zip(whole.history, parts.history, strict=True):
        assert one == pytest.approx(other, rel=1e-4)
    assert whole.tokens == parts.tokens


def test_padding_and_the_end_of_an_epoch_do_not_stop_a_run(
    instances: Artifact, tmp_path: Path
) -> None:
    count = instances.summary["instances"]["train"]
    steps = count // 12 * 2 + 3
    progress = run(config(**{"pretrain.steps": steps}), instances, tmp_path, every=1000)
    assert progress.step == steps
    assert progress.step * 12 > 2 * count


def _worker(rank: int, world: int, port: int, folder: str, instances: Artifact) -> None:
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
    progress = run(config(), instances, Path(folder), group=Group.current(CPU))
    if rank == 0:
        (Path(folder) / "history.json").write_text(json.dumps(progress.history))
    dist.destroy_process_group()


@pytest.mark.parametrize("world", [2, 3])
def test_the_number_of_workers_changes_nothing(
    instances: Artifact, tmp_path: Path, world: int, unused_port: int
) -> None:
    alone = run(config(), instances, tmp_path / "a")
    together = tmp_path / "b"
    together.mkdir()
    arguments = (world, unused_port, str(together), instances)
    multiprocessing.spawn(_worker, args=arguments, nprocs=world)  # type: ignore[attr-defined]
    history = json.loads((together / "history.json").read_text())
    for one, other in zip(alone.history, history, strict=True):
        assert one == pytest.approx(other, rel=1e-4)
    assert [row["tokens"] for row in history] == [row["tokens"] for row in alone.history]


def test_a_run_goes_on_with_another_number_of_workers(
    instances: Artifact, tmp_path: Path, unused_port: int
) -> None:
    alone = run(config(), instances, tmp_path / "a")
    with pytest.raises(Killed):
        run(config(), instances, tmp_path / "b", report=KilledAt(12))
    arguments = (2, unused_port, str(tmp_path / "b"), instances)
    multiprocessing.spawn(_worker, args=arguments, nprocs=2)  # type: ignore[attr-defined]
    history = json.loads((tmp_path / "b" / "history.json").read_text())
    for one, other in zip(alone.history, history, strict=True):
        assert one == pytest.approx(other, rel=1e-4)


@pytest.mark.parametrize("damaged", [MODEL, OPTIMIZER])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    instances: Artifact, tmp_path: Path, damaged: str
) -> None:
    undisturbed = run(config(), instances, tmp_path / "a")
    with pytest.raises(Killed):
        run(config(), instances, tmp_path / "b", report=KilledAt(18))
    last = tmp_path / "b" / "checkpoints" / "step-000000015"
    data = bytearray((last / damaged).read_bytes())
    data[-1] ^= 1
    (last / damaged).write_bytes(data)
    checkpoints = Checkpoints(Folder.at(tmp_path / "b" / "checkpoints"), "identity", 2)
    assert checkpoints.steps() == [10, 15]
    assert checkpoints.newest_sound() == 10
    assert run(config(), instances, tmp_path / "b") == undisturbed


def test_a_save_that_was_killed_is_no_checkpoint(instances: Artifact, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run(config(), instances, tmp_path, report=KilledAt(12))
    newest = tmp_path / "checkpoints" / "step-000000010"
    (newest / RECORD).unlink()
    checkpoints = Checkpoints(Folder.at(tmp_path / "checkpoints"), "identity", 2)
    assert checkpoints.newest_sound() == 5


def test_a_checkpoint_of_another_configuration_is_refused(
    instances: Artifact, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        run(config(), instances, tmp_path, report=KilledAt(12))
    checkpoints = Checkpoints(Folder.at(tmp_path / "checkpoints"), "another", 2)
    with pytest.raises(DataError, match="another configuration: expected another, found identity"):
        checkpoints.refuse_foreign()


def test_old_checkpoints_go(instances: Artifact, tmp_path: Path) -> None:
    run(config(), instances, tmp_path)
    assert Checkpoints(Folder.at(tmp_path / "checkpoints"), "identity", 2).steps() == [15, 20]


def test_a_loss_that_is_no_number_ends_the_run_with_the_key_to_change(
    instances: Artifact, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"not finite at step \d+; lower pretrain\.optimizer"):
        run(config(**{"pretrain.optimizer.learning_rate": 1e30}), instances, tmp_path)


def test_a_start_far_from_ln_v_is_named(instances: Artifact, tmp_path: Path) -> None:
    class Notes(SilentReporter):
        def __init__(self) -> None:
            self.notes: list[str] = []

        def note(self, message: str) -> None:
            self.notes.append(message)

    sound, off = Notes(), Notes()
    run(config(), instances, tmp_path / "a", report=sound)
    assert sound.notes == []
    run(config(**{"model.initializer_range": 3.0}), instances, tmp_path / "b", report=off)
    assert any("mlm loss before the first step" in note and "ln V" in note for note in off.notes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.max_position_embeddings": 16}, "max_position_embeddings is 16, but"),
        ({"pretrain.global_batch_size": 10**6}, "there are .* training instances"),
    ],
)
def test_instances_that_do_not_fit_the_model_are_refused(
    instances: Artifact, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        check_fit(config(**changes), instances)
