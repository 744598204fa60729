"""Runs the stages of a workflow: reuses finished ones; builds, shows and tracks the rest.

Only the driver writes records, the terminal and MLflow. If nothing is missing, neither Ray nor
MLflow is started. How stages are started and watched is in schedule.py.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from rungwise.cluster.head import Head
from rungwise.cluster.session import local_head, session
from rungwise.core.configuration.canonical import fingerprint, flatten
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.exit_codes import terminate_as_interrupt
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.lease import register_driver
from rungwise.core.stages.provenance import provenance
from rungwise.core.stages.stage import Stage
from rungwise.core.storage.folder import Folder
from rungwise.core.tracking.sender import NOTE_TAG
from rungwise.core.tracking.tracker import Tracker
from rungwise.monitoring import Monitor
from rungwise.pipeline import job as overview
from rungwise.pipeline.display import Display
from rungwise.pipeline.job import Build, source_tags
from rungwise.pipeline.schedule import Schedule, show_cached
from rungwise.pipeline.stages import Grow, Growth

_FINISH_SECONDS = 20.0  # the longest wait for the tracking server at the end of a run


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
    job = os.environ.get("RAY_JOB_ID")
    with terminate_as_interrupt(), register_driver(root, job) as driver:
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
            head = None
            if not is_done:
                head = stack.enter_context(local_head(compute))
                if head:
                    head.start()
            sender = tracker(driver.id)
            for each in driver.dead:
                sender.end_abandoned(each)
            if is_done:
                untracked = sender.finish(_FINISH_SECONDS)
                seconds = time.monotonic() - began
                return Outcome(finished, (), seconds, 0.0, untracked, sender.fault)
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
            )
            return _build(growth, root, build, began, head)


def _build(growth: Growth, root: Folder, build: Build, began: float, head: Head | None) -> Outcome:
    tracker, parent = build.tracker, build.parent
    tags = source_tags(build.made_by) | {"rungwise.label": build.label}
    schedule = Schedule(growth, root, build)
    status = "FAILED"
    try:
        tracker.open(parent, build.label, tags=tags, params=flatten(dict(build.recipe)))
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
