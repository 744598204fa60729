"""What ties a run to the nodes it is on: gloo's interface, and a save before workers are ended."""

import socket
import threading
from pathlib import Path

import psutil
from ray.train.v2._internal.execution.controller.state import ResizingState, RunningState
from ray.train.v2._internal.execution.scaling_policy import ResizeDecision

from rungwise.cluster.interface import find_interface
from rungwise.core.storage.folder import Folder
from rungwise.training.ray.gradient import SaveBeforeResize
from rungwise.training.save_request import SaveRequests, request_saves
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
    requests, other = SaveRequests(scratch, leads=True), SaveRequests(scratch, leads=False)
    assert not requests()
    held = threading.Thread(
        target=SaveBeforeResize(scratch).after_controller_state_update,
        args=(RunningState(), RESIZING),
    )
    held.start()
    wait_until("the mark", lambda: scratch.exists("save"), 10)
    assert requests()  # and now the loop saves, and asks again when that is done
    assert not other()
    assert held.is_alive()
    assert not requests()
    held.join(10)
    assert not held.is_alive()
    assert not requests()
    assert scratch.names() == []


def test_a_run_that_does_not_save_is_not_waited_for_without_an_end(tmp_path: Path) -> None:
    request_saves([Folder.at(tmp_path)], 0.1)
    assert Folder.at(tmp_path).names() == []
