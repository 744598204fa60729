"""MLflow tracking from one thread of one process, so that one logical run is one MLflow run.

Stages and workers report events. The driver's `Tracker` writes each to a spool file first, and a
thread sends them in order. A server that is down, slow or broken never stops training: unsent
events stay in the spool file, whose first line names the server, and are sent by the next run or by
`rungwise sync`.

Sending twice is harmless. A run is found by its tag `rungwise.key`, and points at steps that the
run already has are dropped, so steps replayed after a crash appear once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rungwise.core.configuration.config import Config
from rungwise.core.configuration.secrecy import without_password, without_passwords
from rungwise.core.errors import UserError
from rungwise.core.storage.folder import Folder
from rungwise.core.tracking.spool import locked, unsent

logger = logging.getLogger(__name__)

KEY_TAG = "rungwise.key"
PARENT_TAG = "mlflow.parentRunId"
NOTE_TAG = "mlflow.note.content"  # the description that the UI shows, in Markdown
# Placeholders in a description, for links: the ids of the run and its experiment.
RUN_ID, EXPERIMENT_ID = "{run_id}", "{experiment_id}"
# Makes the UI open on training runs instead of traces.
_EXPERIMENT_TAGS = {
    "mlflow.experimentKind": "custom_model_development",
    NOTE_TAG: "Runs of `rungwise`: each run on top is a recipe with its verdict, results and page; "
    "below it is a run for every stage, and below a sweep one for every trial.",
}
_RETRY_SECONDS = 5.0
_PARAM_CHARACTERS = 6000  # MLflow's own limit
_TAG_CHARACTERS = 5000
_BATCH_POINTS = 1000
_BATCH_PARAMS = 100
_SQLITE = b"SQLite format 3\0"  # how every database file begins
_NOTHING: Mapping[str, Any] = {}


class TrackingConfig(Config):
    """The MLflow server and experiment. Changing it rebuilds nothing."""

    # null: MLFLOW_TRACKING_URI if it is set, else an SQLite file below `root`
    uri: str | None = None
    experiment: str = "rungwise"


def default_uri(root: Folder, environment_uri: str | None) -> str:
    """The tracking URI if the recipe has none."""
    if environment_uri:
        return environment_uri
    base = Path.cwd() if root.remote else Path(root.uri)
    return f"sqlite:///{base}/mlflow.db"


def artifact_location(uri: str) -> str | None:
    """The artifact folder beside an SQLite store; None for a server, which has its own."""
    if not uri.startswith("sqlite:///"):
        return None
    return (Path(uri.removeprefix("sqlite:///")).parent / "mlartifacts").as_uri()


class Tracker:
    """Sends events to MLflow from its own thread. Logging methods return at once."""

    def __init__(self, uri: str, experiment: str, spool: Path) -> None:
        self.uri = uri
        self.shown_uri = without_password(uri)
        self._sender = _Sender(uri, experiment)
        self._spool = spool
        spool.mkdir(parents=True, exist_ok=True)
        self._path = spool / f"{time.time_ns()}-{uuid.uuid4().hex[:6]}.jsonl"
        file = locked(self._path, "w")
        assert file is not None, "its name is new, so no other process holds it"
        self._file = file
        self._to = {"uri": self.shown_uri, "experiment": experiment}
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
        self._sent.wait(timeout_seconds)
        left = self._events.qsize()
        if self._sent.is_set():
            self._file.close()
            self._path.unlink(missing_ok=True)
            return 0
        return max(left, 1)

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
            points = event.setdefault("points", _points(event))
            try:
                following = self._events.get_nowait()
            except queue.Empty:
                break
            if following is None:
                self._events.put(None)
                break
            same = following["op"] == "metrics" and following["key"] == event["key"]
            if same and len(points) < _BATCH_POINTS:
                points.extend(_points(following))
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
                logger.info("MLflow is away, will try again: %s", _first_line(error))
                if self._closing.wait(_RETRY_SECONDS):
                    return False


def quieten_mlflow() -> None:
    """Hide log lines of MLflow and its migrations; errors are still raised. Call after importing
    MLflow, which configures its loggers on import."""
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)


def check_store(uri: str) -> None:
    """Refuse an SQLite store that is missing, which MLflow would create by asking it, or damaged,
    which MLflow would try for minutes to open. Raises UserError."""
    if (database := uri.removeprefix("sqlite:///")) == uri:
        return
    try:
        with open(database, "rb") as file:
            begins = file.read(len(_SQLITE))
    except OSError as error:
        raise UserError(
            f"there is no MLflow store at {database} ({error.strerror}); the first run makes one. "
            "If there is one elsewhere, name it in MLFLOW_TRACKING_URI, or give the recipe or "
            "--root where the command takes it"
        ) from error
    if begins != _SQLITE:
        raise UserError(f"{database} is not an SQLite database; mend or delete it")


@contextlib.contextmanager
def asked(uri: str) -> Iterator[Any]:
    """Give a client of a store that exists. Raises UserError if there is none, or if MLflow refuses
    something in the block."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    quieten_mlflow()
    check_store(uri)
    try:
        yield MlflowClient(tracking_uri=uri)
    except MlflowException as error:
        raise UserError(
            f"MLflow at {without_password(uri)}: {' '.join(error.message.split())}; another store "
            "can be named in MLFLOW_TRACKING_URI, or by --root where the command takes it"
        ) from error


