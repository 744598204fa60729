"""Processes of a run that are killed: one message, once, and true."""

from __future__ import annotations

import io
import os
import signal
import time
from pathlib import Path
from typing import Any, Literal

import pytest
import ray
from rich.console import Console

from rungwise.core.configuration.compute import ComputeConfig
from rungwise.core.configuration.config import Config
from rungwise.core.errors import StageFailed
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.stages.stage import StageType
from rungwise.core.stages.summary import Summary
from rungwise.core.storage.folder import Folder
from rungwise.core.tracking.tracker import Tracker
from rungwise.pipeline import runner


class KilledConfig(Config):
    what: Literal["board", "board for good", "stage"]


def kill_and_report(
    config: KilledConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> Summary:
    board: Any = context.report._board  # pyright: ignore[reportAttributeAccessIssue]
    context.report.note("before")
    context.report.flush()
    time.sleep(2)
    if config.what == "board":
        os.kill(ray.get(board.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
    elif config.what == "board for good":
        ray.kill(board)
    else:
        os.kill(os.getpid(), signal.SIGKILL)
    for number in range(3):
        time.sleep(1)
        context.report.note(f"after {number}")
    output.write_bytes("a.txt", b"a")
    return Summary(headline="made")


@pytest.mark.parametrize(
    ("what", "message", "notes"),
    [
        ("board", "the last reports are lost: the process that carries them was killed", 4),
        ("board for good", "no more reports come: the process that carries them was killed", 1),
        ("stage", "its process was killed, also when it was started again", 3),
    ],
)
def test_a_killed_process_is_said_once_and_costs_no_more_than_it_must(
    tmp_path: Path, ray_session: None, what: str, message: str, notes: int
) -> None:
    kind = StageType("killed", 1, kill_and_report, Summary)
    stage = kind.stage(KilledConfig.model_validate({"what": what}))
    out = io.StringIO()

    def tracker(driver: str) -> Tracker:
        return Tracker(f"sqlite:///{tmp_path}/mlflow.db", "test", tmp_path / "spool", driver)

    def run() -> runner.Outcome:
        console = Console(file=out, width=200)
        return runner.run([stage], Folder.at(tmp_path), "toy", ComputeConfig(), tracker, console)

    if what == "stage":
        with pytest.raises(StageFailed, match=message):
            run()
    else:
        assert run().built == ("killed",)
    text = out.getvalue()
    assert text.count(message) == 1
    assert text.count("note     before") + text.count("note     after") == notes
    assert "Traceback" not in text
