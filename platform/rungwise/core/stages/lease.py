"""A lease: the right of one driver to build one artifact while others may want it too.

    {root}/{stage}/.{fingerprint}.{number}.{random}.lease    who builds it, or asks to
    {root}/.{number of the driver}.{number}.{random}.lease   a driver at work: nothing is deleted

It lies beside the artifact's folder, which is chosen under the lease. Whoever wants it writes a
file of its own and then lists the folder again: it has the lease if no file there is of a live
driver but its own; of several that ask at once, the first by name waits for the others to withdraw.
The later of two drivers always sees the other's file, so this needs no atomic operation but a
listing that shows what was there before. A lease expires when its text has not changed for
EXPIRY_SECONDS by the clock of the waiting driver, or at once if it names a process of this machine
that has ended.

Guaranteed: of the live drivers that reach the root at least every EXPIRY_SECONDS, one at a time
builds an artifact. A driver that was cut off for longer stops when it notices the loss
(`is_valid`), and writes no record.
"""

import contextlib
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from rungwise.core.storage.folder import Folder

logger = logging.getLogger(__name__)

BEAT_SECONDS = 10.0
EXPIRY_SECONDS = 60.0
_LOOK_SECONDS = 0.5
_AGREE_SECONDS = 5.0  # the longest wait for others that ask at the same time
_PAUSE_SECONDS = 0.02
# Anything else that ends so is a file of the user.
_NAME = re.compile(r"\.([0-9a-z]+)\.([0-9]{12})\.[0-9a-f]{12}\.lease")


class _Holder(BaseModel):
    """The text of a lease. It never gets shorter, so a beat can be written in place."""

    state: Literal["held", "asks"]
    beats: str
    host: str
    pid: int
    driver: str = ""
    machine: str
    started: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def is_here(self) -> bool:
        return bool(self.machine) and self.machine == _machine()

    @property
    def lives(self) -> bool:
        return _read_start_time(self.pid) == self.started


