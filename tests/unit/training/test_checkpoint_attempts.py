"""Two attempts at one run write checkpoints to one folder: in every order of their operations on
files, and after a kill at any moment, a sound checkpoint stays."""

import contextlib
import copy
import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from rungwise.core.storage.folder import Folder
from rungwise.training import checkpoint, checkpoint_files
from rungwise.training.checkpoint import Checkpoints
from rungwise.training.checkpoint_files import (
    Checkpoint,
    CheckpointFiles,
    CheckpointRules,
    Superseded,
)
from rungwise.training.state import TensorPiece
from rungwise.training.throughput import Progress

TOP = "s3://memory/run"


class Stopped(BaseException):
    """Ends an attempt as a kill does: it does nothing more to files."""


class Attempt(threading.Thread):
    """Does `work`, but stops before each operation on files until `proceed` is called."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.seen: list[object] = []  # what its operations read: determines what it does next
        self.going = True
        self.superseded = False
        self._work = work
        self._killed = False
        self._go, self._reached = threading.Semaphore(0), threading.Semaphore(0)

    def run(self) -> None:
        HERE.attempt = self
        try:
            self._work()
        except Stopped:
            pass
        except Superseded:
            self.superseded = True
        finally:
            self.going = False
            self._reached.release()

    def wait(self) -> None:
        """Called in the thread before an operation."""
        self._reached.release()
        self._go.acquire()
        if self._killed:
            raise Stopped

    def launch(self) -> None:
        self.start()
        self._reached.acquire()

    def proceed(self) -> None:
        self._go.release()
        self._reached.acquire()

    def kill(self) -> None:
        self._killed = True
        while self.going:
            self.proceed()
        self.join()


HERE = threading.local()


class MemoryFolder(Folder):
    """A folder of an object store, all of whose objects are in `objects`. Each operation on one
    object, and each listing, is a turn of the attempt that asks for it."""

    objects: ClassVar[dict[str, bytes]] = {}
    scratch: ClassVar[Path] = Path()

    def __truediv__(self, name: str) -> Folder:
        return MemoryFolder(f"{self.uri}/{name}")

    def exists(self, name: str = "") -> bool:
        return self._turn(lambda: f"{self.uri}/{name}" in self.objects)

    def names(self) -> list[str]:
        return self._turn(self._below)

    def files(self) -> list[str]:
        return self._turn(lambda: [name for name in self._below() if "/" not in name])

    def subfolders(self) -> list[str]:
        return self._turn(lambda: sorted({n.split("/")[0] for n in self._below() if "/" in n}))

    def read_bytes(self, name: str) -> bytes:
        return self._turn(lambda: self._get(name))

    def local(self, name: str, cache: Path | None = None) -> Path:
        data = self.read_bytes(name)
        path = self.scratch / hashlib.sha256(data).hexdigest()
        path.write_bytes(data)
        return path

    @contextlib.contextmanager
    def staged(self, name: str) -> Iterator[Path]:
        path = self.scratch / "staged"
        yield path
        data = path.read_bytes()
        self._turn(lambda: self.objects.__setitem__(f"{self.uri}/{name}", data))

    def remove(self, name: str = "") -> None:
        for each in [name] if name else self.names():
            self._turn(lambda each=each: self.objects.pop(f"{self.uri}/{each}", None))

    def _get(self, name: str) -> bytes:
        if (data := self.objects.get(f"{self.uri}/{name}")) is None:
            raise FileNotFoundError(name)
        return data

    def _below(self) -> list[str]:
        top = f"{self.uri}/"
        return sorted(name.removeprefix(top) for name in self.objects if name.startswith(top))

    @staticmethod
    def _turn(operation: Callable[[], Any]) -> Any:
        attempt = getattr(HERE, "attempt", None)
        if attempt is None:
            return operation()
        attempt.wait()
        try:
            result = operation()
        except FileNotFoundError:
            attempt.seen.append(None)
            raise
        attempt.seen.append(str(result))
        return result


class State:
    """The least that can be saved and restored."""

    def pieces(self, rank: int, world_size: int) -> dict[str, TensorPiece]:
        return {"model/w": TensorPiece(torch.zeros(1), 0, (1,))}

    def restore(self, saved: Any) -> None:
        saved.read("model/w")


class Inline:
    """A thread that does its work when it is started."""

    def __init__(self, target: Callable[[], None], **options: Any) -> None:
        self.start = target

    def join(self) -> None:
        pass


def begin() -> Checkpoints:
    kept = Checkpoints(CheckpointRules(MemoryFolder(TOP), "identity", keep=1))
    kept.resume(State())  # type: ignore[arg-type]
    return kept


def save(kept: Checkpoints, step: int) -> None:
    kept.save(State(), Progress(step=step), wait=True)  # type: ignore[arg-type]


def list_sound() -> list[Checkpoint]:
    files = CheckpointFiles(CheckpointRules(MemoryFolder(TOP), "identity", keep=1))
    return [each for each in files.finished() if not files.count_damaged(each, 0, 1)]


@pytest.mark.parametrize(
    "second_step", [3, *(pytest.param(step, marks=pytest.mark.slow) for step in (2, 4))]
)
def test_in_every_order_of_two_attempts_a_sound_checkpoint_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second_step: int
) -> None:
    """The first has resumed from step 1 and saves step 3; the second begins, resumes and saves."""
    monkeypatch.setattr(MemoryFolder, "scratch", tmp_path)
    monkeypatch.setattr(MemoryFolder, "objects", {})

    monkeypatch.setattr(checkpoint_files.secrets, "randbits", lambda bits: 7)
    HERE.attempt = None
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.threading, "Thread", Inline)
        # It reads before the attempt begins, and decides nothing here.
        patch.setattr(Checkpoints, "_refuse_foreign", lambda self: None)
        save(begin(), 1)
        resumed, before = begin(), dict(MemoryFolder.objects)
        sound: dict[tuple[str, ...], list[Checkpoint]] = {}

        def check(attempts: list[Attempt], order: list[int]) -> tuple[object, list[int]]:
            """What would stay if both were killed now; the state, and who goes on."""
            going = [number for number in (0, 1) if attempts[number].going]
            names = tuple(sorted(MemoryFolder.objects))
            if names not in sound:
                sound[names] = list_sound()
            assert sound[names], order
            if 1 not in going:
                assert not attempts[1].superseded
                assert sound[names][-1].step >= second_step
            return (names, *(tuple(attempt.seen) for attempt in attempts)), going

        states: set[object] = set()
        orders: list[list[int]] = [[]]
        while orders:  # each from the start to a state that is known, the others put aside
            order = orders.pop()
            MemoryFolder.objects.clear()
            MemoryFolder.objects.update(before)
            first = copy.copy(resumed)
            attempts = [
                Attempt(lambda first=first: save(first, 3)),
                Attempt(lambda: save(begin(), second_step)),
            ]
            for attempt in attempts:
                attempt.launch()
            for number in order:
                attempts[number].proceed()
            state, going = check(attempts, order)
            while state not in states:
                states.add(state)
                if not going:
                    break
                orders += [[*order, number] for number in going[1:]]
                order = [*order, going[0]]
                attempts[going[0]].proceed()
                state, going = check(attempts, order)
            for attempt in attempts:
                attempt.kill()
    assert len(states) > 1000
