"""The board: a small Ray actor that carries reports from stages on the cluster to the driver.

The driver drains it twice a second. If its process is killed, Ray starts it again with the
same address; what it held then is lost, which the driver notices by its number.
"""

import contextlib
import math
import time
import uuid
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

ANSWER_SECONDS = 120.0  # Ray may start its process again meanwhile


# Ray's annotations of `remote` omit the options of actors.
@ray.remote(num_cpus=0, max_concurrency=1, max_restarts=-1, max_task_retries=-1)  # pyright: ignore[reportCallIssue]
class Board:
    """Holds events until the driver drains them."""

    def __init__(self) -> None:
        self._number = uuid.uuid4().hex
        self._events: list[dict[str, Any]] = []

    def post(self, event: dict[str, Any]) -> None:
        self._events.append(event)

    def drain(self) -> tuple[str, list[dict[str, Any]]]:
        """The events, and a number that differs after each start of the process."""
        events, self._events = self._events, []
        return self._number, events


class BoardReporter:
    """A Reporter (stage.py) that posts to the board; it is sent to workers with the config."""

    def __init__(self, board: Any, stage: str) -> None:
        self._board = board
        self._stage = stage

    def began(self) -> None:
        self._post(kind="began", at=time.time())

    def progress(self, done: float, total: float, **shown: float | str) -> None:
        self._post(kind="progress", done=done, total=total, shown=shown)

    def metrics(self, values: dict[str, float], step: int, run: str | None = None) -> None:
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        self._post(kind="metrics", values=finite, step=step, run=run)

    def nested(self, run: str, params: dict[str, Any], status: str = "RUNNING") -> None:
        self._post(kind="nested", run=run, params=params, status=status)

    def note(self, message: str) -> None:
        self._post(kind="note", message=message)

    def flush(self) -> None:
        # Calls from one process to one actor arrive in order, so all earlier posts have arrived.
        flushed = self._board.post.remote({"kind": "flush", "stage": self._stage})
        with contextlib.suppress(RayActorError, GetTimeoutError):  # a stage does not fail for it
            ray.get(flushed, timeout=ANSWER_SECONDS)

    def _post(self, **event: Any) -> None:
        event["stage"] = self._stage
        self._board.post.remote(event)