@dataclass(frozen=True)
class Synced:
    sent: dict[str, int]  # events that each server took, by its URI without a password
    live: int  # events in files that running processes are still sending


def sync(uri: str, spool: Path, instead_of: str | None = None) -> Synced:
    """Send every spooled event to the server named in its file. `uri` supplies the password for one
    server, or the new address of the server `instead_of`. Raises ConnectionError if a server is
    unreachable or fails; unsent events stay in the spool."""
    here = {without_password(each) for each in (uri, instead_of) if each}
    sent: dict[str, int] = {}
    senders: dict[tuple[str, str], _Sender] = {}
    faults: list[str] = []
    for spooled in unsent(spool):
        shown = spooled.to["uri"]
        meant = uri if shown in here else shown
        place = meant, spooled.to["experiment"]
        sender = senders.setdefault(place, _Sender(*place))
        try:
            for event in spooled.events:
                sender.send(event)
        except Exception as error:
            name, num_events = without_password(meant), len(spooled.events)
            faults.append(f"{name} does not take {num_events} events: {_first_line(error)}")
            continue
        spooled.path.unlink(missing_ok=True)
        took = without_password(meant)
        sent[took] = sent.get(took, 0) + len(spooled.events)
    if faults:
        raise ConnectionError("; ".join(faults))
    left = 0
    for path in spool.glob("*.jsonl"):
        with contextlib.suppress(FileNotFoundError):  # its run has just ended
            left += max(0, path.read_text("utf-8").count("\n") - 1)
    return Synced(sent, left)


