"""A Ray that does not start in time is tried again, and then explained in one line."""

from __future__ import annotations

import pytest
import ray

from rungwise.cluster.session import session
from rungwise.core.context import ComputeConfig
from rungwise.core.errors import UserError


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
