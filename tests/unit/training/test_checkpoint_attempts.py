"""Two attempts at one run: in every order, what was saved stays until more is saved."""

import builtins
import contextlib
import copy
import functools
import hashlib
import io
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from rungwise.core.errors import RungwiseError
from rungwise.core.storage.folder import Folder
from rungwise.training import checkpoint
from rungwise.training.checkpoint import Checkpoint, CheckpointFiles, CheckpointRules, Checkpoints
from rungwise.training.state import TensorPiece
from rungwise.training.throughput import Progress


class Stopped(BaseException):
    """Ends an attempt as a kill does: it does nothing more to files."""


class Attempt(threading.Thread):
    """Does `work`, but stops before each operation on files until `proceed` is called."""

    def __init__(self, number: int, work: Callable[[], int]) -> None:
        super().__init__(daemon=True)
        self.number = number  # the random part of its name
        self.seen: list[object] = []  # what its operations read: determines what it does next
        self.going = True
        self.saved = 0  # the step that it has saved
        self._work = work
        self._killed = False
        self._go, self._reached = threading.Semaphore(0), threading.Semaphore(0)

    def run(self) -> None:
        HERE.attempt = self
        try:
            self.saved = self._work()
        except (Stopped, RungwiseError, OSError):  # what it writes or reads may go
            pass
        finally:
            HERE.attempt = None
            self.going = False
            self._reached.release()

    def take_turn(self, operation: Callable[[], Any]) -> Any:
        """Called in the thread: the result of an operation, once it is this attempt's turn."""
        self._reached.release()
        self._go.acquire()
        if self._killed:
            raise Stopped
        try:
            result = operation()
        except OSError as error:
            self.seen.append(error.errno)
            raise
        # Others, such as the number of an open file, decide nothing.
        self.seen.append(str(result) if isinstance(result, bool | bytes | list) else None)
        return result

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


def take_turn(operation: Callable[[], Any]) -> Any:
    attempt: Attempt | None = getattr(HERE, "attempt", None)
    return operation() if attempt is None else attempt.take_turn(operation)


def draw_number(bits: int) -> int:
    return HERE.attempt.number if HERE.attempt else 0


class MemoryFolder(Folder):
    """A folder of an object store: each operation and listing is a turn of its attempt."""

    objects: ClassVar[dict[str, bytes]] = {}
    scratch: ClassVar[Path] = Path()

    def __truediv__(self, name: str) -> Folder:
        return MemoryFolder(f"{self.uri}/{name}")

    def exists(self, name: str = "") -> bool:
        return take_turn(lambda: f"{self.uri}/{name}" in self.objects)

    def names(self) -> list[str]:
        return take_turn(self._below)

    def files(self) -> list[str]:
        return take_turn(lambda: [name for name in self._below() if "/" not in name])

    def subfolders(self) -> list[str]:
        return take_turn(lambda: sorted({n.split("/")[0] for n in self._below() if "/" in n}))

    def read_bytes(self, name: str) -> bytes:
        return take_turn(lambda: self._get(name))

    def local(self, name: str, cache: Path | None = None) -> Path:
        data = self.read_bytes(name)
        path = self.scratch / hashlib.sha256(data).hexdigest()
        path.write_bytes(data)
        return path

    @contextlib.contextmanager
    def staged(self, name: str, durable: bool = True) -> Iterator[Path]:
        path = self.scratch / "staged"
        yield path
        data = path.read_bytes()
        take_turn(lambda: self.objects.__setitem__(f"{self.uri}/{name}", data))

    def remove(self, name: str = "") -> None:
        for each in [name] if name else self.names():
            take_turn(lambda each=each: self.objects.pop(f"{self.uri}/{each}", None))

    def _get(self, name: str) -> bytes:
        if (data := self.objects.get(f"{self.uri}/{name}")) is None:
            raise FileNotFoundError(name)
        return data

    def _below(self) -> list[str]:
        top = f"{self.uri}/"
        return sorted(name.removeprefix(top) for name in self.objects if name.startswith(top))


class Bucket:
    """A bucket in memory, which can be set back."""

    def __init__(self, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(MemoryFolder, "scratch", scratch)
        monkeypatch.setattr(MemoryFolder, "objects", {})
        self.folder = MemoryFolder("s3://memory/run")
        self._before: dict[str, bytes] = {}

    def mark(self) -> None:
        self._before = dict(MemoryFolder.objects)

    def set_back(self) -> None:
        MemoryFolder.objects.clear()
        MemoryFolder.objects.update(self._before)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(MemoryFolder.objects))


class Entries(list[os.DirEntry[str]]):
    """The entries of a directory, as os.scandir gives them, all read at once."""

    def __enter__(self) -> "Entries":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __str__(self) -> str:
        return str([entry.name for entry in self])


