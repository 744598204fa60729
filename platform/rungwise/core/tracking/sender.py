"""The sender turns events into calls of MLflow, which may be sent twice without harm.

A run is found by its tag `rungwise.key`, and points at steps that it already has are dropped. What
is refused is dropped with a warning, alone. An answer proves little, since a proxy gives one too:
at the end `compare` counts what the server has, and what is missing is sent again (`Forgotten`).
The tag `rungwise.driver` names the driver that opened a run last. Ids of drivers sort by time, and
only the last one changes the state of a run.
"""

import hashlib
import json
import logging
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rungwise.core.configuration.secrecy import redact
from rungwise.core.tracking.store import artifact_location, identify_file, make_store, open_store

logger = logging.getLogger(__name__)

KEY_TAG = "rungwise.key"
DRIVER_TAG = "rungwise.driver"
PARENT_TAG = "mlflow.parentRunId"
NOTE_TAG = "mlflow.note.content"  # the description that the UI shows, in Markdown
# Placeholders in a description, for links: the ids of the run and its experiment.
RUN_ID, EXPERIMENT_ID = "{run_id}", "{experiment_id}"
_VIEW = "mlflow.sharedViewState."  # the UI lists what follows under Views


def _view(name: str, query: str, *columns: str) -> str:
    """A view of the experiment's page, as the UI saves one: which runs, and which columns."""
    state = {"searchFilter": query, "orderByKey": "attributes.start_time", "orderByAsc": False}
    text = json.dumps(state | {"selectedColumns": columns})
    return json.dumps({"name": name, "createdAt": 0, "updatedAt": 0, "state": text})


# The UI loads the latest 100 runs, trials among them, and has columns of its own: only a view of
# the experiment can choose others. The kind makes it open on training runs instead of traces.
_EXPERIMENT_TAGS = {
    "mlflow.experimentKind": "custom_model_development",
    f"{_VIEW}recipes": _view(
        "Recipes and their results",
        "tags.`rungwise.label` LIKE '%'",
        *("attributes.`Duration`", "attributes.`Description`"),
        *("metrics.`pretrain/loss`", "metrics.`pretrain/perplexity`"),
    ),
    f"{_VIEW}trainings": _view(
        "Pretrained models",
        "tags.`rungwise.stage` = 'pretrain'",
        *("attributes.`Duration`", "params.`model.kind`"),
        *("metrics.`train/tokens`", "metrics.`train/loss`"),
        *("metrics.`validation/loss`", "metrics.`system/tokens_per_second`"),
    ),
    NOTE_TAG: "[Recipes](#/experiments/{experiment_id}/runs?viewStateShareKey=recipes), "
    "[models](#/experiments/{experiment_id}/runs?viewStateShareKey=trainings): a run on top is a "
    "recipe; below it are its stages and trials.",
}
_SOURCE_CHARACTERS = 10_000  # of 65,535, of which JSON takes six for a character
_MOST_IN_BATCH = {"metrics": 1000, "params": 100, "tags": 100}  # MLflow's own limits
_PARAM_CHARACTERS = 6000  # MLflow's own limit
_TAG_CHARACTERS = 5000
_NAME_CHARACTERS = 250
_OTHER = re.compile(r"[^/\w.\- :]+")
_DOTS = re.compile(r"(?<![^/])\.+(?![^/])")  # a part of a path such as `..`


Event = dict[str, Any]


class Forgotten(Exception):
    """The server does not have what it had: a new database, or one from a backup."""


