"""Runs the stages of a workflow: reuses finished ones; builds, shows and tracks the rest.

Only the driver writes records, the terminal and MLflow. If nothing is missing, neither Ray nor
MLflow is started. A stage is built under a lease, so that concurrent drivers build each artifact
once.
"""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from rungwise.cluster.head import Head
from rungwise.cluster.session import local_head, session
from rungwise.core.configuration.canonical import fingerprint, flatten
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import StageFailed, UserError, find_user_error
from rungwise.core.exit_codes import terminate_as_interrupt
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact, Summary
from rungwise.core.stages.lease import Lease, register_driver
from rungwise.core.stages.provenance import provenance
from rungwise.core.stages.stage import Planned, Stage
from rungwise.core.storage.folder import Folder
from rungwise.core.tracking.sender import NOTE_TAG
from rungwise.core.tracking.tracker import Tracker
from rungwise.monitoring import Monitor
from rungwise.pipeline import job as overview
from rungwise.pipeline.display import Display
from rungwise.pipeline.estimate import Rates, RunForecast
from rungwise.pipeline.job import Build, StageJob, name_run, source_tags
from rungwise.pipeline.stages import Grow, Growth
from rungwise.training.checkpoint import request_saves

_FINISH_SECONDS = 20.0  # the longest wait for the tracking server at the end of a run
_POLL_SECONDS = 0.2
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
        tracker.metrics(parent, overview.headline_metrics(finished), step=0)
        tracker.datasets(parent, overview.list_data(finished))
        tracker.tags(parent, {NOTE_TAG: overview.description(finished, root.uri)})
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
