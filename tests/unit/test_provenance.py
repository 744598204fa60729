"""Where an artifact comes from, as its record says it."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("started", "expected"),
    [(["-m", "asks"], "python -m asks 'a b' --c"), (["asks.py"], "asks.py 'a b' --c")],
)
def test_a_module_is_named_as_it_was_started_and_not_by_its_place(
    tmp_path: Path, started: list[str], expected: str
) -> None:
    place = "rungwise.core.stages.provenance"
    asks = f"from {place} import provenance\nprint(provenance()['command'])\n"
    (tmp_path / "asks.py").write_text(asks)
    command = [sys.executable, *started, "a b", "--c"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
