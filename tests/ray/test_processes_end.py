"""However a run ends, no process that it has started is left."""

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.commands import RUNGWISE
from tests.conftest import small_recipe, write_corpus, write_recipe

_LONGEST_SECONDS = 180
_END_SECONDS = 20


def start(folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
    corpus = write_corpus(folder / "text", documents=30)
    blocks = small_recipe(folder / "root", corpus)
    recipe = write_recipe(folder / "recipe.yaml", blocks)
    log = folder / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*RUNGWISE, "run", "pretrain", str(recipe)],
            stdout=stream,
            stderr=stream,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
    return process, log


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("moment", ["starting Ray", "corpus ", "pretrain "])
def test_nothing_is_left(moment: str, number: signal.Signals, tmp_path: Path) -> None:
    process, log = start(tmp_path)
    driver = psutil.Process(process.pid)
    family: set[psutil.Process] = set()
    deadline = time.monotonic() + _LONGEST_SECONDS
    while moment not in log.read_text() or len(family) < 3:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline
        family |= {*driver.children(recursive=True)}
        time.sleep(0.02)
    family |= {*driver.children(recursive=True)}
    if number == signal.SIGINT:  # a terminal sends it to all of the foreground
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    process.wait(_LONGEST_SECONDS)
    _, left = psutil.wait_procs(family, _END_SECONDS)
    assert not left
    if number != signal.SIGKILL:
        # Python ends by SIGINT, which a shell shows as 130 too, if an `exec` was interrupted.
        assert process.returncode in (130, -signal.SIGINT)
        assert "what is finished or saved is kept, and the same command goes on" in log.read_text()
        assert "Traceback" not in log.read_text()
