"""Spool files: events that wait for a server. Whoever sends a file holds a lock on it.

{"op": "to", "uri": ..., "experiment": ..., "driver": ...}    where the events belong
{"op": "open", ...}                                           an event
"""

import contextlib
import fcntl
import json
import logging
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Self

logger = logging.getLogger(__name__)

_MOST_POINTS = 1000  # of a request
Event = dict[str, Any]
Point = tuple[str, float, int, int]


class Forgotten(Exception):
    """The server does not have what it had: a new database, or one from a backup."""


class SpoolFile:
    """One file: of this process, or left by one that has ended. Writing to it never raises."""

    def __init__(self, path: Path, stream: IO[str], header: Event) -> None:
        self.header = header
        self._waiting: deque[Event] = deque()
        self._unwritten: list[Event] = []  # events that are not in the file
        self._path, self._stream = path, stream
        self._lock = threading.Lock()  # the driver writes events, the sending thread takes them
        self._failed = False

    @classmethod
    def create(cls, folder: Path, header: Event) -> Self:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{time.time_ns()}-{uuid.uuid4().hex[:6]}.jsonl"
        stream = path.open("x", encoding="utf-8")
        fcntl.flock(stream, fcntl.LOCK_EX)  # waits for a process that is just looking
        os.set_inheritable(stream.fileno(), False)
        file = cls(path, stream, header)
        file._write({"op": "to", **header})
        return file

    @classmethod
    def take(cls, path: Path) -> Self | None:
        """Lock a file that no process is sending; None if one is, or if it says nowhere. The last
        of its events is the end of the driver that wrote it."""
        stream = path.open("r+", encoding="utf-8")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            stream.close()
            return None
        os.set_inheritable(stream.fileno(), False)
        text = stream.read()
        header, events = _parse(text, path)
        if header is None:
            logger.warning("%s does not say where its events belong; it stays", path)
            stream.close()
            return None
        if not text.endswith("\n"):  # torn by a kill
            stream.write("\n")
        file = cls(path, stream, header)
        if events and (driver := header.get("driver")):
            end = {"op": "abandoned", "key": driver, "time": events[-1]["time"]}
            file._unwritten.append(end)
        file.rewind()
        return file

    @property
    def waiting(self) -> int:
        """The number of events that were not sent."""
        return len(self._waiting)

    def append(self, event: Event) -> None:
        with self._lock:
            self._waiting.append(event)
            if not self._write(event):
                self._unwritten.append(event)

    def send_waiting(self, send: Callable[[Event], None]) -> None:
        """Send what waits, in order; points of metrics together with those right behind them of the
        same run. Raises what `send` raises; the event then waits on."""
        while self._waiting:
            event, count = self._next_request()
            send(event)
            with self._lock:
                for _ in range(count):
                    self._waiting.popleft()

    def rewind(self) -> None:
        """Let every event of the file wait again."""
        with self._lock:
            _, events = _parse(self._path.read_text("utf-8"), self._path)
            self._waiting = deque([*events, *self._unwritten])

    def _next_request(self) -> tuple[Event, int]:
        """The next event to send, and of how many that wait it is made."""
        with self._lock:
            first = self._waiting[0]
            if first["op"] != "metrics":
                return first, 1
            points, count = list[Point](), 0
            for event in self._waiting:
                is_next = (event["op"], event["key"]) == ("metrics", first["key"])
                if not is_next or len(points) >= _MOST_POINTS:
                    break
                points += list_points(event)
                count += 1
        return {**first, "points": points}, count

    def close(self) -> None:
        self._stream.close()

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
        self._stream.close()

    def _write(self, line: Event) -> bool:
        try:
            self._stream.write(json.dumps(line) + "\n")
            self._stream.flush()
        except (OSError, TypeError, ValueError) as error:
            # A full disk must not end the training that fills it.
            if not self._failed:
                logger.warning("events for MLflow are not spooled to %s: %s", self._path, error)
            self._failed = True
            return False
        return True


def list_points(event: Event) -> list[Point]:
    """The points of an event: name, value, time and step."""
    time_ms, step = event["time"], event["step"]
    return [(name, float(value), time_ms, step) for name, value in event["values"].items()]


def take_files(folder: Path) -> Iterator[SpoolFile]:
    """Lock, one after the other, the files that no process is sending, oldest first."""
    for path in sorted(folder.glob("*.jsonl")):
        with contextlib.suppress(FileNotFoundError):  # another process has just sent it
            if file := SpoolFile.take(path):
                with contextlib.closing(file):
                    yield file


def _parse(text: str, path: Path) -> tuple[Event | None, list[Event]]:
    """The header and the events, without a torn last line."""
    header: Event | None = None
    events: list[Event] = []
    for line in text.split("\n")[:-1]:
        try:
            event = json.loads(line)
            operation = event["op"]
        except (ValueError, TypeError, KeyError):  # of a full disk or a crash
            if line:
                logger.warning("a corrupt line of %s is left out: %.80s", path, line)
            continue
        if operation == "to":
            header = {name: value for name, value in event.items() if name != "op"}
        else:
            events.append(event)
    return header, events
