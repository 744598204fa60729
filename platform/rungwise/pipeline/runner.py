"""Runs the stages of a workflow: reuses finished ones; builds, shows and tracks the rest.

Only the driver writes records, the terminal and MLflow. If nothing is missing, neither Ray nor
MLflow is started. A stage is built under a lease, so that concurrent drivers build each artifact
once; it has a Ray task, a display line, an MLflow run and a record.
"""

import contextlib
import datetime
import json
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from rungwise.cluster.head import Head
from rungwise.cluster.session import local_head, session
from rungwise.core.configuration.canonical import fingerprint, flatten
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import StageFailed, UserError, explain_store_errors, find_user_error
from rungwise.core.exit_codes import terminate_as_interrupt
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact, Summary
from rungwise.core.stages.lease import Lease, register_driver
from rungwise.core.stages.provenance import provenance
from rungwise.core.stages.stage import GOES_ON, Context, Planned, Stage, TrackingRun, run_stage
from rungwise.core.storage.folder import Folder
from rungwise.core.tracking.sender import NOTE_TAG
from rungwise.core.tracking.tracker import Tracker
from rungwise.corpus.summary import CORPUS
from rungwise.monitoring import Monitor
from rungwise.pipeline.display import Display
from rungwise.pipeline.estimate import Rates, RunForecast
from rungwise.pipeline.stages import Grow, Growth
from rungwise.report import findings
from rungwise.report.stage import REPORT_PAGE
from rungwise.tasks.config import TASK
from rungwise.training.checkpoint import SCRATCH, request_saves
from rungwise.training.fit_config import PretrainStageConfig

# So little that a task waiting for its own workers cannot starve them. Zero would allow stages on
# the head node of a cluster, which declares no CPUs to keep all work away.
_STAGE_CPUS = 0.1
_ROOM_BYTES = 256 << 20  # no stage starts with less free disk space
# An override that may tell runs of a recipe apart.
_CHANGE = re.compile(r"(?!(?:root|name)=|compute\.|tracking\.)[a-z_][\w.]*=")
# Blocks of a summary that repeat the training settings.
_SETTINGS = {"model", "finetune", "values"}
_FINISH_SECONDS = 20.0  # the longest wait for the tracking server at the end of a run
_POLL_SECONDS = 0.5  # a poll takes 20 ms of this process and the board
_RETRY_SECONDS = 2.0  # between attempts to take a lease that another driver holds
_CLASSES = re.compile(r"^(?:[\w.]+(?:Error|Exception|Exit|Interrupt)(?:\(\w+\))?: )+")
# Ray's errors of processes that were killed, in words: its own name logs that are deleted with it.
_KILLED = {
    "WorkerCrashedError": "its process was killed, also when it was started again",
    "OutOfMemoryError": "its process was ended because memory ran out; lower "
    "compute.micro_batch_size or compute.num_workers",
    "NodeDiedError": "its machine was lost, also when it was started again",
}
_SAVE_SECONDS = 30.0  # for a step and a save, when a run is interrupted
_ENDED = "ended"  # in place of the number of a board that does not start again


@dataclass(frozen=True)
class Build:
    """The values that all stages of a run share; `driver` is the id of this driver, `parent` the
    key of the run's MLflow run."""

    label: str
    compute: ComputeConfig
    tracker: Tracker
    driver: str
    parent: str
    made_by: dict[str, Any]
    display: Display
    monitor: Monitor
    recipe: Mapping[str, Any]
    estimate: RunForecast


