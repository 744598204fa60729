"""Saves outside the schedule, on request: a mark in the scratch folder of a training, by the driver
when it is interrupted, or by Ray Train's controller before it changes the number of workers."""

import contextlib
import time
from collections.abc import Sequence

from rungwise.core.errors import UserError
from rungwise.core.storage.folder import Folder

SCRATCH = "ray-train"  # of a training, below its artifact (cluster/session.py: shared_scratch)
PATIENCE_SECONDS = 120.0  # for a step and a save; after that the last checkpoint must do
_MARK = "save"
_POLL_SECONDS = 0.2


class SaveRequests:
    """Returns True once per request, on the leading worker: its answer counts for all (loop.py)."""

    def __init__(self, scratch: Folder, leads: bool) -> None:
        self._scratch = scratch
        self._leads = leads
        self._saved = False

    def __call__(self) -> bool:
        if not self._leads:
            return False
        # If the store is unavailable, only the steps since the last checkpoint are lost.
        with contextlib.suppress(UserError, OSError):
            if self._scratch.exists(_MARK) and not self._saved:
                self._saved = True
                return True
            if self._saved:
                self._scratch.remove(_MARK)
        self._saved = False
        return False


def request_saves(scratches: Sequence[Folder], seconds: float = PATIENCE_SECONDS) -> None:
    """Ask trainings to save, and wait until they have or `seconds` are over."""
    with contextlib.suppress(UserError, OSError):
        for scratch in scratches:
            scratch.write_bytes(_MARK, b"")
        deadline = time.monotonic() + seconds
        while any(each.exists(_MARK) for each in scratches) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        drop_requests(scratches)


def drop_requests(scratches: Sequence[Folder]) -> None:
    """Remove what a driver that was killed has asked for."""
    for scratch in scratches:
        scratch.remove(_MARK)
