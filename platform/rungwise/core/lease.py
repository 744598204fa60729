"""The right of one driver to build one artifact, while other drivers may want it too.

    {root}/{stage}/.{fingerprint}.{number}.lease    who builds it; rewritten every few seconds

It lies beside the artifact's folder, not in it, because two drivers with different labels would
make two folders of one fingerprint: which folder it is, is decided under the lease. The highest
number holds. A driver takes a lease by creating the next number, which only one can; it takes an
expired one over in the same way, and removes the older number.

A lease is expired when its text has not changed for EXPIRY_SECONDS by the clock of whoever waits,
so that no two machines' clocks are compared; at once, if it names a process of this machine that
has ended (on Linux).

Guaranteed, where `Folder.create` is atomic: of drivers that are alive and reach the root at least
every EXPIRY_SECONDS, one builds an artifact at a time. Not guaranteed: that a driver which was cut
off for longer and lost its lease has stopped writing before the next one begins. It stops as soon
as it sees that (`held`), and it writes no record; what its stage writes meanwhile goes to the same
folder, each file whole.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from pathlib import Path

from rungwise.core.storage import Folder

logger = logging.getLogger(__name__)

BEAT_SECONDS = 10.0
EXPIRY_SECONDS = 60.0


class Lease:
    """The lease of one artifact. Ask `take` until it is ours, then `release` it in the end."""

    def __init__(self, folder: Folder, fingerprint: str, job: str | None = None) -> None:
        """`folder` is that of the stage; `job` the Ray job of this driver, for people."""
        self.holder = ""  # who holds it in words, after a `take` that failed
        self.lost = False  # another driver took it over; seen within BEAT_SECONDS
        self._folder = folder
        self._prefix = f".{fingerprint}."
        self._job = job
        self._id = uuid.uuid4().hex
        self._number: int | None = None  # of the file that is ours
        self._beats = 0
        self._seen: bytes | None = None
        self._seen_since = 0.0
        self._ended = threading.Event()
        self._beating = threading.Thread(target=self._beat, name="lease", daemon=True)

    def take(self) -> bool:
        """Take the lease if nobody alive holds it; returns at once, False if somebody does.

        Raises UserError if the store cannot be reached.
        """
        last = self._last()
        if last is not None and not self._expired(last):
            return False
        number = 0 if last is None else last + 1
        if not self._folder.create(self._name(number), self._text()):
            self._expired(number)  # for the words: another driver was faster
            return False
        self._number = number
        if last is not None:
            self._folder.remove(self._name(last))
        self._beating.start()
        return True

    def held(self) -> bool:
        """True while no other driver has taken over a lease that `take` gave."""
        return self._last() == self._number

    def release(self) -> None:
        """Give back the lease, if it was taken: whoever waits has it at once."""
        if self._number is None:
            return
        self._ended.set()
        self._beating.join(BEAT_SECONDS)
        try:
            self._folder.remove(self._name(self._number))
        except Exception as error:
            # Whoever waits gets it when it expires.
            logger.warning("the lease of %s was not removed: %s", self._folder.uri, error)

    def _beat(self) -> None:
        assert self._number is not None
        while not self._ended.wait(BEAT_SECONDS):
            try:
                if not self.held():
                    self.lost = True
                    return
                self._beats += 1
                self._folder.write_bytes(self._name(self._number), self._text())
            except Exception as error:
                # A store that is back before the lease expires has cost nothing.
                logger.warning("the lease of %s was not renewed: %s", self._folder.uri, error)

    def _last(self) -> int | None:
        """The highest number there is."""
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
            return False  # released since it was listed: the next call takes it
        if text != self._seen:
            self._seen, self._seen_since = text, time.monotonic()
        try:
            holder = json.loads(text)
        except ValueError:  # created, and not written yet
            holder = {"host": "?", "pid": 0, "machine": ""}
        job = f", job {holder['job']}" if holder.get("job") else ""
        self.holder = f"process {holder['pid']} on {holder['host']}{job}"
        here = _machine()
        if here and holder["machine"] == here and _started(holder["pid"]) != holder["started"]:
            return True
        return time.monotonic() - self._seen_since > EXPIRY_SECONDS

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
        }
        return json.dumps(holder).encode()


def _machine() -> str:
    """Where a process id means the same process: one boot of one machine, one container of it.

    Host names will not do, since containers share them. Empty where there is no /proc.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists():
        return ""
    return f"{boot.read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"


def _started(pid: int) -> str:
    """The tick at which a process of this machine began, since ids are given again; empty if it
    has ended."""
    try:
        # After the name, which may hold anything: the state, and 18 more before the tick.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] == "Z" else fields[19]