class Directory:
    """A directory of this machine, which can be set back. Each call of the system that makes,
    removes, renames or lists something, or looks at a file, is a turn of the attempt that calls it;
    what it does to a temporary file belongs to the turn before."""

    CHANGES = ("mkdir", "rmdir", "unlink", "remove")
    LOOKS = ((os, "stat"), (os, "open"), (io, "open"), (builtins, "open"))

    def __init__(self, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path, self._before = scratch / "run", dict[Path, bytes]()
        self._path.mkdir()
        self.folder = Folder(str(self._path))
        scan = os.scandir

        def scan_whole(path: Any = ".") -> Entries:
            with scan(path) as entries:
                return Entries(sorted(entries, key=lambda entry: entry.name))

        monkeypatch.setattr(os, "scandir", self._by_turns(scan_whole, lambda path: True))
        monkeypatch.setattr(os, "replace", self._by_turns(os.replace, lambda path: True))
        for name in self.CHANGES:
            changed = self._by_turns(getattr(os, name), lambda path: path.suffix != ".tmp")
            monkeypatch.setattr(os, name, changed)
        for module, name in self.LOOKS:
            seen = self._by_turns(getattr(module, name), lambda path: ".json" in path.suffixes)
            monkeypatch.setattr(module, name, seen)
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)
        monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=0))

    def _by_turns(
        self, call: Callable[..., Any], is_turn: Callable[[Path], bool]
    ) -> Callable[..., Any]:
        @functools.wraps(call)
        def turn(*args: Any, **options: Any) -> Any:
            if getattr(HERE, "attempt", None) is None or not is_turn(Path(str(args[0]))):
                return call(*args, **options)
            return take_turn(lambda: call(*args, **options))

        return turn

    def mark(self) -> None:
        files = (path for path in self._path.rglob("*") if path.is_file())
        self._before = {path: path.read_bytes() for path in files}

    def set_back(self) -> None:
        shutil.rmtree(self._path)
        for path, data in self._before.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(str(path) for path in self._path.rglob("*")))


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


def begin(folder: Folder) -> Checkpoints:
    kept = Checkpoints(CheckpointRules(folder, keep=1))
    kept.resume(State())  # type: ignore[arg-type]
    return kept


def save(kept: Checkpoints, step: int) -> int:
    kept.save(State(), Progress(step=step), wait=True, must=True)  # type: ignore[arg-type]
    return step


def list_sound(folder: Folder) -> list[Checkpoint]:
    files = CheckpointFiles(CheckpointRules(folder, keep=1))
    return [each for each in files.finished() if not files.count_damaged(each, 0, 1)]


def begin_and_save(folder: Folder, step: int) -> Callable[[], int]:
    return lambda: save(begin(folder), step)


def save_again(resumed: Checkpoints, step: int) -> Callable[[], int]:
    return lambda: save(copy.copy(resumed), step)


ORDERS = [
    # The first has resumed already.
    (Bucket, (3, 3), None),
    (Bucket, (3, 2), None),
    (Bucket, (3, 4), None),
    (Directory, (3, 3), None),
    # Both begin, with the same number: the random one after it decides which is later by name.
    (Bucket, (2, 2), (7, 5)),
    (Bucket, (2, 2), (5, 7)),
    (Bucket, (3, 2), (7, 5)),
    (Directory, (2, 2), (7, 5)),
]
FAST = (0, 4)


@pytest.mark.parametrize(
    ("place", "steps", "numbers"),
    [
        pytest.param(*order, marks=() if index in FAST else pytest.mark.slow)
        for index, order in enumerate(ORDERS)
    ],
)
def test_in_every_order_of_two_attempts_what_was_saved_stays(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: type[Bucket | Directory],
    steps: tuple[int, int],
    numbers: tuple[int, int] | None,
) -> None:
    """There is a checkpoint of step 1. Both attempts resume from what they find, and save."""
    with monkeypatch.context() as patch:
        store = place(tmp_path, patch)
        folder = store.folder
        HERE.attempt = None
        patch.setattr(checkpoint.secrets, "randbits", draw_number)
        patch.setattr(checkpoint.threading, "Thread", Inline)
        save(begin(folder), 1)
        resumed = begin(folder)
        store.mark()
        sound: dict[tuple[str, ...], int] = {}

        def check(attempts: list[Attempt], order: list[int]) -> tuple[object, list[int]]:
            """What would stay if both were killed now; the state, and who goes on."""
            going = [number for number in (0, 1) if attempts[number].going]
            names = store.names()
            if names not in sound:
                sound[names] = max((each.step for each in list_sound(folder)), default=0)
            saved = [attempt.saved for attempt in attempts]
            assert sound[names] >= max(1, *saved), order
            if numbers is None and 1 not in going:
                assert saved[1], order
            assert going or any(saved), order
            return (names, *(tuple(attempt.seen) for attempt in attempts)), going

        states: set[object] = set()
        orders: list[list[int]] = [[]]
        while orders:  # each from the start to a state that is known, the others put aside
            order = orders.pop()
            store.set_back()
            works = [begin_and_save(folder, step) for step in steps]
            if numbers is None:
                works[0] = save_again(resumed, steps[0])
            attempts = [
                Attempt(number, work) for number, work in zip(numbers or (7, 7), works, strict=True)
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
