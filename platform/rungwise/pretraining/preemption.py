"""Saves outside the schedule: when a machine is about to go away, or one has come back.

Ray announces that a node will be drained (which is how a cloud's notice arrives), and workers go on
until then. When a node returns to an elastic run, Ray Train ends all workers without notice and
starts more, which would lose the steps since the last checkpoint. So its controller is delayed: it
writes a mark, the leading worker sees it within a second, all workers save, and the leader removes
the mark.
"""

import contextlib
import time
from typing import Any

from rungwise.core.errors import UserError
from rungwise.core.storage.folder import Folder
from rungwise.ray_private import ControllerCallback, ResizingState

_MARK = "resize"
_POLL_SECONDS = 0.2
_PATIENCE_SECONDS = 120.0  # for a step and a save; after that the last checkpoint must do


class PreemptionWatch:
    """Returns True once per reason to save. All workers ask at the same steps, between saves."""

    def __init__(self, scratch: Folder, leads: bool) -> None:
        self._scratch = scratch
        self._leads = leads
        self._going: set[str] = set()
        self._saved = False

    def __call__(self) -> bool:
        from ray.train import get_preemption_info

        info = get_preemption_info()
        nodes = set(info.preempted_node_to_ranks) if info else set()
        new = nodes - self._going
        self._going |= nodes
        return bool(new) or self._is_to_resize()

    def _is_to_resize(self) -> bool:
        # One worker's answer counts for all (loop.py).
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


class SaveBeforeResize(ControllerCallback):
    """Makes Ray Train's controller wait for a checkpoint before it ends a sound worker group."""

    def __init__(self, scratch: Folder) -> None:
        self._scratch = scratch

    def after_controller_state_update(self, previous_state: Any, current_state: Any) -> None:
        if not isinstance(current_state, ResizingState):
            return
        with contextlib.suppress(UserError, OSError):
            self._scratch.write_bytes(_MARK, b"")
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while self._scratch.exists(_MARK) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
            self._scratch.remove(_MARK)
