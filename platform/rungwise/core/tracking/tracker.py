"""MLflow tracking from one thread of one process, so that one logical run is one MLflow run.

Stages and workers report events. The driver's `Tracker` writes each to a spool file first, and a
thread sends them in order. A server that is down, slow or broken never stops training: unsent
events stay in the spool file, whose first line names the server, and are sent by the next run or by
`rungwise gc`. Sending twice is harmless (sender.py). A server that comes back without what it had
gets every event of the file again.
"""

import logging
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rungwise.core.configuration.secrecy import redact_data
from rungwise.core.tracking.sender import Forgotten, Sender, first_line, list_points
from rungwise.core.tracking.spool import Event, SpoolFile, count_waiting, take_files
from rungwise.core.tracking.store import shown_address

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0
_LAST_TRIES = 3  # at the end of a run, if the server does not answer,
_LAST_RETRY_SECONDS = 1.0  # with this time between them
_BATCH_POINTS = 1000
_SHOWN = ("name", "tags", "params", "read")  # parts of an event that are only for people
_NOTHING: Mapping[str, Any] = {}


class Tracker:
    """Sends events to MLflow from its own thread. Logging methods return at once."""

    def __init__(self, uri: str, experiment: str, spool: Path, driver: str = "") -> None:
        """`driver` is the id of this driver in the leases (lease.py)."""
        self.uri = uri
        self.public_uri = shown_address(uri)
        self.fault = ""  # why the server does not take the next event; empty if it does
        self._driver = driver
        self._sender = Sender(uri, experiment)
        self._folder = spool
        self._to = {"uri": self.public_uri, "experiment": experiment}
        self._file = SpoolFile.create(spool, {**self._to, "driver": self._driver})
        self._earlier = 0  # events of earlier drivers that wait for the same server
        self._events: queue.Queue[Event | None] = queue.Queue()
        self._sent = threading.Event()
        self._closing = threading.Event()
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
        self._put(op="open", key=key, name=name, parent=parent, tags={**tags}, params={**params})

    def metrics(self, key: str, values: Mapping[str, float], step: int) -> None:
        self._put(op="metrics", key=key, values=dict(values), step=step)

    def tags(self, key: str, tags: Mapping[str, str]) -> None:
        self._put(op="tags", key=key, tags=dict(tags))

    def params(self, key: str, params: Mapping[str, Any]) -> None:
        """Add parameters to a run; existing ones keep their values."""
        self._put(op="params", key=key, params=dict(params))

    def datasets(self, key: str, read: Mapping[str, tuple[str, str]]) -> None:
        """Record what a run reads: for each name a digest and the location."""
        self._put(op="datasets", key=key, read=dict(read))

    def model(
        self,
        key: str,
        model: str,
        name: str,
        kind: str,
        values: Mapping[str, float],
        step: int,
        tags: Mapping[str, str],
    ) -> None:
        """Record a model that the run `key` has made, under a key of its own, with metrics that are
        points of the run too."""
        self._put(
            op="model",
            key=key,
            model=model,
            name=name,
            kind=kind,
            values=dict(values),
            step=step,
            tags=dict(tags),
        )

    def uses(self, key: str, models: Sequence[str]) -> None:
        """Record that a run reads models, given by key; leave out those that the server lacks."""
        self._put(op="uses", key=key, models=list(models))

    def artifact(self, key: str, path: str, folder: str = "") -> None:
        self._put(op="artifact", key=key, path=path, folder=folder)

    def close(self, key: str, status: str) -> None:
        """End a run: FINISHED, FAILED or KILLED."""
        self._put(op="close", key=key, status=status)

    def run_id(self, key: str, timeout_seconds: float) -> str | None:
        """Wait for MLflow's id of the run `key`; None if the server does not have it in time."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            if key in self._sender.runs:
                return self._sender.runs[key]
            time.sleep(0.05)
        return None

    def end_abandoned(self, driver: str) -> None:
        """End the runs that another driver, which was killed, left running."""
        self._put(op="abandoned", key=driver)

    @property
    def waiting(self) -> int:
        """The number of events that the server has not received."""
        return self._file.waiting + self._earlier

    def finish(self, timeout_seconds: float) -> int:
        """Send the rest within the timeout; return the number of events left in the spool."""
        self._closing.set()
        self._events.put(None)
        self._thread.join(timeout_seconds)
        if self._sent.is_set():
            self._file.remove()
        elif not self._thread.is_alive():
            self._file.close()
        return self.waiting

    def _put(self, **event: Any) -> None:
        visible = {part: redact_data(event[part]) for part in _SHOWN if part in event}
        event = event | visible | {"time": int(time.time() * 1000)}
        if event["op"] in ("open", "close"):
            event["driver"] = self._driver
        self._events.put(self._file.append(event))

    def _send_all(self) -> None:
        for file in take_files(self._folder):
            if not self._to.items() <= file.header.items():
                continue  # for another server, or for one whose address has changed
            self._earlier = file.waiting
            delivery = _Delivery(self._sender, file)
            for event in delivery.list_waiting():
                if not self._deliver(delivery, event):
                    return
                self._earlier = file.waiting
            self._earlier = 0
            file.remove()
        delivery = _Delivery(self._sender, self._file)
        while (event := self._events.get()) is not None:
            for ready in self._merge_points(event):
                if not self._deliver(delivery, ready):
                    return
        self._sent.set()

    def _merge_points(self, event: Event) -> Iterator[Event]:
        """Yield `event`, merged with metric points queued behind it into one request."""
        while event["op"] == "metrics":
            points = event.setdefault("points", list_points(event))
            try:
                following = self._events.get_nowait()
            except queue.Empty:
                break
            if following is None:
                self._events.put(None)
                break
            same = following["op"] == "metrics" and following["key"] == event["key"]
            if same and len(points) < _BATCH_POINTS:
                points.extend(list_points(following))
                event["n"] = following["n"]
                continue
            yield event
            event = following
        yield event

    def _deliver(self, delivery: "_Delivery", event: Event) -> bool:
        """Send one event, retrying while the server is away; False if the tracker closes first."""
        tries = 0
        while True:
            try:
                delivery.send(event)
                self.fault = ""
                return True
            except Exception as error:
                self.fault = first_line(error) or type(error).__name__
                logger.info("MLflow is away, will try again: %s", self.fault)
            if not self._closing.wait(_RETRY_SECONDS):
                continue
            tries += 1
            if tries >= _LAST_TRIES:
                return False
            time.sleep(_LAST_RETRY_SECONDS)


class _Delivery:
    """Sends the events of one spool file in order, and all from the first one again if the server
    has lost what it had. An event that fails is given to `send` again."""

    def __init__(self, sender: Sender, file: SpoolFile) -> None:
        self._sender = sender
        self._file = file
        self._again: deque[Event] = deque()
        self._missing = 0  # the number of the last event whose run the server did not have

    def list_waiting(self) -> list[Event]:
        """List what the server lacks of a file that a process left, with the end of its runs."""
        events = self._file.events()
        waiting = [event for event in events if event["n"] > self._file.sent]
        if events and (driver := self._file.header.get("driver")):
            last = events[-1]
            end = {"op": "abandoned", "key": driver, "time": last["time"], "n": last["n"]}
            waiting.append(end)
        return waiting

    def send(self, event: Event) -> None:
        try:
            while self._again:
                self._send(self._again[0])
                self._again.popleft()
            self._send(event)
        except Forgotten:
            self._file.mark_sent(0)
            self._again = deque(each for each in self._file.events() if each["n"] < event["n"])
            raise

    def _send(self, event: Event) -> None:
        # A run that is missing after all events before were sent again was never opened.
        create = self._missing == event["n"]
        try:
            self._sender.send(event, create)
        except Forgotten:
            self._missing = event["n"]
            raise
        self._file.mark_sent(event["n"])


@dataclass
class Synced:
    sent: dict[str, int] = field(default_factory=dict)  # events by server, without a password
    live: int = 0  # events in files that running processes are still sending


def sync(uri: str, spool: Path, instead_of: str | None = None) -> Synced:
    """Send every spooled event to the server named in its file. `uri` supplies the password for one
    server, or the new address of the server `instead_of`. Raises ConnectionError if a server is
    unreachable or fails; unsent events stay in the spool."""
    own_uris = {shown_address(each) for each in (uri, instead_of) if each}
    synced = Synced()
    senders: dict[tuple[str, str], Sender] = {}
    faults: dict[tuple[str, str], str] = {}
    unsent: Counter[tuple[str, str]] = Counter()
    for file in take_files(spool):
        target = uri if file.header["uri"] in own_uris else file.header["uri"]
        place = target, file.header["experiment"]
        server = shown_address(target)
        waiting = file.waiting
        if place not in faults:
            sender = senders.setdefault(place, Sender(*place))
            try:
                _send_file(sender, file)
            except Exception as error:
                faults[place] = first_line(error) or type(error).__name__
        if place in faults:
            unsent[place] += file.waiting
        else:
            file.remove()
        if (count := waiting - file.waiting) > 0:
            synced.sent[server] = synced.sent.get(server, 0) + count
    if faults:
        texts = []
        for place, fault in faults.items():
            server = shown_address(place[0])
            texts.append(f"{server} does not take {unsent[place]} events: {fault}")
        raise ConnectionError("; ".join(texts))
    synced.live = count_waiting(spool)
    return synced


def _send_file(sender: Sender, file: SpoolFile) -> None:
    delivery = _Delivery(sender, file)
    for event in delivery.list_waiting():
        for is_last in (False, False, True):
            try:
                delivery.send(event)
                break
            except Forgotten:
                if is_last:
                    raise
