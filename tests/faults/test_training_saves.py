"""A save that is killed, a store that is away, a full disk: the run ends as it would have."""

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import multiprocessing

from rungwise.core.errors import DataError, UserError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import SilentReporter
from rungwise.core.storage.folder import Folder
from rungwise.training import checkpoint, loop
from rungwise.training.checkpoint import Checkpoints
from rungwise.training.config import GradientFit
from rungwise.training.parallel import Group
from rungwise.training.state import RunState
from rungwise.training.throughput import Progress
from tests.conftest import mounted_disk, s3_bucket
from tests.faults.s3_faults import FaultyS3, faulty_moto
from tests.small_models import small_model
from tests.training_runs import (
    CPU,
    Notes,
    assert_same_weights,
    checkpoints_in,
    config,
    forkserver,
    newest_step,
    run,
)
from tests.waiting import wait_until

BUCKET = "rungwise-training"


class AtSteps(Notes):
    """Calls a function when a step is reached, once though it is told twice; keeps notes."""

    def __init__(self, actions: dict[int, Any]) -> None:
        super().__init__()
        self.actions = actions

    def progress(self, done: float, total: float, **shown: float | str) -> None:
        self.actions.pop(int(done), lambda: None)()


def _writes_slowly(settings: GradientFit, instances: Artifact, output: str) -> None:
    """Stands still while it writes the checkpoint of step 10, its file half done."""
    write = checkpoint.PartWriter._write_part

    def half(self: Any) -> dict[str, Any]:
        if self.step == 10:
            folder = Path(self.folder.uri)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f".{self._file_name(0)}.tmp").write_bytes(b"half")
            time.sleep(60)
        return write(self)

    checkpoint.PartWriter._write_part = half  # type: ignore[method-assign]
    run(settings, instances, output)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the undisturbed run."""
    return tmp_path_factory.mktemp("straight")


@pytest.fixture(scope="module")
def undisturbed(instances: Artifact, straight: Path) -> Progress:
    return run(config(), instances, straight)


def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(
    instances: Artifact, undisturbed: Progress, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    with forkserver():
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=_writes_slowly, args=(config(), instances, str(broken)))
        process.start()
    writing = "checkpoints/step-000000010-*/.*.tmp"
    wait_until(writing, lambda: any(broken.glob(writing)), 120, lambda: process.exitcode, 0.01)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert newest_step(checkpoints_in(broken / "checkpoints")) == 5
    resumed = run(config(), instances, broken)
    assert resumed.attempts[-1]["step"] == 5
    assert resumed == undisturbed
    assert not list(broken.glob("checkpoints/*/.*.tmp"))


def test_a_disk_that_is_full_during_a_save_costs_that_checkpoint_alone(
    instances: Artifact, undisturbed: Progress, straight: Path, tmp_path: Path
) -> None:
    ballast = tmp_path / "disk" / "ballast"

    def fill() -> None:
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as stream:
            while True:
                stream.write(bytes(4096))

    report = AtSteps({8: fill, 12: ballast.unlink})
    with mounted_disk(tmp_path / "disk", "4m") as place:
        progress = run(config(), instances, place / "run", report=report)
        assert_same_weights(place / "run", straight)
    assert progress == undisturbed
    assert [n for n in report.notes if "step 10 is not written" in n and "no room left" in n]
    assert [row["valid"] for row in progress.saves] == [1.0, 0.0, 1.0, 1.0]


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultyS3]:
    with faulty_moto(BUCKET) as server:
        yield server


@pytest.mark.parametrize("seconds", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_a_store_that_is_away_during_a_save_is_waited_for(
    instances: Artifact,
    undisturbed: Progress,
    proxy: FaultyS3,
    monkeypatch: pytest.MonkeyPatch,
    seconds: int,
) -> None:
    refused: list[str] = []
    away = threading.Event()

    def outage(exchange: Any, upload: bool) -> str:
        if upload and re.search("/step-000000010-.*/part-", exchange.path) and not refused:
            away.set()
            threading.Timer(seconds, away.clear).start()
        if away.is_set():
            refused.append(exchange.path)
        return "reset before" if away.is_set() else ""

    monkeypatch.setattr(proxy, "fault", outage)
    output = f"s3://{BUCKET}/run-{seconds}"
    began = time.monotonic()
    progress = run(config(), instances, output)
    assert refused
    assert time.monotonic() - began >= seconds
    assert progress == undisturbed
    kept = checkpoints_in(f"{output}/checkpoints")
    assert newest_step(kept) == 20
    assert run(config(), instances, output, report=SilentReporter()) == undisturbed


def saved_at(folder: Path | str, keep: int, *steps: int) -> Checkpoints:
    """Checkpoints of a small model at these steps, by one attempt of a run."""
    kept, state = checkpoints_in(folder, keep), RunState(small_model("mlm_nsp"), ())
    kept.resume(state)
    for step in steps:
        kept.save(state, Progress(step=step), wait=True)
    return kept


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_damaged_checkpoints_of_later_steps_do_not_push_out_a_sound_one(tmp_path: Path) -> None:
    saved_at(tmp_path, 9, 10, 18, 20)
    for step in (18, 20):
        (part,) = tmp_path.glob(f"step-*{step}-*/*.safetensors")
        flip(part, -1)
    resumed = saved_at(tmp_path, 1, 12)
    assert resumed.steps() == [12, 18, 20]
    assert newest_step(checkpoints_in(tmp_path, 1)) == 12
    again = saved_at(tmp_path, 2, 14, 21)
    assert again.steps() == [14, 21]


@pytest.mark.parametrize("how", ["a digit", "cut short", "no JSON object"])
def test_a_damaged_record_is_passed_over(tmp_path: Path, how: str) -> None:
    saved_at(tmp_path, 9, 10, 20)
    (record,) = tmp_path.glob("step-000000020-*/checkpoint.json")
    text = record.read_text()
    changed = {
        "a digit": text.replace('"step": 20', '"step": 21'),
        "cut short": text[: len(text) // 2],
        "no JSON object": "7",
    }[how]
    assert changed != text
    record.write_text(changed)
    assert newest_step(checkpoints_in(tmp_path)) == 10


def test_older_checkpoints_go_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a loss of power a directory may lack what was renamed into it, but not a removal."""
    events: list[str] = []
    flush, remove = os.fsync, Folder.remove

    def fsync(descriptor: int) -> None:
        place = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        events.extend([f"flush {place.name[:14]}"] if place.is_dir() else [])
        flush(descriptor)

    def removing(self: Folder, name: str = "") -> None:
        events.append(f"remove {Path(self.uri).name[:14]}")
        remove(self, name)

    kept = saved_at(tmp_path, 1, 10)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Folder, "remove", removing)
    kept.save(RunState(small_model("mlm_nsp"), ()), Progress(step=20), wait=True)
    first = events.index("remove step-000000010")
    assert {"flush step-000000020", f"flush {tmp_path.name[:14]}"} <= set(events[:first])