class _Sender:
    """Turns events into MLflow calls; maps keys to run ids."""

    def __init__(self, uri: str, experiment: str) -> None:
        self.runs: dict[str, str] = {}
        self._uri = uri
        self._experiment = experiment
        self._client: Any = None
        self._experiment_id = ""
        self._last_step: dict[tuple[str, str], int] = {}
        self._found_again: set[str] = set()

    def send(self, event: dict[str, Any]) -> None:
        """Send one event; log and drop it if the server will never accept it."""
        try:
            if self._client is None:
                self._client = self._connect()
            self._send(event)
        except Exception as error:
            if not _refused(error):
                raise
            logger.warning("MLflow refused %s: %s", event["op"], _first_line(error))

    def _send(self, event: dict[str, Any]) -> None:
        key = event["key"]
        if event["op"] == "open":
            self._open(event)
            return
        run_id = self._run(key)
        if run_id is None:
            raise KeyError(f"no MLflow run has the tag {KEY_TAG}={key}")
        match event["op"]:
            case "metrics":
                self._metrics(run_id, event)
            case "tags":
                from mlflow.entities import RunTag

                ids = {RUN_ID: run_id, EXPERIMENT_ID: self._experiment_id}
                tags = event["tags"]
                for each, found in ids.items():
                    tags = {name: str(text).replace(each, found) for name, text in tags.items()}
                texts = [RunTag(name, text) for name, text in _tag_texts(tags).items()]
                self._client.log_batch(run_id, tags=texts)
            case "params":
                self._params(run_id, event["params"])
            case "datasets":
                self._datasets(run_id, event["read"])
            case "artifact":
                self._client.log_artifact(run_id, event["path"], event["folder"] or None)
            case "close":
                self._client.set_terminated(run_id, event["status"], event["time"])

    def _connect(self) -> Any:
        import mlflow
        from mlflow import MlflowClient

        quieten_mlflow()
        if self._uri.startswith("sqlite:///"):
            Path(self._uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        client = MlflowClient(tracking_uri=self._uri)
        try:
            location = artifact_location(self._uri)
            self._experiment_id = client.create_experiment(
                self._experiment, artifact_location=location, tags=_EXPERIMENT_TAGS
            )
        except mlflow.MlflowException:
            experiment = client.get_experiment_by_name(self._experiment)
            if experiment is None:
                raise
            self._experiment_id = experiment.experiment_id
        return client

    def _run(self, key: str) -> str | None:
        """The id of a run opened by this process or an earlier one."""
        if key not in self.runs:
            query = f"tags.`{KEY_TAG}` = '{key}'"
            for run in self._client.search_runs([self._experiment_id], query, max_results=1):
                self.runs[key] = run.info.run_id
                self._found_again.add(run.info.run_id)
        return self.runs.get(key)

    def _open(self, event: dict[str, Any]) -> None:
        self.runs.pop(event["key"], None)  # another driver may have continued it since
        run_id = self._run(event["key"])
        if run_id is None:
            tags = {KEY_TAG: event["key"], **event["tags"]}
            if event["parent"]:
                tags[PARENT_TAG] = self._run(event["parent"]) or ""
            run = self._client.create_run(
                self._experiment_id, event["time"], _tag_texts(tags), event["name"]
            )
            run_id = self.runs[event["key"]] = run.info.run_id
        else:
            self._client.update_run(run_id, status="RUNNING")
        self._params(run_id, event["params"])

    def _params(self, run_id: str, values: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        # MLflow refuses to change a parameter, and a resumed run may have another value for a key
        # outside its identity, such as the logging interval.
        known = self._client.get_run(run_id).data.params if values else {}
        params = [
            Param(name, _shortened(str(value)))
            for name, value in sorted(values.items())
            if name not in known
        ]
        for first in range(0, len(params), _BATCH_PARAMS):
            self._client.log_batch(run_id, params=params[first : first + _BATCH_PARAMS])

    def _datasets(self, run_id: str, read: Mapping[str, Sequence[str]]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        datasets = [
            DatasetInput(
                # MLflow's limit for a digest is 36 characters.
                Dataset(name, digest[:36], _scheme(place), json.dumps({"uri": place})),
                [InputTag("mlflow.data.context", "read")],
            )
            for name, (digest, place) in read.items()
        ]
        self._client.log_inputs(run_id, datasets=datasets)

    def _metrics(self, run_id: str, event: dict[str, Any]) -> None:
        from mlflow.entities import Metric

        points = []
        for name, value, time_ms, step in event.get("points") or _points(event):
            last = self._last_step.get((run_id, name))
            if last is None:
                last = -1
                if run_id in self._found_again:
                    history = self._client.get_metric_history(run_id, name)
                    last = max((point.step for point in history), default=-1)
            if step > last:
                points.append(Metric(name, value, time_ms, step))
                last = step
            self._last_step[run_id, name] = last
        if points:
            self._client.log_batch(run_id, metrics=points)


def _scheme(place: str) -> str:
    return place.partition("://")[0] if "://" in place else "local"


def _points(event: dict[str, Any]) -> list[tuple[str, float, int, int]]:
    return [
        (name, float(value), event["time"], event["step"])
        for name, value in event["values"].items()
    ]


def _tag_texts(tags: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value)[:_TAG_CHARACTERS] for name, value in tags.items()}


def _shortened(text: str) -> str:
    return text if len(text) <= _PARAM_CHARACTERS else text[: _PARAM_CHARACTERS - 1] + "…"


def _refused(error: Exception) -> bool:
    """Whether the server will never accept this event, so that keeping it would block others."""
    if isinstance(error, KeyError | FileNotFoundError):
        return True
    status = getattr(error, "get_http_status_code", None)
    return status is not None and 400 <= status() < 500 and status() not in (401, 403, 408, 429)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]
