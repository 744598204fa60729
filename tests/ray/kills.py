"""Where jobs that are killed work: on a Ray of their own, or in one process that kills itself."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rungwise.cluster import tasks
from rungwise.cluster.session import session
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.stages.context import Context, SilentReporter
from tests.conftest import REPOSITORY

COMPUTE = ComputeConfig(object_store_megabytes=100)
PARTS = 5


class KillsItself(SilentReporter):
    def progress(self, done: float, total: float, **shown: float | str) -> None:
        if done == PARTS:
            os.kill(os.getpid(), signal.SIGKILL)


def start(
    job: str, folder: Path, stdout: int | None = None, **wanted: Any
) -> subprocess.Popen[str]:
    """Start `tests/ray/JOB` with what is wanted of it, in a process group of its own."""
    (folder / "wanted.json").write_text(json.dumps(wanted))
    path = os.pathsep.join([str(REPOSITORY / "platform"), str(REPOSITORY), *sys.path])
    return subprocess.Popen(
        [sys.executable, f"tests/ray/{job}", str(folder / "wanted.json")],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": path},
        stdout=stdout,
        text=True,
        start_new_session=True,
    )


def prepare(cpus: int) -> tuple[AbstractContextManager[None], Context]:
    """Start a Ray of these CPUs; without any, kill the job when `PARTS` parts are done."""
    if cpus:
        return session(COMPUTE, num_cpus=cpus), Context(COMPUTE)
    tasks._SMALL_BYTES = math.inf
    return contextlib.nullcontext(), Context(COMPUTE, KillsItself())
