"""The processes of a local cluster: start them to outlive the command, find them and end them.

Each inherits a mark in its environment, the cluster's scratch folder, which no other cluster has.
The mark identifies those whose parents have ended, and those started in the moment before
`rungwise up` was killed. A recorded process is identified by its id and its start, so that a
process that was given the id later is left alone.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from rungwise.cluster.registry import Process
from rungwise.core.errors import UserError

MARK = "RUNGWISE_LOCAL_CLUSTER"
# Ray gives its processes titles, which by default are written over their environment.
_KEEP_ENVIRONMENT = {"SPT_NOENV": "1"}
_LAST = ("head", "mlflow")  # what the others still talk to while they end
_GRACE_SECONDS = 5.0
_KILLS = 20


def marked(environment: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """`environment` with the mark of the cluster whose scratch folder this is."""
    return {**environment, **_KEEP_ENVIRONMENT, MARK: str(scratch)}


def start(
    what: str, command: Sequence[str], environment: Mapping[str, str], log: Path
) -> tuple[psutil.Popen, Process]:
    """Start a process that no signal of this terminal reaches, with its output in `log`."""
    with log.open("w") as stream:
        process = psutil.Popen(
            command,
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
    return process, Process(what, process.pid, process.create_time())


def running(recorded: Process) -> psutil.Process | None:
    """The recorded process, None if it has ended, whoever has its id now."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(recorded.pid)
        # The machine's clock may have been adjusted by parts of a second since.
        same = abs(process.create_time() - recorded.started) < 1.0
        if same and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def family(recorded: Iterable[Process], scratch: Path | None) -> list[psutil.Process]:
    """Every living process of the cluster: recorded, a child of those, or with its mark."""
    processes = [process for entry in recorded if (process := running(entry))]
    if scratch is not None:
        processes += [
            process for process in psutil.process_iter() if _mark(process) == str(scratch)
        ]
    for process in list(processes):
        with contextlib.suppress(psutil.NoSuchProcess):
            processes += process.children(recursive=True)
    alive = {process.pid: process for process in processes if _alive(process)}
    alive.pop(os.getpid(), None)
    return list(alive.values())


def end(recorded: Sequence[Process], scratch: Path | None) -> int:
    """End every process of the cluster, asking first and then killing; return how many there were.

    Raises UserError if one cannot be ended.
    """
    left = family(recorded, scratch)
    before = len(left)
    for last in (False, True):
        asked = [
            process
            for entry in recorded
            if (entry.what in _LAST) == last and (process := running(entry))
        ]
        for process in asked:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        psutil.wait_procs(asked, _GRACE_SECONDS)
    for _ in range(_KILLS):
        left = family(recorded, scratch)
        if not left:
            return before
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, 1)
    ids = ", ".join(str(process.pid) for process in left)
    raise UserError(f"these processes do not end: {ids}; look at what holds them, then try again")


def _mark(process: psutil.Process) -> str | None:
    # Other users' processes hide theirs, and those of the kernel have none.
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ().get(MARK)
    return None


def _alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
