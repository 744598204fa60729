"""Wait for what other threads and processes do, never for longer than a test may take."""

import contextlib
import time
import urllib.request
from collections.abc import Callable
from typing import Any


def wait_until(
    what: str | Callable[[], str],
    holds: Callable[[], Any],
    seconds: float = 300,
    code: Callable[[], int | None] = lambda: None,
    pause: float = 0.02,
) -> Any:
    """Return the first true answer of `holds`; fail with `what` after so many seconds."""

    def message(fault: str) -> str:
        return f"{fault}: {what if isinstance(what, str) else what()}"

    deadline = time.monotonic() + seconds
    while not (answer := holds()):
        assert code() is None, message("the process has ended")
        assert time.monotonic() < deadline, message(f"waited {seconds:.0f} s")
        time.sleep(pause)
    return answer


def is_healthy(address: str, path: str = "health") -> bool:
    """Whether a server answers there; the path is MLflow's."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/{path}") as reply:
        return reply.status == 200
    return False