class StageJob:
    def __init__(
        self, row: Planned, folder: Folder, inputs: dict[str, Artifact], build: Build
    ) -> None:
        self.row = row
        self.task: Any = None  # set by `submit`; None for a stage in the driver
        self._folder = folder
        self._inputs = inputs
        self._build = build
        self._key = f"{row.stage.name}-{row.stage.fingerprint}"
        self._started = _now()
        self._clock = time.monotonic()
        self._waits_since: float | None = self._clock  # for a process; None while it works
        self._waited = 0.0
        self._goes_on = row.earlier is not None
        self._steps = 0.0  # or other units of work, as last reported

    def open(self) -> None:
        """Start the stage's MLflow run and display line; empty its folder unless it resumes."""
        stage, build = self.row.stage, self._build
        free = self._folder.free_bytes()
        if free is not None and free < _ROOM_BYTES:
            raise UserError(
                f"no room left on the disk of {self._folder.uri}: {free >> 20} MB free, "
                f"at least {_ROOM_BYTES >> 20} MB needed; free some space, or choose another root"
            )
        reason = self.row.reason
        if not stage.type.resumes:
            self._folder.remove()
        elif self._folder.names():  # possibly from a driver that we waited for
            reason, self._goes_on = GOES_ON, True
            self._folder.remove_unfinished()
        build.tracker.open(
            self._key,
            f"{stage.display_name} of {build.label}",
            parent=build.parent,
            tags=source_tags(build.made_by)
            | {"rungwise.stage": stage.name, "rungwise.fingerprint": stage.fingerprint}
            | {f"rungwise.input.{name}": each.fingerprint for name, each in self._inputs.items()},
            params=flatten(stage.config),
        )
        inputs = {name: (each.digest, each.folder.uri) for name, each in self._inputs.items()}
        outside = {
            key: (fingerprint(value, length=36), json.dumps(value))
            for key, value in stage.facts["outside"].items()
        }
        if inputs | outside:
            build.tracker.datasets(self._key, inputs | outside)
        build.display.start(stage.display_name, reason)

    def submit(self, board: Any) -> None:
        """Start the stage as a Ray task that reports to `board`."""
        import ray

        from rungwise.core.stages.board import BoardReporter

        stage, compute = self.row.stage, self._build.compute
        alone, trains_alone = _is_alone(), stage.type.trains_alone(stage.config, compute)
        # Clusters have machines that come and go, which Ray Train watches for.
        trains_here = alone and trains_alone and "RAY_ADDRESS" not in os.environ
        if trains_here:
            cpus, retries = compute.cpus_per_worker, compute.max_failures
        else:
            # On two cores, two stages would leave 1.8 CPUs, room for only one of their workers,
            # which take a whole CPU each.
            cpus, retries = 0 if alone else _STAGE_CPUS, 2
        context = Context(
            compute,
            BoardReporter(board, stage.display_name),
            recipe=self._build.recipe,
            trains_here=trains_here,
        )
        # Ray retries a stage whose process or node died, but not one that raised an exception.
        task = ray.remote(num_cpus=cpus, max_retries=retries, retry_exceptions=False)(run_stage)
        self.task = task.options(name=stage.display_name).remote(
            stage.type.run, stage.config, self._inputs, self._folder, context
        )

    def run_here(self) -> Summary:
        """Run the stage in the driver. Raises UserError if the tracking server does not answer."""
        stage, build = self.row.stage, self._build
        run_id = build.tracker.run_id(self._key, timeout_seconds=60)
        if run_id is None:
            raise UserError(
                f"the stage {stage.display_name} needs the tracking server, which does not answer "
                f"at {build.tracker.public_uri}; all stages before it are done, run the same "
                "command when the server is back"
            )
        tracking = TrackingRun(build.tracker.uri, run_id, REPORT_PAGE)
        context = Context(build.compute, tracking=tracking, recipe=build.recipe)
        self._waits_since = None
        return stage.type.run(stage.config, self._inputs, self._folder, context)

    def handle(self, event: dict[str, Any]) -> None:
        name, build = self.row.stage.display_name, self._build
        build.monitor.handle(name, event)
        self._note_waiting(event)
        match event["kind"]:
            case "progress":
                self._steps = event["done"]
                build.display.progress(name, event["done"], event["total"], event["shown"])
            case "metrics":
                target = f"{self._key}/{event['run']}" if event["run"] else self._key
                build.tracker.metrics(target, event["values"], event["step"])
            case "nested":
                nested = f"{self._key}/{event['run']}"
                if event["status"] == "RUNNING":
                    params = flatten(event["params"])
                    # Otherwise `trial-000` of every sweep would look alike in a list of runs.
                    run_name = f"{name.partition('/')[2] or name}/{event['run']} of {build.label}"
                    build.tracker.open(nested, run_name, self._key, {}, params)
                else:
                    build.tracker.close(nested, event["status"])
            case "note":
                build.display.note(name, event["message"])
                build.tracker.tags(self._key, {"rungwise.note": event["message"]})

    @property
    def scratch(self) -> Folder | None:
        """Where a training by gradient is asked to save; None before its first step, and for other
        stages."""
        config = self.row.stage.config
        learns = isinstance(config, PretrainStageConfig) and config.pretrain.saves_on_request
        return self._folder / f".{SCRATCH}" if learns and self._steps else None

    @property
    def worked(self) -> tuple[float, float]:
        """From when to when the stage worked, by the monotonic clock, as if in one piece."""
        now = time.monotonic()
        return min(now, self._clock + self._waited), now

    def _note_waiting(self, event: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if event["kind"] == "progress" and event["shown"].get("workers") == "starting":
            self._waits_since = self._waits_since or now
        elif event["kind"] in ("began", "progress", "metrics") and self._waits_since is not None:
            # Reports come late; the clock of another machine may differ.
            late = time.time() - event["at"] if event["kind"] == "began" else 0.0
            self._waited += max(0.0, now - self._waits_since - max(0.0, late))
            self._waits_since = None

    def record(self, summary: Summary) -> Artifact:
        with explain_store_errors(self._folder.uri):
            artifact = self._record(summary, time.monotonic() - self._clock)
        self._build.tracker.close(self._key, "FINISHED")
        name = self.row.stage.display_name
        self._build.display.show(name, "done", summary.headline)
        if summary.caution:
            self._build.display.note(name, summary.caution)
        return artifact

    def end(self, status: str) -> None:
        """End the MLflow run of an unfinished stage with FAILED or KILLED."""
        self._build.tracker.close(self._key, status)

    def _record(self, summary: Summary, seconds: float) -> Artifact:
        stage, tracker = self.row.stage, self._build.tracker
        plain = summary.model_dump(mode="json")
        work = self._build.estimate.work[stage.display_name]
        run_id = tracker.run_id(self._key, timeout_seconds=0.1)
        record = {
            "stage": stage.name,
            "title": stage.display_name,
            "version": stage.type.version,
            "label": self._build.label,
            "fingerprint": stage.fingerprint,
            "facts": stage.facts,
            "config": stage.config.model_dump(mode="json"),
            "inputs": artifacts.describe_inputs(self._inputs),
            "summary": plain,
            "recipe": dict(self._build.recipe),
            "started": self._started,
            "finished": _now(),
            "seconds": round(seconds, 3),
            "starting_seconds": round(self._waited, 3),
            # None of a part, which would teach a wrong rate.
            "work": None if self._goes_on or work is None else list(work[:3]),
            "mlflow_run_id": run_id,
            "ray_job_id": os.environ.get("RAY_JOB_ID"),
            "made_by": self._build.made_by,
        }
        artifact = artifacts.finish(self._folder, record, summary.sha256)
        # Log measured numbers as metrics; settings, counts, sizes and names as parameters.
        flat = flatten(plain)
        numbers = {
            name: float(value) for name, value in flat.items() if type(value) in (int, float)
        }
        self._build.monitor.finished(stage.display_name, seconds, numbers)
        for name in ("headline", *flatten(stage.config)):
            flat.pop(name, None)
        measured = {
            name: value
            for name, value in flat.items()
            if isinstance(value, float) and not _SETTINGS & set(name.split("."))
        }
        constants = {
            f"summary/{name}": each
            for name, each in flat.items()
            if isinstance(each, int | str | float) and name not in measured
        }
        times = {"system/stage_seconds": seconds, "system/starting_seconds": self._waited}
        tracker.metrics(self._key, {**times, **measured}, step=0)
        tracker.params(self._key, constants)
        tracker.tags(self._key, {NOTE_TAG: summary.headline})
        tracker.artifact(self._key, str(artifact.folder.local(artifacts.RECORD)))
        folder = findings.PAGE_FILES
        folder += f"/{stage.name}" * (stage.name not in findings.PAGES)
        for name in summary.show:
            path = str(artifact.folder.local(name))
            tracker.artifact(self._key, path)
            at_the_top = name == findings.page_name(artifact)
            tracker.artifact(self._build.parent, path, "" if at_the_top else folder)
        return artifact


def name_run(label: str, made_by: dict[str, Any]) -> str:
    """The name of a run of a recipe: the recipe's, and what the command changes of it."""
    words = shlex.split(made_by["command"])
    return " ".join([label, *(word for word in words if _CHANGE.match(word))])


def source_tags(made_by: dict[str, Any]) -> dict[str, str]:
    """The tags in which MLflow expects the command, and the commit if there is one."""
    tags = {"mlflow.source.name": made_by["command"], "mlflow.source.type": "LOCAL"}
    if made_by["commit"]:
        tags["mlflow.source.git.commit"] = made_by["commit"]
    return tags


def _is_alone() -> bool:
    """Whether the cluster is a single machine."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    return len(nodes) == 1 and nodes[0]["Resources"].get("CPU", 0) >= 1


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Outcome:
    """A finished run: its artifacts in order, the names of those it built, and its duration."""

    artifacts: dict[str, Artifact]
    built: tuple[str, ...]
    seconds: float
    waiting_seconds: float = 0.0  # of these: nothing was built, while Ray or its processes started
    untracked_events: int = 0
    tracking_fault: str = ""  # why the server did not take them


def run(
    stages: Sequence[Stage] | Grow,
    root: Folder,
    label: str,
    compute: ComputeConfig,
    tracker: Callable[[str], Tracker],
    console: Console,
    recipe: Mapping[str, Any] | None = None,
) -> Outcome:
    """Build what is missing of `stages` (in order, inputs first) below `root`; of a function, also
    the stages that follow from finished ones.

    `tracker`, given the id of this driver, is called only if something must be built, or if runs of
    a killed driver must be ended; `recipe` is kept in the records. A failed stage stops only the
    stages that need it. When the others are done, its error is raised: UserError if the user can
    fix it, else StageFailed.
    """
    began = time.monotonic()
    root.check_writable("root")
    with terminate_as_interrupt(), register_driver(root) as driver:
        # The lease comes first: what the plan finds must stay.
        growth = Growth(stages, root, label)
        rows, finished = growth.rows, growth.finished
        names = [row.stage.display_name for row in rows]
        with Display(names, console) as display, contextlib.ExitStack() as stack:
            for row in rows:
                if row.artifact:
                    show_cached(row, row.artifact, display)
            is_done = len(finished) == len(rows)
            if is_done and not driver.dead:
                return Outcome(finished, (), time.monotonic() - began)
            head = None if is_done else stack.enter_context(local_head(compute))
            sender = tracker(driver.id)
            for each in driver.dead:
                sender.end_abandoned(each)
            if is_done:
                untracked = sender.finish(_FINISH_SECONDS)
                seconds = time.monotonic() - began
                return Outcome(finished, (), seconds, 0.0, untracked, sender.fault)
            estimate = RunForecast(rows, compute, Rates.of(root))
            display.expect(estimate)
            build = Build(
                label=label,
                compute=compute,
                tracker=sender,
                driver=driver.id,
                parent="run-" + fingerprint(growth.first),
                made_by=provenance(),
                display=display,
                monitor=Monitor(label, compute),
                recipe=recipe or {},
                estimate=estimate,
            )
            return _build(growth, root, build, began, head)


def _build(growth: Growth, root: Folder, build: Build, began: float, head: Head | None) -> Outcome:
    tracker, parent = build.tracker, build.parent
    tags = source_tags(build.made_by) | {"rungwise.label": build.label}
    schedule = Schedule(growth, root, build)
    status = "FAILED"
    try:
        name = name_run(build.label, build.made_by)
        tracker.open(parent, name, tags=tags, params=flatten(dict(build.recipe)))
        where = os.environ.get("RAY_ADDRESS")
        build.display.announce(f"joining Ray at {where}" if where else "starting Ray")
        with session(build.compute, head=head):
            schedule.work()
        schedule.check()
        waiting = time.monotonic() - began - schedule.working_seconds
        tracker.metrics(parent, {"system/starting_seconds": waiting}, step=0)
        names = [name for name in growth.fingerprints if name in schedule.finished]
        finished = {name: schedule.finished[name] for name in names}
        tracker.tags(
            parent, {f"rungwise.{name}": each.fingerprint for name, each in finished.items()}
        )
        tracker.metrics(parent, findings.headline_metrics(finished), step=0)
        data = {
            title: (each.digest, each.folder.uri)
            for title, each in finished.items()
            if each.stage in (CORPUS.name, TASK.name)
        }
        tracker.datasets(parent, data)
        tracker.tags(parent, {NOTE_TAG: findings.description(finished, root.uri)})
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        # After the session has ended, and with it the tasks of stopped stages.
        schedule.end(status)
        tracker.close(parent, status)
        untracked = tracker.finish(_FINISH_SECONDS)
    built = tuple(name for name in finished if name in schedule.built)
    seconds = time.monotonic() - began
    waiting = seconds - schedule.working_seconds
    return Outcome(finished, built, seconds, waiting, untracked, tracker.fault)


class Schedule:
    """The stages of a run and their progress, by displayed name."""

    def __init__(self, growth: Growth, root: Folder, build: Build) -> None:
        self._growth = growth
        self._ended = 0  # how many stages had ended when it was last looked what follows
        self.finished = growth.finished
        self.built: set[str] = set()
        self._worked: list[tuple[float, float]] = []  # from when to when each finished stage worked
        self._errors: dict[str, Exception] = {}
        self._failed_before: dict[str, str] = {}  # stage not built -> failed stage it needs
        self._pending = _order(growth.rows)
        self._running: dict[str, StageJob] = {}
        self._leases: dict[str, Lease] = {}  # of running stages, and of those others build
        self._retry_at: dict[str, float] = {}
        self._board_number = ""  # of the process of the board that was heard last
        self._root = root
        self._build = build

    @property
    def working_seconds(self) -> float:
        """Seconds in which at least one finished stage has worked."""
        seconds, last = 0.0, 0.0
        for begin, end in sorted(self._worked):
            seconds += max(0.0, end - max(begin, last))
            last = max(last, end)
        return seconds

    def work(self) -> None:
        """Build until no buildable stage is left."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from rungwise.core.stages.board import Board

        # On the driver's node, so that losing another node does not lose the board.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        board = Board.options(scheduling_strategy=here).remote()  # pyright: ignore[reportAttributeAccessIssue]
        try:
            while self._pending or self._running:
                for name in list(self._pending):
                    self._start(name, board)
                self._poll(board)
                self._grow()
        except KeyboardInterrupt:
            # Let the trainings at work save what they have learnt.
            if scratches := [each for job in self._running.values() if (each := job.scratch)]:
                self._build.display.announce("interrupted: saving")
                request_saves(scratches, _SAVE_SECONDS)
            raise
        finally:
            self._show_reports(board, last=True)
            ray.kill(board)

    def check(self) -> None:
        """Raise the first failure, if any; its message also names the stages not built."""
        optional = self._growth.known.optional
        errors = {
            name: error
            for name, error in self._errors.items()
            if self._growth.fingerprints[name] not in optional or self._growth.known.missing
        }
        if not errors:
            if self._growth.known.missing:
                raise UserError(self._growth.known.missing)
            return
        (name, error), *others = errors.items()
        more = f"; failed as well: {', '.join(other for other, _ in others)}" if others else ""
        if self._failed_before:
            more += f"; not built: {', '.join(self._failed_before)}"
        user_error = find_user_error(error)
        if user_error is not None:
            raise UserError(f"{name}: {user_error}{more}") from error
        raise StageFailed(f"the stage {name} failed: {_last_line(error)}{more}") from error

    def end(self, status: str) -> None:
        """Close the MLflow runs of stopped stages and release all leases."""
        for job in self._running.values():
            job.end(status)
        for lease in self._leases.values():
            lease.release()

    def _grow(self) -> None:
        """Add the stages that follow from what has finished or failed since the last look."""
        ended = len(self.finished) + len(self._errors) + len(self._failed_before)
        if ended == self._ended:
            return
        self._ended = ended
        failed = {name: str(find_user_error(each) or each) for name, each in self._errors.items()}
        failed |= {name: failed[source] for name, source in self._failed_before.items()}
        if rows := self._growth.grow(self.finished, failed):
            self._build.estimate.add(rows)
            self._build.display.add([row.stage.display_name for row in rows])
            for row in rows:
                self._failed_before.pop(row.stage.display_name, None)
                if row.artifact:
                    self.finished[row.stage.display_name] = row.artifact
                    show_cached(row, row.artifact, self._build.display)
            self._pending |= _order(rows)

    def _start(self, name: str, board: Any) -> None:
        """Start a pending stage if its inputs are finished, there is room and the lease is free."""
        row, display = self._pending[name], self._build.display
        inputs = {key: source.display_name for key, source in row.stage.inputs.items()}
        for source in inputs.values():
            if source in self._errors or source in self._failed_before:
                failed = self._failed_before.get(source, source)
                self._failed_before[name] = failed
                del self._pending[name]
                display.show(name, "not built", f"it needs {failed}, which failed")
                return
        if len(self._running) >= self._build.compute.max_concurrent_stages:
            return
        if any(source not in self.finished for source in inputs.values()):
            return
        unfinished = [*self._pending.values(), *(job.row for job in self._running.values())]
        if any(row.stage.continues(other.stage) for other in unfinished):
            return
        if time.monotonic() < self._retry_at.get(name, 0.0):
            return
        with self._catch_failure(name):
            stages = self._root / row.stage.name
            if name not in self._leases:
                self._leases[name] = Lease(stages, row.stage.fingerprint, self._build.driver)
            lease = self._leases[name]
            if not lease.take():
                self._retry_at[name] = time.monotonic() + _RETRY_SECONDS
                display.show(name, "waiting", f"for {lease.holder} to build it")
                return
            del self._pending[name]
            for driver in lease.dead:
                self._build.tracker.end_abandoned(driver)
            # Only under the lease, since another driver may have made or finished the folder.
            folder = artifacts.find_folder(
                self._root, row.stage.name, self._build.label, row.stage.fingerprint
            )
            if artifact := artifacts.load(folder):
                self._leases.pop(name).release()
                self.finished[name] = artifact
                show_cached(row, artifact, display)
                return
            artifacts_read = {key: self.finished[source] for key, source in inputs.items()}
            job = self._running[name] = StageJob(row, folder, artifacts_read, self._build)
            job.open()
            if row.stage.type.place == "driver":
                self._finish(name, job.run_here())
            else:
                job.submit(board)

    def _poll(self, board: Any) -> None:
        """Wait a moment; show what running stages report; finish those that are done."""
        import ray

        tasks = {job.task: name for name, job in self._running.items()}
        ready: list[Any] = []
        if tasks:
            ready, _ = ray.wait(list(tasks), timeout=_POLL_SECONDS)
        elif self._pending:
            time.sleep(_POLL_SECONDS)
        self._show_reports(board)
        for name in [tasks[task] for task in ready]:
            with self._catch_failure(name):
                self._finish(name, ray.get(self._running[name].task))
        for name in [name for name in self._running if self._leases[name].lost]:
            ray.cancel(self._running[name].task, force=True)
            self._yield(name)

    def _show_reports(self, board: Any, last: bool = False) -> None:
        import ray
        from ray.exceptions import GetTimeoutError, RayActorError

        from rungwise.core.stages.board import ANSWER_SECONDS

        number, events, fault = self._board_number, [], "was killed"
        if number != _ENDED:
            try:
                number, events = ray.get(board.drain.remote(), timeout=ANSWER_SECONDS)
            except RayActorError:
                number = _ENDED
            except GetTimeoutError:
                number, fault = _ENDED, f"gave no answer for {ANSWER_SECONDS:.0f} s"
        if number != self._board_number and self._board_number:
            loss = "no more reports come" if number == _ENDED else "the last reports are lost"
            for name in self._running:
                self._build.display.note(name, f"{loss}: the process that carries them {fault}")
        self._board_number = number
        for event in events:
            if job := self._running.get(event["stage"]):
                job.handle(event)
        build = self._build
        build.monitor.beat(build.display.states, build.tracker.waiting, last)

    def _finish(self, name: str, summary: Summary) -> None:
        if not self._leases[name].is_valid():
            self._yield(name)
            return
        self.finished[name] = self._running[name].record(summary)
        self._worked.append(self._running[name].worked)
        self.built.add(name)
        del self._running[name]
        self._leases.pop(name).release()

    def _yield(self, name: str) -> None:
        """Leave a stage to the driver that took over its lease, and wait for that driver."""
        job = self._running.pop(name)
        job.end("KILLED")
        self._leases.pop(name).release()
        self._pending[name] = job.row

    @contextlib.contextmanager
    def _catch_failure(self, name: str) -> Iterator[None]:
        """Record an exception as the failure of this stage; the others continue."""
        try:
            yield
        except Exception as error:
            self._errors[name] = error
            self._pending.pop(name, None)
            if job := self._running.pop(name, None):
                job.end("FAILED")
            self._leases.pop(name).release()
            self._build.display.show(
                name, "failed", str(find_user_error(error) or _last_line(error))
            )


def _order(rows: Sequence[Planned]) -> dict[str, Planned]:
    """The stages to build in the order of starts: by kind, and within a kind the last first. The
    later rungs of a ladder take longer, and the longest should not run alone at the end."""
    kinds = list(dict.fromkeys(row.stage.name for row in rows))
    return {
        row.stage.display_name: row
        for kind in kinds
        for row in reversed(rows)
        if row.stage.name == kind and row.artifact is None
    }


def show_cached(row: Planned, artifact: Artifact, display: Display) -> None:
    name = row.stage.display_name
    display.show(name, "cached", artifact.headline)
    if caution := row.stage.type.summary.of(artifact).caution:
        display.note(name, caution)


def _last_line(error: BaseException) -> str:
    """The last line of an error, since Ray puts the traceback before the message. The class stays
    only if the message is not a sentence, as in a KeyError."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    line = lines[-1].strip()
    if type(error).__name__ in _KILLED:
        return _KILLED[type(error).__name__]
    message = _CLASSES.sub("", line)
    if " " in message:
        return message
    return line if message != line else f"{type(error).__name__}: {line}"
