"""A lease: the right of one driver to build one artifact while others may want it too.

    {root}/{stage}/.{fingerprint}.{number}.lease    who builds it; rewritten every few seconds

The lease lies beside the artifact's folder, not in it: drivers with different labels would create
two folders for one fingerprint, so the folder is chosen under the lease. The highest number is
valid. A driver takes a lease by creating the next number, which only one driver can do. Taking over
an expired lease works the same way and removes the older file.

A lease expires when its text has not changed for EXPIRY_SECONDS by the clock of the waiting driver,
so clocks of different machines are never compared. It expires at once if it names a process of this
machine that has ended (Linux only).

Guaranteed if `Folder.create` is atomic: of the live drivers that reach the root at least every
EXPIRY_SECONDS, one at a time builds an artifact. Not guaranteed: that a driver which was cut off
for longer has stopped writing before the next one starts. It stops when it notices the loss
(`is_valid`) and writes no record; until then its stage writes to the same folder, each file whole.

    {root}/.{number of the driver}.0.lease          a driver at work, and what it needs

A driver also holds a lease of its own in the root. It names the fingerprints of all its stages, so
that nobody deletes what a stage of it reads, or will read (`Drivers`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from rungwise.core.storage.folder import Folder

logger = logging.getLogger(__name__)

BEAT_SECONDS = 10.0
EXPIRY_SECONDS = 60.0
_LOOK_SECONDS = 0.5


class Lease:
    """The lease of one artifact. Call `take` until it returns True, and finally `release`."""

    def __init__(
        self,
        folder: Folder,
        fingerprint: str,
        job: str | None = None,
        needs: Iterable[str] = (),
    ) -> None:
        """`folder` is the stage's; `job` is this driver's Ray job, shown to people."""
        self.holder = ""  # description of the holder, after a failed `take`
        self.needs = frozenset(needs)  # those of the holder, after a failed `take`
        self.lost = False  # another driver took over; noticed within BEAT_SECONDS
        self._folder = folder
        self._prefix = f".{fingerprint}."
        self._job = job
        self._id = uuid.uuid4().hex
        self._number: int | None = None  # of our lease file
        self._beats = 0
        self._text_before: bytes | None = None
        self._changed_at = 0.0
        self._lives = False  # the holder is a process of this machine
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)

    def take(self) -> bool:
        """Take the lease unless a live driver holds it; returns at once whether it was taken.
        Raises UserError if the store cannot be reached."""
        last = self._last()
        if last is not None and not self._expired(last):
            return False
        number = 0 if last is None else last + 1
        if not self._folder.create(self._name(number), self._text()):
            self._expired(number)  # another driver was faster: sets `holder`
            return False
        self._number = number
        if last is not None:
            self._folder.remove(self._name(last))
        self._thread.start()
        return True

    def claim(self) -> bool:
        """Take the lease unless a live driver holds it. A driver on another machine is given
        EXPIRY_SECONDS to renew its lease."""
        first: bytes | None = None
        while not self.take():
            if self._lives or first not in (None, self._text_before):
                return False
            first = self._text_before
            time.sleep(_LOOK_SECONDS)
        return True

    def is_valid(self) -> bool:
        """Whether a lease that `take` gave has not been taken over."""
        return self._last() == self._number

    def release(self) -> None:
        """Give back the lease if it was taken; a waiting driver can take it at once."""
        if self._number is None:
            return
        self._ended.set()
        self._thread.join(BEAT_SECONDS)
        try:
            self._folder.remove(self._name(self._number))
        except Exception as error:
            # A waiting driver gets it when it expires.
            logger.warning("the lease of %s was not removed: %s", self._folder.uri, error)

    def _beat(self) -> None:
        assert self._number is not None
        while not self._ended.wait(BEAT_SECONDS):
            try:
                if not self.is_valid():
                    self.lost = True
                    return
                self._beats += 1
                self._folder.write_bytes(self._name(self._number), self._text())
            except Exception as error:
                # Harmless if the store is back before the lease expires.
                logger.warning("the lease of %s was not renewed: %s", self._folder.uri, error)

    def _last(self) -> int | None:
        return max(
            (
                int(name.split(".")[2])
                for name in self._folder.files()
                if name.startswith(self._prefix) and name.endswith(".lease")
            ),
            default=None,
        )

    def _expired(self, number: int) -> bool:
        try:
            text = self._folder.read_bytes(self._name(number))
        except FileNotFoundError:
            return False  # released since it was listed; the next call takes it
        if text != self._text_before:
            self._text_before, self._changed_at = text, time.monotonic()
        try:
            holder = json.loads(text)
        except ValueError:  # created but not written yet
            holder = {"host": "?", "pid": 0, "machine": ""}
        job = f", job {holder['job']}" if holder.get("job") else ""
        self.holder = f"process {holder['pid']} on {holder['host']}{job}"
        self.needs = frozenset(holder.get("needs", ()))
        here = _machine()
        if here and holder["machine"] == here:
            self._lives = _started(holder["pid"]) == holder["started"]
            if not self._lives:
                return True
        return time.monotonic() - self._changed_at > EXPIRY_SECONDS

    def _name(self, number: int) -> str:
        return f"{self._prefix}{number}.lease"

    def _text(self) -> bytes:
        holder = {
            "holder": self._id,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "job": self._job,
            "machine": _machine(),
            "started": _started(os.getpid()),
            "beats": self._beats,
            "needs": sorted(self.needs),
        }
        return json.dumps(holder).encode()


@contextlib.contextmanager
def register_driver(root: Folder, needs: Iterable[str], job: str | None = None) -> Iterator[None]:
    """Say in `root`, inside the block, that this process is a driver with stages of these
    fingerprints. Removes what drivers left that were killed on this machine."""
    for _, lease in _list_drivers(root):
        if lease.take():
            lease.release()
    lease = Lease(root, uuid.uuid4().hex, job, needs)
    lease.take()
    try:
        yield
    finally:
        lease.release()


class Drivers:
    """The drivers that are at work below a root. One that was seen counts until the end."""

    def __init__(self, root: Folder) -> None:
        self._root = root
        self._live: dict[str, Lease] = {}

    def describe_user(self, fingerprint: str) -> str:
        """Describe a driver that needs the artifact; "" if there is none."""
        for name, lease in _list_drivers(self._root):
            if name not in self._live:
                if lease.claim():  # of a driver that was killed
                    lease.release()
                else:
                    self._live[name] = lease
        holders = (each.holder for each in self._live.values() if fingerprint in each.needs)
        return next(holders, "")


def _list_drivers(root: Folder) -> list[tuple[str, Lease]]:
    names = [name for name in root.files() if name.startswith(".") and name.endswith(".lease")]
    return [(name, Lease(root, name.split(".")[1])) for name in names]


def _machine() -> str:
    """Identify the scope of process ids: one boot of a machine and one container on it. Host names
    are not enough: containers share them. Empty if there is no /proc."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists():
        return ""
    return f"{boot.read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"


def _started(pid: int) -> str:
    """The clock tick at which a process started, since pids are reused; empty if it has ended."""
    try:
        # Fields after the process name, which may contain anything: 0 is the state, 19 the tick.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] == "Z" else fields[19]
