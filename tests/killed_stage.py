"""A stage that kills a process of its run; workers import it from here."""

import os
import signal
import time
from typing import Any, Literal

import ray

from rungwise.core.configuration.config import Config
from rungwise.core.stages.artifact import Artifact, Summary
from rungwise.core.stages.stage import Context, StageType
from rungwise.core.storage.folder import Folder


class KilledConfig(Config):
    what: Literal["board", "board for good", "stage", "stage once"]


def kill_and_report(
    config: KilledConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> Summary:
    board: Any = context.report._board  # pyright: ignore[reportAttributeAccessIssue]
    context.report.note("before")
    context.report.flush()
    if config.what.startswith("board"):
        time.sleep(1)  # until the driver has seen the note
    if config.what == "board":
        os.kill(ray.get(board.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
    elif config.what == "board for good":
        ray.kill(board)
    elif config.what == "stage" or not output.exists("killed"):
        output.write_bytes("killed", b"")
        os.kill(os.getpid(), signal.SIGKILL)
    for number in range(3):
        time.sleep(0.3)
        context.report.note(f"after {number}")
    output.write_bytes("a.txt", b"a")
    return Summary(headline="made")


KILLED = StageType(
    "killed",
    1,
    kill_and_report,
    Summary,
    trains_alone=lambda config, compute: config.what == "stage once",
)
