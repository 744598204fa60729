"""Spool files: events that wait for a server. Whoever sends a file holds a lock on it.

    {"op": "to", "uri": ..., "experiment": ..., "driver": ...}    where the events belong
    {"op": "open", "n": 1, ...}                                   an event and its number
    {"op": "sent", "n": 1}                                        the server has all up to this one

The last line of `sent` counts: it is 0 again if the server has lost what it had.
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
        self.sent = 0  # the number of the last event that the server has
        self._last = 0
        self._waiting: deque[Event] = deque()
        self._missing = 0  # the number of the last event whose run the server did not have
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
        header, events, sent = _parse(text, path)
        if header is None:
            logger.warning("%s does not say where its events belong; it stays", path)
            stream.close()
            return None
        if not text.endswith("\n"):  # torn by a kill
            stream.write("\n")
        file = cls(path, stream, header)
        file.sent = sent
        file._waiting.extend(event for event in events if event["n"] > sent)
        if events:
            file._last = events[-1]["n"]
            if driver := header.get("driver"):
                end = {"op": "abandoned", "key": driver, "time": events[-1]["time"]}
                file._waiting.append({**end, "n": file._last + 1})
        return file

    @property
    def waiting(self) -> int:
        """The number of events that the server does not have."""
        return max(0, self._last - self.sent)

    def append(self, event: Event) -> None:
        with self._lock:
            self._last += 1
            event = {**event, "n": self._last}
            self._waiting.append(event)
            self._write(event)

    def send_waiting(self, send: Callable[[Event, bool], None]) -> None:
        """Send what waits, in order. Raises what `send` raises; the event then waits on. After
        Forgotten, all events wait again, and an event whose run is then still missing is sent with
        True, to make the run: its first event never came into the file."""
        while request := self._next_request():
            try:
                send(request, request["n"] == self._missing)
            except Forgotten:
                self._rewind(request["n"])
                raise
            self._mark_sent(request["last"])

    def _next_request(self) -> Event | None:
        """The first event that waits; points of metrics together with those right behind them of
        the same run."""
        with self._lock:
            if not self._waiting:
                return None
            first = self._waiting[0]
            if first["op"] != "metrics":
                return {**first, "last": first["n"]}
            points, last = list[Point](), first["n"]
            for event in self._waiting:
                is_next = (event["op"], event["key"]) == ("metrics", first["key"])
                if not is_next or len(points) >= _MOST_POINTS:
                    break
                points += list_points(event)
                last = event["n"]
        return {**first, "points": points, "last": last}

    def _mark_sent(self, number: int) -> None:
        with self._lock:
            while self._waiting and self._waiting[0]["n"] <= number:
                self._waiting.popleft()
            self.sent = number
            self._write({"op": "sent", "n": number})

    def _rewind(self, missing: int) -> None:
        """Let every event of the file wait again."""
        events = _parse(self._path.read_text("utf-8"), self._path)[1]
        with self._lock:
            self._waiting.extendleft(event for event in events[::-1] if event["n"] < missing)
            self._missing, self.sent = missing, 0
            self._write({"op": "sent", "n": 0})

    def close(self) -> None:
        self._stream.close()

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
        self._stream.close()

    def _write(self, line: Event) -> None:
        try:
            self._stream.write(json.dumps(line) + "\n")
            self._stream.flush()
        except (OSError, TypeError, ValueError) as error:
            # A full disk must not end the training that fills it.
            if not self._failed:
                logger.warning("events for MLflow are not spooled to %s: %s", self._path, error)
            self._failed = True


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


def count_waiting(folder: Path) -> int:
    """The number of events that wait in all files."""
    count = 0
    for path in folder.glob("*.jsonl"):
        with contextlib.suppress(FileNotFoundError):
            _, events, sent = _parse(path.read_text("utf-8"), path)
            count += sum(event["n"] > sent for event in events)
    return count


def _parse(text: str, path: Path) -> tuple[Event | None, list[Event], int]:
    """The header, the events and the number of the last one sent, without a torn last line."""
    header: Event | None = None
    events: list[Event] = []
    sent = 0
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
        elif operation == "sent":
            sent = event["n"]
        else:
            events.append({"n": len(events) + 1, **event})
    return header, events, sent