class Lease:
    """The lease of one artifact. Call `take` until it returns True, and finally `release`."""

    def __init__(self, folder: Folder, fingerprint: str, driver: str = "") -> None:
        """`folder` is the stage's, `driver` the id of this driver."""
        self.holder = ""  # description of the holder, after a failed `take`
        self.lost = False  # another driver took over; noticed within BEAT_SECONDS
        self.dead: tuple[str, ...] = ()  # ids of drivers that were killed, whose lease `take` took
        self._folder = folder
        self._fingerprint = fingerprint
        self._driver = driver
        self._name = ""  # of our file
        self._held = False
        self._beats = 0
        self._texts: dict[str, tuple[bytes, float]] = {}  # of other files: text, when it changed
        self._blocking: bytes | None = None  # the text of a file that made `take` fail
        self._lives_here = False  # that driver is a process of this machine
        self._ended = threading.Event()
        self._writing = threading.Lock()  # a shorter text must not be written after a longer one
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)

    def take(self) -> bool:
        """Take the lease unless a live driver holds it; at once, or in seconds if others ask.
        Raises UserError if the store cannot be reached."""
        before = self._names()
        if self._live(before):
            return False
        # By the clock, so that a number is not used again after all files were removed.
        last = max((int(name.split(".")[2]) for name in before), default=0)
        number = max(last + 1, int(time.time()))
        self._name = f".{self._fingerprint}.{number:012}.{uuid.uuid4().hex[:12]}.lease"
        self._folder.write_bytes(self._name, self._text())
        if not self._agree():
            self._withdraw()
            return False
        self._held = True
        with contextlib.suppress(FileNotFoundError):
            self._renew()
        if not self.is_valid():  # this process was suspended, and its file taken for expired
            self._withdraw()
            return False
        holders = [_parse(self._texts[name][0]) for name in before if name in self._texts]
        self.dead = tuple(each.driver for each in holders if each and each.driver)
        for name in before:
            self._folder.remove(name)
        self._thread.start()
        return True

    def claim(self) -> bool:
        """Take the lease as `take`; one from another machine has EXPIRY_SECONDS to be renewed."""
        first: bytes | None = None
        while not self.take():
            if self._lives_here or first not in (None, self._blocking):
                return False
            first = self._blocking
            time.sleep(_LOOK_SECONDS)
        return True

    def is_valid(self) -> bool:
        """Whether a lease that `take` gave has not been taken over."""
        names = self._names()
        later = [name for name in names if name > self._name]
        return self._name in names and not any(self._is_held(name) for name in later)

    def release(self) -> None:
        """Give back the lease if it was taken; a waiting driver can take it at once."""
        if not self._name:
            return
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(BEAT_SECONDS)
        try:
            self._withdraw()
        except Exception as error:
            # A waiting driver gets it when it expires.
            logger.warning("the lease of %s was not removed: %s", self._folder.uri, error)

    def _agree(self) -> bool:
        """Whether the lease is ours, once those that ask at the same time have seen our file."""
        deadline = time.monotonic() + _AGREE_SECONDS
        while live := self._live(self._names()):
            first = self._name < live[0] and not any(self._is_held(name) for name in live)
            if not first or time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE_SECONDS)
        return True

    def _withdraw(self) -> None:
        name, self._name, self._held = self._name, "", False
        self._folder.remove(name)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            try:
                if not self.is_valid():
                    self.lost = True
                    return
                self._renew()
            except FileNotFoundError:  # removed meanwhile: the next look notices
                continue
            except Exception as error:
                # Harmless if the store is back before the lease expires.
                logger.warning("the lease of %s was not renewed: %s", self._folder.uri, error)

    def _renew(self) -> None:
        with self._writing:
            self._beats += 1
            self._folder.overwrite(self._name, self._text())

    def _names(self) -> list[str]:
        """The files of this lease, the latest last."""
        names = _list_files(self._folder)
        return sorted(name for name, of in names.items() if of == self._fingerprint)

    def _live(self, names: Iterable[str]) -> list[str]:
        """Those of other drivers that have not expired. Describes the first of them."""
        live = [name for name in names if name != self._name and not self._expired(name)]
        if live:
            self._blocking, _ = self._texts[live[0]]
            holder = _parse(self._blocking)
            self.holder = str(holder or "another process")
            self._lives_here = holder is not None and holder.is_here
        return live

    def _expired(self, name: str) -> bool:
        try:
            text = self._folder.read_bytes(name)
        except FileNotFoundError:
            return True  # released since it was listed
        if name not in self._texts or text != self._texts[name][0]:
            self._texts[name] = text, time.monotonic()
        holder = _parse(text)
        if holder is not None and holder.is_here and not holder.lives:
            return True
        return time.monotonic() - self._texts[name][1] > EXPIRY_SECONDS

    def _is_held(self, name: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            holder = _parse(self._folder.read_bytes(name))
            return holder is not None and holder.state == "held"
        return False

    def _text(self) -> bytes:
        holder = _Holder(
            state="held" if self._held else "asks",
            beats=f"{self._beats:012}",
            host=socket.gethostname(),
            pid=os.getpid(),
            driver=self._driver,
            machine=_machine(),
            started=_read_start_time(os.getpid()),
        )
        return holder.model_dump_json().encode()


def _parse(text: bytes) -> _Holder | None:
    """None for what is no lease: a damaged file, which expires by the clock alone."""
    try:
        return _Holder.model_validate_json(text)
    except ValidationError:
        return None


def _list_files(folder: Folder) -> dict[str, str]:
    """The files of leases in a folder, and what each is of."""
    matches = (_NAME.fullmatch(name) for name in folder.files())
    return {match[0]: match[1] for match in matches if match}


@dataclass(frozen=True)
class Driver:
    """The id of a driver, which sort by time, and those killed on this machine before."""

    id: str
    dead: tuple[str, ...] = ()


@contextlib.contextmanager
def register_driver(root: Folder) -> Iterator[Driver]:
    """Register this process as a driver for the block. Removes what killed drivers left."""
    dead: list[str] = []
    for lease in _list_drivers(root):
        if lease.take():
            dead += lease.dead
            lease.release()
    id = f"{time.time_ns():016x}{uuid.uuid4().hex[:16]}"
    lease = Lease(root, id, id)
    lease.take()
    try:
        yield Driver(id, tuple(dead))
    finally:
        lease.release()


def describe_live_driver(root: Folder) -> str:
    """Describe a driver at work below a root, or ""; one elsewhere has to show that it lives."""
    for lease in _list_drivers(root):
        if not lease.claim():
            return lease.holder
        lease.release()  # of a driver that was killed
    return ""


def _list_drivers(root: Folder) -> list[Lease]:
    return [Lease(root, driver) for driver in sorted(set(_list_files(root).values()))]


def _machine() -> str:
    """Identify one boot of a machine and one container, the scope of pids; "" without /proc."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists():
        return ""
    return f"{boot.read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"


def _read_start_time(pid: int) -> str:
    """The clock tick at which a process started, since pids are reused; empty if it has ended."""
    try:
        # Fields after the process name, which may contain anything: 0 is the state, 19 the tick.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] == "Z" else fields[19]
