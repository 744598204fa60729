"""A Ray that does not start in time is tried again, and one that runs says what matters."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import ray

from rungwise.cluster.session import session
from rungwise.core.configuration.compute import ComputeConfig
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


@pytest.mark.parametrize("late", [1, 2])
def test_a_ray_that_is_late_is_started_again(late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def init(**arguments: object) -> None:
        calls.append("init")
        if calls.count("init") <= late:
            raise Exception("The current node timed out during startup. This could ...")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: calls.append("shutdown"))
    if late == 1:
        with session(ComputeConfig()):
            assert calls == ["init", "shutdown", "init"]
    else:
        with pytest.raises(UserError, match="did not start within 30 s, twice"):
            session(ComputeConfig()).__enter__()


@pytest.mark.parametrize(
    ("available", "kept"), [(0, 4), (1 << 30, 4), (4 << 30, 5), (24 << 30, 10), (1 << 40, 260)]
)
def test_a_local_ray_keeps_idle_workers_in_a_sixteenth_of_the_free_memory(
    available: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, object]] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **arguments: given.append(arguments))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    memory = SimpleNamespace(available=available)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    limit = "RAY_num_workers_soft_limit"
    # Set and then deleted, so that what the session sets is deleted too at the end.
    monkeypatch.setenv(limit, "")
    for name in ("RAY_ADDRESS", limit):
        monkeypatch.delenv(name, raising=False)
    with session(ComputeConfig()):
        assert os.environ[limit] == str(kept)
    # With an environment of its own it could not use the workers that Ray starts in advance.
    assert "runtime_env" not in given[0]
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with session(ComputeConfig()):
        assert "runtime_env" in given[1]


def test_any_other_failure_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def init(**arguments: object) -> None:
        calls.append(1)
        raise ConnectionError("no cluster there")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ConnectionError):
        session(ComputeConfig()).__enter__()
    assert len(calls) == 1


@pytest.mark.parametrize("whose", ["our handler", "that of Ray"])
def test_sigterm_while_ray_starts_ends_a_run_as_ctrl_c_does(
    whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def init(**arguments: object) -> None:
        if whose == "that of Ray":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: calls.append("shutdown"))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        session(ComputeConfig()).__enter__()
    assert calls == ["shutdown"]
    assert signal.getsignal(signal.SIGTERM) == before
