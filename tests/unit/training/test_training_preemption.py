"""What ties a run to the nodes it is on: gloo's interface, and a save before workers are ended."""

import socket
import threading
from pathlib import Path

import psutil
import pytest
from ray.train.v2._internal.execution.controller.state import ResizingState, RunningState
from ray.train.v2._internal.execution.scaling_policy import ResizeDecision

from rungwise.cluster.interface import find_interface
from rungwise.core.storage.folder import Folder
from rungwise.training.ray import gradient as notices
from rungwise.training.ray.gradient import PreemptionWatch, SaveBeforeResize
from tests.waiting import wait_until

RESIZING = ResizingState(scaling_decision=ResizeDecision(2, {"CPU": 1}))


def test_gloo_gets_the_interface_that_has_the_address_of_the_node() -> None:
    named = psutil.net_if_addrs()
    loopback = find_interface("127.0.0.1")
    assert loopback is not None
    assert any(entry.address == "127.0.0.1" for entry in named[loopback])
    assert find_interface("127.3.2.1") == loopback  # which it does not list
    assert find_interface("203.0.113.7") is None  # of a documentation's network
    for name, entries in named.items():
        for entry in entries:
            if entry.family == socket.AF_INET:
                assert find_interface(entry.address) == name


def test_the_controller_waits_until_all_have_saved(tmp_path: Path) -> None:
    scratch = Folder.at(tmp_path)
    notice, other = PreemptionWatch(scratch, leads=True), PreemptionWatch(scratch, leads=False)
    assert not notice._is_to_resize()
    held = threading.Thread(
        target=SaveBeforeResize(scratch).after_controller_state_update,
        args=(RunningState(), RESIZING),
    )
    held.start()
    wait_until("the mark", lambda: scratch.exists(notices._MARK), 10)
    assert notice._is_to_resize()  # and now the loop saves, and asks again when that is done
    assert not other._is_to_resize()
    assert held.is_alive()
    assert not notice._is_to_resize()
    held.join(10)
    assert not held.is_alive()
    assert not notice._is_to_resize()
    assert scratch.names() == []


def test_a_run_that_does_not_save_is_not_waited_for_without_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_PATIENCE_SECONDS", 0.1)
    SaveBeforeResize(Folder.at(tmp_path)).after_controller_state_update(RunningState(), RESIZING)
    assert Folder.at(tmp_path).names() == []


def test_a_start_of_workers_is_no_resize(tmp_path: Path) -> None:
    SaveBeforeResize(Folder.at(tmp_path / "none")).after_controller_state_update(
        RESIZING, RunningState()
    )
    assert not (tmp_path / "none").exists()
