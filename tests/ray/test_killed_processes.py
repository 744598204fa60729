"""Processes of a run that are killed: one message, once, and true."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import StageFailed
from rungwise.core.storage.folder import Folder
from rungwise.core.tracking.tracker import Tracker
from rungwise.pipeline import runner
from tests.killed_stage import KILLED, KilledConfig


@pytest.mark.parametrize(
    ("what", "message", "notes"),
    [
        ("board", "the last reports are lost: the process that carries them was killed", 4),
        ("board for good", "no more reports come: the process that carries them was killed", 1),
        ("stage", "its process was killed, also when it was started again", 3),
        # It trains itself, so that it is started again as often as a worker would be.
        ("stage once", "done", 5),
    ],
)
def test_a_killed_process_is_said_once_and_costs_no_more_than_it_must(
    uri: str, tmp_path: Path, ray_session: None, what: str, message: str, notes: int
) -> None:
    stage = KILLED.stage(KilledConfig.model_validate({"what": what}))
    out = io.StringIO()

    def tracker(driver: str) -> Tracker:
        return Tracker(uri, "test", tmp_path / "spool", driver)

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
