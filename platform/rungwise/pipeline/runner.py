"""Runs the stages of a workflow: what is done is taken, the rest is built, shown and tracked.

The driver plans, then runs each missing stage as a Ray task that holds a tenth of a CPU, so that a
task waiting for its own workers cannot starve them. The driver alone writes records, the terminal
and MLflow. If nothing is missing it starts neither Ray nor MLflow.
"""

from __future__ import annotations

import datetime
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from rungwise.core import artifact as artifacts
from rungwise.core.artifact import Artifact
from rungwise.core.config import fingerprint, flatten
from rungwise.core.context import ComputeConfig, Context, TrackingRun
from rungwise.core.errors import StageFailed, UserError, user_error_in
from rungwise.core.provenance import provenance
from rungwise.core.stage import Planned, Stage, plan
from rungwise.core.storage import Folder, explained
from rungwise.core.summary import Summary
from rungwise.core.tracking import Tracker
from rungwise.pipeline.display import Display

logger = logging.getLogger(__name__)

_STAGE_CPUS = 0.1
_POLL_SECONDS = 0.2
_ROOM_BYTES = 256 << 20  # below this much free disk nothing is begun
_FINISH_SECONDS = 20.0  # how long the end of a run waits for the tracking server


@dataclass(frozen=True)
class Outcome:
    """A finished run: its artifacts in order, which of them it built, and how long it took."""

    artifacts: dict[str, Artifact]
    built: tuple[str, ...]
    seconds: float
    untracked_events: int


def run(
    stages: Sequence[Stage],
    root: Folder,
    label: str,
    compute: ComputeConfig,
    tracker: Callable[[], Tracker],
    console: Console,
    recipe: Mapping[str, Any] | None = None,
) -> Outcome:
    """Build what is missing of `stages` (in order, inputs first) below `root`.

    `tracker` is called only if something must be built; `recipe` is kept in the records. Raises
    UserError for what the user can mend, StageFailed for anything else a stage raises.
    """
    began = time.monotonic()
    root.check_writable("root")
    rows = plan(stages, root, label)
    with Display([stage.shown for stage in stages], console) as display:
        if all(row.artifact for row in rows):
            done = {row.stage.shown: row.artifact for row in rows if row.artifact}
            for name, artifact in done.items():
                display.cached(name, artifact.headline)
            return Outcome(done, (), time.monotonic() - began, 0)
        return _build(rows, root, label, compute, tracker(), display, began, recipe or {})


def _build(
    rows: Sequence[Planned],
    root: Folder,
    label: str,
    compute: ComputeConfig,
    tracker: Tracker,
    display: Display,
    began: float,
    recipe: Mapping[str, Any],
) -> Outcome:
    from rungwise.cluster.session import session

    parent = "run-" + fingerprint({row.stage.shown: row.stage.fingerprint for row in rows})
    made_by = provenance()
    tracker.open(parent, label, tags=_source_tags(made_by) | {"rungwise.label": label})
    finished: dict[str, Artifact] = {}
    built: list[str] = []
    status = "FAILED"
    try:
        with session(compute):
            for row in rows:
                stage = row.stage
                if row.artifact:
                    finished[stage.shown] = row.artifact
                    display.cached(stage.shown, row.artifact.headline)
                    continue
                inputs = {name: finished[source.shown] for name, source in stage.inputs.items()}
                job = _Job(row, inputs, label, compute, tracker, parent, made_by, display, recipe)
                finished[stage.shown] = job.run()
                built.append(stage.shown)
        tracker.tags(
            parent, {f"rungwise.{name}": made.fingerprint for name, made in finished.items()}
        )
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        tracker.close(parent, status)
        untracked = tracker.finish(_FINISH_SECONDS)
    return Outcome(finished, tuple(built), time.monotonic() - began, untracked)


