"""Where jobs that are killed work: on a Ray of their own, or in one process that kills itself."""

import contextlib
import math
import os
import signal
from contextlib import AbstractContextManager

from rungwise.cluster import tasks
from rungwise.cluster.session import session
from rungwise.core.configuration.compute import ComputeConfig
from rungwise.core.stages.context import Context, SilentReporter

COMPUTE = ComputeConfig(object_store_megabytes=100)
PARTS = 5


class KillsItself(SilentReporter):
    def progress(self, done: float, total: float, **shown: float | str) -> None:
        if done == PARTS:
            os.kill(os.getpid(), signal.SIGKILL)


def prepare(cpus: int) -> tuple[AbstractContextManager[None], Context]:
    """What a job works in. Without CPUs of a Ray it works alone, and is killed when `PARTS` files
    or ranges are done."""
    if cpus:
        return session(COMPUTE, num_cpus=cpus), Context(COMPUTE)
    tasks._SMALL_BYTES = math.inf
    return contextlib.nullcontext(), Context(COMPUTE, KillsItself())
