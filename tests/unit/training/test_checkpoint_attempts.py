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
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
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


class Attempt:
    """Does `work`, but stops before each operation on files until `proceed` is called."""

    def __init__(self, number: int, work: Callable[[], int]) -> None:
        self.number = number  # the random part of its name
        self._work = work

    def _do_work(self) -> int:
        """The step that it has saved."""
        HERE.attempt = self
        try:
            return self._work()
        except (Stopped, RungwiseError, OSError):  # what it writes or reads may go
            return 0
        finally:
            HERE.attempt = None


class Threaded(Attempt):
    """Of any operations: in a thread, from the start each time."""

    def launch(self) -> None:
        self.known: tuple[object, ...] = ()  # what it has read: determines what it does next
        self.going = True
        self.saved = 0
        self._killed = False
        self._go, self._reached = threading.Lock(), threading.Lock()
        for lock in (self._go, self._reached):
            lock.acquire()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()
        self._reached.acquire()

    def _run(self) -> None:
        self.saved = self._do_work()
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
            self.known += (error.errno,)
            raise
        # Others, such as the number of an open file, decide nothing.
        self.known += (str(result) if isinstance(result, bool | bytes | list) else None,)
        return result

    def proceed(self) -> None:
        self._go.release()
        self._reached.acquire()

    def kill(self) -> None:
        self._killed = True
        while self.going:
            self.proceed()
        self._thread.join()


@dataclass(eq=False)
class Known:
    """The results of an attempt's operations so far; and what they make it do next, if anything."""

    results: list[Any]
    next: Callable[[], Any] | None = None
    saved: int = 0
    later: dict[str, "Known"] = field(default_factory=dict)


class Remembered(Attempt):
    """Of operations whose results are plain values, and that are all of the work that others see:
    it is done, up to the next operation, once for the results so far."""

    def __init__(self, number: int, work: Callable[[], int]) -> None:
        super().__init__(number, work)
        self._first = self._find_out([])

    @property
    def going(self) -> bool:
        return self.known.next is not None

    @property
    def saved(self) -> int:
        return self.known.saved

    def launch(self) -> None:
        self.known = self._first

    def take_turn(self, operation: Callable[[], Any]) -> Any:
        """Called by the work: the result that is known, else this is what it does next."""
        if self._left:
            result = self._left.pop()
            if isinstance(result, OSError):
                raise result.with_traceback(None)
            return result
        self.known.next = self.known.next or operation
        raise Stopped

    def proceed(self) -> None:
        assert self.known.next is not None
        try:
            result = self.known.next()
        except OSError as error:
            result = error
        later, name = self.known.later, repr(result)
        if name not in later:
            later[name] = self._find_out([*self.known.results, result])
        self.known = later[name]

    def _find_out(self, results: list[Any]) -> Known:
        self.known = Known(results)
        self._left = results[::-1]
        self.known.saved = self._do_work()
        return self.known

    def kill(self) -> None:
        """Nothing of it is at work."""


HERE = threading.local()


def take_turn(operation: Callable[[], Any]) -> Any:
    attempt: Threaded | Remembered | None = getattr(HERE, "attempt", None)
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

    attempt = Remembered

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

    attempt = Threaded
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

        works = [begin_and_save(folder, step) for step in steps]
        if numbers is None:
            works[0] = save_again(resumed, steps[0])
        attempts = [
            place.attempt(number, work)
            for number, work in zip(numbers or (7, 7), works, strict=True)
        ]

        def check(order: list[int]) -> tuple[object, list[int]]:
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
            return (names, *(attempt.known for attempt in attempts)), going

        states: set[object] = set()
        orders: list[list[int]] = [[]]
        while orders:  # each from the start to a state that is known, the others put aside
            order = orders.pop()
            store.set_back()
            for attempt in attempts:
                attempt.launch()
            for number in order:
                attempts[number].proceed()
            state, going = check(order)
            while state not in states:
                states.add(state)
                if not going:
                    break
                orders += [[*order, number] for number in going[1:]]
                order = [*order, going[0]]
                attempts[going[0]].proceed()
                state, going = check(order)
            for attempt in attempts:
                attempt.kill()
    assert len(states) > 1000