class Sender:
    """Turns events into MLflow calls; maps keys to run ids."""

    def __init__(self, uri: str, experiment: str) -> None:
        self.runs: dict[str, str] = {}
        self._uri = uri
        self._experiment = experiment
        self._client: Any = None
        self._file: object = None  # the identity of the database file
        self._experiment_id = ""
        # What each run should have, by its id: the steps of its curves, and what else has a name.
        self._steps: dict[str, dict[str, set[int]]] = defaultdict(dict)
        self._names: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self._deleted: set[str] = set()  # keys of runs that a user has deleted since

    def send(self, event: Event) -> None:
        """Send one event; drop what is refused. Raises Forgotten if the server lost something."""
        self._connect()
        key = event["key"]
        if key in self._deleted:
            return
        try:
            self._send(event)
        except Exception as error:
            if not _is_refusal(error):
                raise
            if key not in self.runs or self._read_run(key) is not None:
                logger.warning("MLflow refused %s: %s", event["op"], first_line(error))

    def compare(self) -> None:
        """Count what the server has since the last time. Raises Forgotten if it lacks a value."""
        count = stored = 0
        for key, run_id in list(self.runs.items()):
            names = self._names[run_id]
            if key in self._deleted or not names or (run := self._read_run(key)) is None:
                continue
            count, stored = count + len(names), stored + len(names & self._read_names(run))
            for name, steps in self._steps[run_id].items():
                # A run comes with the last point of each curve.
                is_one = len(steps) == 1 and name in run.data.metrics
                present = steps if is_one else self._read_steps(run_id, name)
                count, stored = count + len(steps), stored + len(steps & present)
        if stored < count:
            raise self._forget(f"it has {stored:,} of {count:,} values that it was sent")
        self._steps.clear()
        self._names.clear()

    def _send(self, event: Event) -> None:
        key, operation = event["key"], event["op"]
        is_of_run = operation not in ("open", "abandoned")
        if is_of_run and key not in self.runs and self._find(key) is None:
            self._open(_opening(key, event))
        run_id = self.runs.get(key, "")
        match operation:
            case "open":
                self._open(event)
            case "abandoned":
                self._end_abandoned(event)
            case "metrics":
                self._metrics(run_id, event)
            case "tags":
                self._tags(run_id, event["tags"])
            case "params":
                self._params(run_id, event["params"])
            case "datasets":
                self._datasets(run_id, event["read"])
            case "artifact":
                self._artifact(run_id, Path(event["path"]), event["folder"])
            case "close":
                tags = self._client.get_run(run_id).data.tags
                if tags.get(DRIVER_TAG, "") <= event.get("driver", ""):
                    self._client.set_terminated(run_id, event["status"], event["time"])
                    self._names[run_id].add(("status", event["status"]))

    def _connect(self) -> None:
        """Make sure of a client of the server that has the experiment."""
        if self._client is not None:
            if self._file != identify_file(self._uri):
                raise self._forget("its database was removed or replaced")
            return
        make_store(self._uri)
        client = open_store(self._uri)
        self._experiment_id = self._find_experiment(client)
        self._client, self._file = client, identify_file(self._uri)

    def _find_experiment(self, client: Any) -> str:
        """The id of the experiment, which is made if need be, and given the tags that it lacks."""
        experiment = client.get_experiment_by_name(self._experiment)
        if experiment is None:
            location = artifact_location(self._uri)
            tags = {tag: _EXPERIMENT_TAGS[tag] for tag in _EXPERIMENT_TAGS if tag != NOTE_TAG}
            new_id = client.create_experiment(self._experiment, location, tags)
            experiment = client.get_experiment(_check_id(new_id))
        if experiment.lifecycle_stage != "active":
            raise ConnectionError(
                f"the experiment {self._experiment} is deleted; restore it (`mlflow experiments "
                f"restore -x {experiment.experiment_id}`), or name another in tracking.experiment"
            )
        name = _check_id(experiment.experiment_id)
        for tag in _EXPERIMENT_TAGS.keys() - experiment.tags.keys():
            text = _EXPERIMENT_TAGS[tag].replace(EXPERIMENT_ID, name)
            try:
                client.set_experiment_tag(name, tag, text)
            except Exception as error:
                if not _is_refusal(error):
                    raise
        return name

    def _read_run(self, key: str) -> Any:
        """The run of a key, None if a user has deleted it. Raises Forgotten if it is not there."""
        self._connect()
        run_id = self.runs[key]
        try:
            run = self._client.get_run(run_id)
        except Exception as error:
            if _status(error) != 404:
                raise
            raise self._forget(f"it no longer has the run {run_id}") from error
        if run.info.run_id != run_id:
            raise self._forget(f"it answers, but not with the run {run_id}")
        if run.info.lifecycle_stage == "active":
            return run
        if key not in self._deleted:
            self._deleted.add(key)
            logger.warning(
                "the MLflow run %s of %s was deleted: nothing more of it is recorded; to have it "
                "there, restore it (`mlflow runs restore --run-id %s`) and run again",
                *(run_id, key, run_id),
            )
        return None

    def _forget(self, reason: str) -> Forgotten:
        self._client = None
        for what in (self.runs, self._steps, self._names):
            what.clear()
        return Forgotten(reason)

    def _find(self, key: str) -> str | None:
        """The id of a run of any process, or None. Raises Forgotten if there was one."""
        where = [self._experiment_id], _has_key(key)
        for run in self._client.search_runs(*where, max_results=1):
            self.runs[key] = run.info.run_id
            return run.info.run_id
        if key in self.runs:
            self._read_run(key)
        return self.runs.get(key)

    def _open(self, event: Event) -> None:
        from mlflow.entities import ViewType

        key, parent, driver = event["key"], event["parent"], event.get("driver", "")
        if self._find_experiment(self._client) != self._experiment_id:
            raise self._forget(f"it no longer has the experiment {self._experiment}")
        tags = {KEY_TAG: acceptable_name(key), DRIVER_TAG: driver}
        if parent:
            if self._find(parent) is None:
                self._open(_opening(parent, event))
            tags[PARENT_TAG] = self.runs[parent]
        # Asked again each time: another driver may have continued it since.
        run_id = self._find(key)
        if key in self._deleted:
            return
        if run_id is None:
            where = [self._experiment_id], _has_key(key), ViewType.DELETED_ONLY
            if self._client.search_runs(*where, max_results=1):
                logger.warning("the MLflow run of %s was deleted; a new one is made", key)
            name = acceptable_text(event["name"], _NAME_CHARACTERS)
            run = self._client.create_run(self._experiment_id, event["time"], tags, name)
            run_id = self.runs[key] = _check_id(run.info.run_id)
        elif self._client.get_run(run_id).data.tags.get(DRIVER_TAG, "") <= driver:
            self._client.update_run(run_id, status="RUNNING")
            self._tags(run_id, tags)
        names = self._names[run_id]
        names -= {(kind, name) for kind, name in names if kind == "status"}
        names.add(("tags", KEY_TAG))
        self._tags(run_id, event["tags"])
        self._params(run_id, event["params"])

    def _end_abandoned(self, event: Event) -> None:
        """End what a driver that was killed left running."""
        query = f"tags.`{DRIVER_TAG}` = '{event['key']}' and attributes.status = 'RUNNING'"
        while runs := self._client.search_runs([self._experiment_id], query):
            for run in runs:
                self._client.set_terminated(run.info.run_id, "KILLED", event["time"])

    def _tags(self, run_id: str, tags: Mapping[str, Any]) -> None:
        from mlflow.entities import RunTag

        entities = []
        for name, value in tags.items():
            text = str(value).replace(RUN_ID, run_id).replace(EXPERIMENT_ID, self._experiment_id)
            entities.append(RunTag(acceptable_name(name), acceptable_text(text, _TAG_CHARACTERS)))
        self._log(run_id, "tags", entities)

    def _params(self, run_id: str, values: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        # MLflow refuses to change a parameter, and a resumed run may have another value for a key
        # outside its identity, such as the logging interval.
        present = self._client.get_run(run_id).data.params if values else {}
        texts = {
            acceptable_name(name): acceptable_text(str(value), _PARAM_CHARACTERS)
            for name, value in sorted(values.items())
        }
        params = [Param(name, text) for name, text in texts.items() if name not in present]
        self._log(run_id, "params", params)

    def _datasets(self, run_id: str, inputs: Mapping[str, Sequence[str]]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        datasets = []
        for name, (digest, place) in inputs.items():
            scheme = place.partition("://")[0] if "://" in place else "local"
            source = json.dumps({"uri": acceptable_text(place, _SOURCE_CHARACTERS)})
            # MLflow's limits are 36 characters of a digest, 500 of a name, 65,535 of a source.
            dataset = Dataset(acceptable_text(name, 500), digest[:36], scheme, source)
            datasets.append(DatasetInput(dataset, [InputTag("mlflow.data.context", "read")]))
        self._client.log_inputs(run_id, datasets=datasets)
        self._names[run_id] |= {("datasets", each.dataset.name) for each in datasets}

    def _artifact(self, run_id: str, path: Path, folder: str) -> None:
        if not path.exists():
            logger.warning("MLflow does not get %s, which is gone", path)
            return
        self._client.log_artifact(run_id, str(path), folder or None)
        self._names[run_id].add(("artifacts", f"{folder}/{path.name}".lstrip("/")))

    def _metrics(self, run_id: str, event: Event) -> None:
        from mlflow.entities import Metric

        steps, points = self._steps[run_id], dict[tuple[str, int], Metric]()
        if new := {acceptable_name(name) for name, *_ in event["points"]} - steps.keys():
            present = self._client.get_run(run_id).data.metrics
            steps |= {name: self._read_steps(run_id, name) for name in new & present.keys()}
        for name, value, time_ms, step in event["points"]:
            name = acceptable_name(name)
            if step not in steps.setdefault(name, set()):
                points.setdefault((name, step), Metric(name, value, time_ms, step))
        try:
            accepted = self._log(run_id, "metrics", list(points.values()))
        except Exception:
            # Some of them may have arrived: ask before they are sent again.
            self._steps.pop(run_id, None)
            raise
        for point in accepted:
            steps[point.key].add(point.step)

    def _read_steps(self, run_id: str, name: str) -> set[int]:
        return {point.step for point in self._client.get_metric_history(run_id, name)}

    def _read_names(self, run: Any) -> set[tuple[str, str]]:
        """The values of a run in MLflow, by name; files of the folders to which some were sent."""
        run_id = run.info.run_id
        files = [name for kind, name in self._names[run_id] if kind == "artifacts"]
        folders = {name.rpartition("/")[0] for name in files}
        listed = (self._client.list_artifacts(run_id, folder or None) for folder in folders)
        return (
            {("params", name) for name in run.data.params}
            | {("tags", name) for name in run.data.tags}
            | {("artifacts", file.path) for files in listed for file in files}
            | {("datasets", each.dataset.name) for each in run.inputs.dataset_inputs}
            | {("status", run.info.status)}
        )

    def _log(self, run_id: str, kind: str, entities: Sequence[Any]) -> list[Any]:
        """Log in batches, one that is refused value by value; return what was accepted."""
        size = _MOST_IN_BATCH[kind]
        batches = [entities[first : first + size] for first in range(0, len(entities), size)]
        accepted = list[Any]()
        while batches:
            batch = batches.pop(0)
            try:
                self._client.log_batch(run_id, **{kind: batch})
                accepted += batch
            except Exception as error:
                if not _is_refusal(error):
                    raise
                if self._client.get_run(run_id).info.lifecycle_stage != "active":
                    raise
                if len(batch) == 1:
                    logger.warning("MLflow refused %s: %s", batch[0].key, first_line(error))
                else:
                    batches = [[entity] for entity in batch] + batches
        if kind != "metrics":
            self._names[run_id] |= {(kind, entity.key) for entity in accepted}
        return accepted


def _opening(key: str, event: Event) -> Event:
    """The event that opens the run of a key, where none came into the file of `event`."""
    nothing = {"parent": None, "tags": {}, "params": {}}
    return {"name": key, "time": event["time"], "key": key, **nothing}


def _check_id(id: str) -> str:
    """Return an id that a server gave. Raises ConnectionError if it is none of MLflow's."""
    if not id:
        raise ConnectionError("it answers, but not as MLflow does; see what stands before it")
    return id


def _has_key(key: str) -> str:
    """The query for the run or model of a key."""
    return f"tags.`{KEY_TAG}` = '{acceptable_name(key)}'"


def _status(error: Exception) -> int | None:
    """The HTTP status of an error of MLflow, None for any other."""
    status = getattr(error, "get_http_status_code", None)
    return None if status is None else status()


def _is_refusal(error: Exception) -> bool:
    """Whether the server will never accept this event, which would block others."""
    status = _status(error)
    return status is not None and 400 <= status < 500 and status not in (401, 403, 408, 429)


def first_line(error: Exception) -> str:
    return redact(str(error).strip().partition("\n")[0][:500])


def acceptable_name(name: str) -> str:
    """A name as MLflow takes it; one that was changed ends with four bytes of its hash."""
    parts = [part for part in _DOTS.sub("-", _OTHER.sub("-", name)).split("/") if part]
    cleaned = "/".join(parts) or "-"
    if cleaned == name and len(name) <= _NAME_CHARACTERS:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{cleaned[: _NAME_CHARACTERS - len(digest) - 1]}-{digest}"


def acceptable_text(text: str, characters: int) -> str:
    """A value as databases take it: without NUL and half surrogate pairs, and cut to a length."""
    text = text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    return text if len(text) <= characters else text[: characters - 1] + "…"
