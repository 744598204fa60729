"""MLflow tracking from one thread of one process, so that one logical run is one MLflow run.

The driver's `Tracker` writes each event to a spool file first, and a thread sends them in order. A
server that is down, slow or broken never stops training: unsent events stay in the file and are
sent by the next run or by `rungwise gc`. The file goes once the server has all of it. Whoever sends
a file holds a lock on it.

    {"op": "to", "uri": ..., "experiment": ..., "driver": ...}    where the events belong
    {"op": "open", ...}                                           an event
"""

import contextlib
import fcntl
import json
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Self

from rungwise.core.configuration.secrecy import redact_data
from rungwise.core.tracking.sender import Event, Forgotten, Sender, first_line
from rungwise.core.tracking.store import hide_credentials

logger = logging.getLogger(__name__)

_MOST_POINTS = 1000  # of a request
_RETRY_SECONDS = 5.0
_LAST_TRIES = 3  # at the end of a run, if the server does not answer,
_LAST_RETRY_SECONDS = 1.0  # with this time between them
_SHOWN = ("name", "tags", "params", "read")  # parts of an event that are only for people
_NOTHING: Mapping[str, Any] = {}


Point = tuple[str, float, int, int]  # name, value, time and step


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
        file = cls(path, stream, header)
        file._write({"op": "to", **header})
        return file

    @classmethod
    def take(cls, path: Path) -> Self | None:
        """Lock a file that no process is sending, and end its driver in it; None if one is."""
        stream = path.open("r+", encoding="utf-8")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            stream.close()
            return None
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
        """Send what waits, in order, points of a run together. Raises what `send` raises."""
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
                for name, value in event["values"].items():
                    points.append((name, float(value), event["time"], event["step"]))
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


class Tracker:
    """Sends events to MLflow from its own thread. Logging methods return at once."""

    def __init__(self, uri: str, experiment: str, spool: Path, driver: str = "") -> None:
        """`driver` is the id of this driver in the leases (lease.py)."""
        self.uri, self.public_uri = uri, hide_credentials(uri)
        self.fault = ""  # why the server does not take the next event; empty if it does
        self._driver = driver
        self._sender = Sender(uri, experiment)
        self._folder = spool
        self._to = {"uri": self.public_uri, "experiment": experiment}
        self._file = SpoolFile.create(spool, {**self._to, "driver": driver})
        self._earlier: SpoolFile | None = None  # of a driver before, that waits for this server
        self._wake, self._closing = threading.Event(), threading.Event()
        self._all_sent = False
        self._thread = threading.Thread(target=self._send_all, name="mlflow", daemon=True)
        self._thread.start()

    def open(
        self,
        key: str,
        name: str,
        parent: str | None = None,
        tags: Mapping[str, str] = _NOTHING,
        params: Mapping[str, Any] = _NOTHING,
    ) -> None:
        """Start the run `key`, or continue it if the server already has it."""
        self._put("open", key, name=name, parent=parent, tags={**tags}, params={**params})

    def metrics(self, key: str, values: Mapping[str, float], step: int) -> None:
        self._put("metrics", key, values={**values}, step=step)

    def tags(self, key: str, tags: Mapping[str, str]) -> None:
        self._put("tags", key, tags={**tags})

    def params(self, key: str, params: Mapping[str, Any]) -> None:
        """Add parameters to a run; existing ones keep their values."""
        self._put("params", key, params={**params})

    def datasets(self, key: str, read: Mapping[str, tuple[str, str]]) -> None:
        """Record what a run reads: for each name a digest and the location."""
        self._put("datasets", key, read={**read})

    def artifact(self, key: str, path: str, folder: str = "") -> None:
        self._put("artifact", key, path=path, folder=folder)

    def close(self, key: str, status: str) -> None:
        """End a run: FINISHED, FAILED or KILLED."""
        self._put("close", key, status=status)

    def end_abandoned(self, driver: str) -> None:
        """End the runs that another driver, which was killed, left running."""
        self._put("abandoned", driver)

    def run_id(self, key: str, timeout_seconds: float) -> str | None:
        """Wait for MLflow's id of the run `key`; None if the server does not have it in time."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            if key in self._sender.runs:
                return self._sender.runs[key]
            time.sleep(0.05)
        return None

    @property
    def waiting(self) -> int:
        """The number of events that the server has not received."""
        return self._file.waiting

    def finish(self, timeout_seconds: float) -> int:
        """Send the rest within the timeout; return the number of events left in the spool."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_seconds)
        if self._all_sent:
            self._file.remove()
        elif not self._thread.is_alive():
            self._file.close()
        return self.waiting

    def _put(self, op: str, key: str, **event: Any) -> None:
        visible = {part: redact_data(event[part]) for part in _SHOWN if part in event}
        event |= visible | {"op": op, "key": key, "time": int(time.time() * 1000)}
        if op in ("open", "close"):
            event["driver"] = self._driver
        self._file.append(event)
        self._wake.set()

    def _send_all(self) -> None:
        for file in take_files(self._folder):
            if not self._to.items() <= file.header.items():
                continue  # for another server, or for one whose address has changed
            if not self._send(file, is_last=True):
                return
            file.remove()
        is_last = False
        while not is_last:
            self._wake.wait()
            self._wake.clear()
            is_last = self._closing.is_set()  # before sending: nothing is put after it was set
            if not self._send(self._file, is_last):
                return
        self._all_sent = True

    def _send(self, file: SpoolFile, is_last: bool) -> bool:
        """Send what waits, retrying while the server is away; False if the tracker closes first."""
        tries = 0
        while True:
            waiting = file.waiting
            if not (fault := _send_file(self._sender, file, is_last)):
                self.fault = ""
                return True
            self.fault = fault
            logger.info("MLflow is away, will try again: %s", fault)
            if not self._closing.wait(_RETRY_SECONDS):
                continue
            tries = 0 if file.waiting < waiting else tries + 1
            if tries >= _LAST_TRIES:
                return False
            time.sleep(_LAST_RETRY_SECONDS)


def sync(uri: str, spool: Path, instead_of: str | None = None) -> int:
    """Send the spooled events of the server at `uri`, whose earlier address is `instead_of`, to it;
    return their number. Raises ConnectionError if it does not take one; unsent events stay."""
    addresses = {hide_credentials(address) for address in (uri, instead_of) if address}
    senders: dict[str, Sender] = {}
    count = 0
    for file in take_files(spool):
        if file.header["uri"] not in addresses:
            continue
        experiment, waiting = file.header["experiment"], file.waiting
        sender = senders.setdefault(experiment, Sender(uri, experiment))
        if fault := _send_file(sender, file, is_last=True):
            server = hide_credentials(uri)
            raise ConnectionError(f"{server} does not take {file.waiting} events: {fault}")
        file.remove()
        count += waiting
    return count


def _send_file(sender: Sender, file: SpoolFile, is_last: bool) -> str:
    """Send what waits, and with `is_last` compare. Returns why not all was received, or ""."""
    try:
        file.send_waiting(sender.send)
        if is_last:
            sender.compare()
    except Forgotten as error:
        file.rewind()
        return first_line(error)
    except Exception as error:
        return first_line(error) or type(error).__name__
    return ""


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
