"""Ray of a session: when it starts and ends, and what is said of it."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import ray

from rungwise.cluster import head as heads
from rungwise.cluster import session as sessions
from rungwise.cluster.session import local_head, session
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import UserError


def test_the_raylet_s_count_of_processes_stays_off_the_console_and_its_other_lines_do_not() -> None:
    program = """
from rungwise.cluster.environment import set_environment
set_environment()
from ray._private.worker import print_to_stdstream
for line in (
    "WARNING: 8 PYTHON worker processes have been started on node: ab with address: 127.0.0.1, ...",
    "2 workers were killed due to memory pressure",
):
    data = {"lines": [line], "pid": "raylet", "is_err": False}
    print_to_stdstream(data, ignore_prefix=False)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    (line,) = done.stdout.splitlines()
    assert line.endswith("2 workers were killed due to memory pressure")


class Heads(list[str]):
    """Stands for what starts Ray; lists what happens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        monkeypatch.setattr(ray, "init", lambda address, **arguments: self.append(address))
        monkeypatch.setattr(ray, "shutdown", lambda: self.append("shutdown"))
        monkeypatch.setattr(sessions, "Head", self.head)

    def head(self, settings: dict[str, object]) -> SimpleNamespace:
        self.append("start")
        return SimpleNamespace(address=lambda: "10.0.0.2:1", stop=lambda: self.append("stop"))


def test_a_ray_ends_with_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = Heads(monkeypatch)
    with session(ComputeConfig()):
        pass
    assert heads == ["start", "10.0.0.2:1", "shutdown", "stop"]


def test_a_ray_that_does_not_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    program = """import json; print(json.dumps({"error": "no room"}))"""
    started = subprocess.Popen
    monkeypatch.setattr(
        subprocess,
        "Popen",
        lambda command, **options: started([sys.executable, "-c", program], **options),
    )
    with pytest.raises(UserError, match=r"Ray did not start \(no room\); the load is"):
        session(ComputeConfig()).__enter__()


def test_a_ray_started_ahead_serves_the_session_or_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = Heads(monkeypatch)
    with local_head(ComputeConfig()) as head, session(ComputeConfig(), head=head):
        pass
    assert [each for each in heads if each != "stop"] == ["start", "10.0.0.2:1", "shutdown"]
    heads.clear()
    with local_head(ComputeConfig()):
        pass
    assert heads == ["start", "stop"]
    heads.clear()
    with monkeypatch.context() as patch:
        patch.setattr(ray, "is_initialized", lambda: True)
        with local_head(ComputeConfig()) as head:
            assert head is None
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with local_head(ComputeConfig()) as head:
        assert head is None
    assert not heads


def test_ending_ray_does_not_stop_at_a_process_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One left the process that holds Ray, and the run that waits for it, forever."""
    sleep = [sys.executable, "-c", "import time; time.sleep(20)"]
    with psutil.Popen(sleep) as gone, psutil.Popen(sleep) as living:
        children = [psutil.Process(each.pid) for each in (gone, living)]
        gone.kill()
        gone.wait()
        monkeypatch.setattr(psutil.Process, "children", lambda *_, **__: children)
        heads._end_children()
        assert not living.is_running()


@pytest.mark.parametrize("whose", ["our handler", "that of Ray"])
def test_sigterm_while_ray_starts_ends_a_run(whose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(address: str, **arguments: object) -> None:
        if whose == "that of Ray":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        os.kill(os.getpid(), signal.SIGTERM)

    heads = Heads(monkeypatch)
    monkeypatch.setattr(ray, "init", init)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        session(ComputeConfig()).__enter__()
    assert heads == ["start", "shutdown", "stop"]
    assert signal.getsignal(signal.SIGTERM) == before