def test_a_download_that_is_not_what_was_written_is_not_loaded() -> None:
    with s3_bucket("rungwise-loads") as bucket:
        kept = saved_at(f"{bucket}/run", 1, 10)
        checkpoint = kept.newest_sound()
        assert checkpoint is not None
        place = Folder.at(f"{bucket}/run/{checkpoint.name}")
        (part,) = [name for name in place.names() if "part" in name]
        place.write_bytes(part, place.read_bytes(part)[:-1] + b"?")
        with pytest.raises(DataError, match="is not what was written"):
            kept.load(checkpoint, RunState(small_model("mlm_nsp"), ()))


def test_a_worker_that_is_gone_does_not_keep_the_leader_waiting(tmp_path: Path) -> None:
    """The leader of two: the other wrote nothing, and then there is nobody to agree with."""

    class Gone(Group):
        def count(self, value: int) -> int:
            raise RuntimeError("connection closed by peer")

    kept = checkpoints_in(tmp_path, group=Gone(0, 2, CPU))
    kept.save(RunState(small_model("mlm_nsp"), ()), Progress(step=10))
    writer = kept._writer
    assert writer is not None
    with pytest.raises(RuntimeError, match="closed by peer"):
        kept.settle()
    writer.thread.join(30)
    assert not writer.thread.is_alive()
    assert kept.steps() == []


def test_a_notice_whose_checkpoint_cannot_be_written_does_not_end_the_run(
    instances: Artifact, undisturbed: Progress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = checkpoint.PartWriter._write_part

    def full(self: Any) -> dict[str, Any]:
        if self.step == 3:
            raise UserError("no room left on the disk")
        return write(self)

    monkeypatch.setattr(checkpoint.PartWriter, "_write_part", full)
    monkeypatch.setattr(loop, "_NOTICE_SECONDS", 0.0)
    noticed = iter([False, False, True])
    notes = Notes()
    progress = run(
        config(), instances, tmp_path / "b", report=notes, notice=lambda: next(noticed, False)
    )
    assert progress == undisturbed
    assert [note for note in notes.notes if "step 3 is not written" in note]
