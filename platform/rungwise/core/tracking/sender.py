"""Turn events into calls of MLflow, each as often as it is sent without a second effect.

A run is found by its tag `rungwise.key`, and points at steps that the run already has are dropped,
so steps replayed after a crash appear once.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rungwise.core.tracking.store import artifact_location, quieten_mlflow

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
_PARAM_CHARACTERS = 6000  # MLflow's own limit
_TAG_CHARACTERS = 5000
_BATCH_PARAMS = 100


class Sender:
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
            logger.warning("MLflow refused %s: %s", event["op"], first_line(error))

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

                tags = {
                    name: str(text)
                    .replace(RUN_ID, run_id)
                    .replace(EXPERIMENT_ID, self._experiment_id)
                    for name, text in event["tags"].items()
                }
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
        present = self._client.get_run(run_id).data.params if values else {}
        params = [
            Param(name, _shortened(str(value)))
            for name, value in sorted(values.items())
            if name not in present
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
        for name, value, time_ms, step in event.get("points") or list_points(event):
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


def list_points(event: dict[str, Any]) -> list[tuple[str, float, int, int]]:
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


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]
