"""MLflow tracking from one thread of one process, so that one logical run is one MLflow run.

Stages and workers report events. The driver's `Tracker` writes each to a spool file first, and a
thread sends them in order. A server that is down, slow or broken never stops training: unsent
events stay in the spool file, whose first line names the server, and are sent by the next run or by
`rungwise sync`. Sending twice is harmless (sender.py).
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rungwise.core.configuration.secrecy import without_password, without_passwords
from rungwise.core.tracking.sender import Sender, first_line, list_points
from rungwise.core.tracking.spool import locked, unsent

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0
_BATCH_POINTS = 1000
_NOTHING: Mapping[str, Any] = {}


class Tracker:
    """Sends events to MLflow from its own thread. Logging methods return at once."""

    def __init__(self, uri: str, experiment: str, spool: Path) -> None:
        self.uri = uri
        self.public_uri = without_password(uri)
        self._sender = Sender(uri, experiment)
        self._spool = spool
        spool.mkdir(parents=True, exist_ok=True)
        self._path = spool / f"{time.time_ns()}-{uuid.uuid4().hex[:6]}.jsonl"
        file = locked(self._path, "w")
        assert file is not None, "its name is new, so no other process holds it"
        self._file = file
        self._to = {"uri": self.public_uri, "experiment": experiment}
        self._spooled({"op": "to", **self._to})
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
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

    @property
    def waiting(self) -> int:
        """The number of events that the server has not received."""
        return self._events.qsize()

    def finish(self, timeout_seconds: float) -> int:
        """Send the rest within the timeout; return the number of events left in the spool."""
        self._closing.set()
        self._events.put(None)
        self._thread.join(timeout_seconds)
        if not self._thread.is_alive():
            self._file.close()
        if self._sent.is_set():
            self._path.unlink(missing_ok=True)
            return 0
        return max(self._events.qsize(), 1)

    def _put(self, **event: Any) -> None:
        event = without_passwords(event) | {"time": int(time.time() * 1000)}
        self._spooled(event)
        self._events.put(event)

    def _spooled(self, event: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(event) + "\n")
            self._file.flush()
        except (OSError, TypeError) as error:
            # A full disk must not end the training that fills it.
            logger.warning("an event for MLflow was not spooled: %s", error)

    def _send_all(self) -> None:
        for spooled in unsent(self._spool):
            if spooled.to != self._to:
                continue  # for another server, or for one whose address has changed
            if not all(self._deliver(event) for event in spooled.events):
                return
            spooled.path.unlink(missing_ok=True)
        while (event := self._events.get()) is not None:
            if not all(self._deliver(ready) for ready in self._merged(event)):
                return
        self._sent.set()

    def _merged(self, event: dict[str, Any]) -> Iterator[dict[str, Any]]:
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
                continue
            yield event
            event = following
        yield event

    def _deliver(self, event: dict[str, Any]) -> bool:
        """Send one event, retrying while the server is away; False if the tracker closes first."""
        while True:
            try:
                self._sender.send(event)
                return True
            except Exception as error:
                logger.info("MLflow is away, will try again: %s", first_line(error))
                if self._closing.wait(_RETRY_SECONDS):
                    return False


@dataclass(frozen=True)
class Synced:
    sent: dict[str, int]  # events that each server took, by its URI without a password
    live: int  # events in files that running processes are still sending


def sync(uri: str, spool: Path, instead_of: str | None = None) -> Synced:
    """Send every spooled event to the server named in its file. `uri` supplies the password for one
    server, or the new address of the server `instead_of`. Raises ConnectionError if a server is
    unreachable or fails; unsent events stay in the spool."""
    own_uris = {without_password(each) for each in (uri, instead_of) if each}
    sent: dict[str, int] = {}
    senders: dict[tuple[str, str], Sender] = {}
    faults: list[str] = []
    for spooled in unsent(spool):
        target = uri if spooled.to["uri"] in own_uris else spooled.to["uri"]
        place = target, spooled.to["experiment"]
        sender = senders.setdefault(place, Sender(*place))
        try:
            for event in spooled.events:
                sender.send(event)
        except Exception as error:
            name, num_events = without_password(target), len(spooled.events)
            faults.append(f"{name} does not take {num_events} events: {first_line(error)}")
            continue
        spooled.path.unlink(missing_ok=True)
        server = without_password(target)
        sent[server] = sent.get(server, 0) + len(spooled.events)
    if faults:
        raise ConnectionError("; ".join(faults))
    live = 0
    for path in spool.glob("*.jsonl"):
        with contextlib.suppress(FileNotFoundError):  # its run has just ended
            live += max(0, path.read_text("utf-8").count("\n") - 1)
    return Synced(sent, live)