@dataclass
class _Job:
    """One stage being built."""

    row: Planned
    inputs: dict[str, Artifact]
    label: str
    compute: ComputeConfig
    tracker: Tracker
    parent: str
    made_by: dict[str, Any]
    display: Display
    recipe: Mapping[str, Any]

    def run(self) -> Artifact:
        stage, folder = self.row.stage, self.row.folder
        self._check_room()
        if not stage.type.resumes:
            folder.remove()
        key = f"{stage.name}-{stage.fingerprint}"
        self.tracker.open(
            key,
            stage.shown,
            parent=self.parent,
            tags=_source_tags(self.made_by)
            | {"rungwise.core.stage": stage.name, "rungwise.fingerprint": stage.fingerprint}
            | {
                f"rungwise.input.{name}": source.fingerprint for name, source in self.inputs.items()
            },
            params=flatten(stage.config),
        )
        self.display.start(stage.shown, self.row.reason)
        started = _now()
        clock = time.monotonic()
        status = "FAILED"
        try:
            summary = self._in_driver(key) if stage.type.place == "driver" else self._in_task(key)
            with explained(folder.uri):
                artifact = self._record(summary, key, started, time.monotonic() - clock)
            status = "FINISHED"
        except KeyboardInterrupt:
            status = "KILLED"
            raise
        except Exception as error:
            self.display.finish(stage.shown, "failed", f"{type(error).__name__}")
            mendable = user_error_in(error)
            if mendable is not None:
                raise UserError(f"{stage.shown}: {mendable}") from error
            raise StageFailed(f"the stage {stage.shown} failed: {_last_line(error)}") from error
        finally:
            self.tracker.close(key, status)
        self.display.finish(stage.shown, "done", summary.headline)
        return artifact

    def _in_task(self, key: str) -> Summary:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from rungwise.core.board import Board, BoardReporter

        stage = self.row.stage
        # With the driver, so that the loss of another node does not take it away.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        board = Board.options(scheduling_strategy=here).remote()  # pyright: ignore[reportAttributeAccessIssue]
        context = Context(self.compute, BoardReporter(board, stage.shown), recipe=self.recipe)
        # A killed node's stage starts again by itself; an exception of the stage does not.
        task = ray.remote(num_cpus=_STAGE_CPUS, max_retries=2, retry_exceptions=False)(_call)
        pending = task.options(name=stage.shown).remote(
            stage.type.run, stage.config, self.inputs, self.row.folder, context
        )
        try:
            while not ray.wait([pending], timeout=_POLL_SECONDS)[0]:
                self._handle(ray.get(board.drain.remote()), key)
            return ray.get(pending)
        finally:
            self._handle(ray.get(board.drain.remote()), key)
            ray.kill(board)

    def _in_driver(self, key: str) -> Summary:
        stage = self.row.stage
        run_id = self.tracker.run_id(key, timeout_seconds=60)
        if run_id is None:
            raise UserError(
                f"the stage {stage.shown} needs the tracking server, which does not answer at "
                f"{self.tracker.shown_uri}; all stages before it are done, run the same command "
                "when the server is back"
            )
        tracking = TrackingRun(self.tracker.uri, run_id)
        context = Context(self.compute, tracking=tracking, recipe=self.recipe)
        return stage.type.run(stage.config, self.inputs, self.row.folder, context)

    def _handle(self, events: list[dict[str, Any]], key: str) -> None:
        name = self.row.stage.shown
        for event in events:
            match event["kind"]:
                case "progress":
                    self.display.progress(name, event["done"], event["total"], event["shown"])
                case "metrics":
                    target = f"{key}/{event['run']}" if event["run"] else key
                    self.tracker.metrics(target, event["values"], event["step"])
                case "nested":
                    nested = f"{key}/{event['run']}"
                    if event["status"] == "RUNNING":
                        self.tracker.open(nested, event["run"], key, {}, flatten(event["params"]))
                    else:
                        self.tracker.close(nested, event["status"])
                case "note":
                    self.display.note(name, event["message"])
                    self.tracker.tags(key, {"rungwise.note": event["message"]})

    def _record(self, summary: Summary, key: str, started: str, seconds: float) -> Artifact:
        stage = self.row.stage
        said = summary.model_dump(mode="json")
        run_id = self.tracker.run_id(key, timeout_seconds=0.1)
        record = {
            "stage": stage.name,
            "version": stage.type.version,
            "label": self.label,
            "fingerprint": stage.fingerprint,
            "facts": stage.facts,
            "config": stage.config.model_dump(mode="json"),
            "inputs": {
                name: {"stage": source.stage, "fingerprint": source.fingerprint}
                for name, source in self.inputs.items()
            },
            "summary": said,
            "recipe": dict(self.recipe),
            "started": started,
            "finished": _now(),
            "seconds": round(seconds, 3),
            "mlflow_run_id": run_id,
            "ray_job_id": os.environ.get("RAY_JOB_ID"),
            "made_by": self.made_by,
        }
        artifact = artifacts.finish(self.row.folder, record, summary.sha256)
        numbers = {
            f"summary/{name}": float(value)
            for name, value in flatten(said).items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        self.tracker.metrics(key, {"stage/seconds": seconds, **numbers}, step=0)
        self.tracker.artifact(key, str(artifact.folder.local(artifacts.RECORD)))
        for name in summary.show:
            for target in (key, self.parent):
                self.tracker.artifact(target, str(artifact.folder.local(name)))
        return artifact

    def _check_room(self) -> None:
        free = self.row.folder.free_bytes()
        if free is not None and free < _ROOM_BYTES:
            raise UserError(
                f"no room left on the disk of {self.row.folder.uri}: {free >> 20} MB free, "
                f"at least {_ROOM_BYTES >> 20} MB needed; free some space, or choose another root"
            )


def _call(
    function: Any,
    config: Any,
    inputs: dict[str, Artifact],
    output: Folder,
    context: Context,
) -> Summary:
    try:
        return function(config, inputs, output, context)
    finally:
        context.report.flush()


def _source_tags(made_by: dict[str, Any]) -> dict[str, str]:
    return {"mlflow.source.git.commit": made_by["commit"]} if made_by["commit"] else {}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip()}" if lines else type(error).__name__
