"""Commands as a user gives them, in processes of their own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.conftest import REPOSITORY

RUNGWISE = [sys.executable, "-m", "rungwise"]
# Of a process that imports the platform and what tests share.
PYTHON_PATH = f"{REPOSITORY / 'platform'}{os.pathsep}{REPOSITORY}"


def environment(**more: str) -> dict[str, str]:
    """The variables of this process without a store or a cluster to join, and `more`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW", "RAY_ADDRESS"))}
    return kept | more


def execute(
    command: Sequence[str],
    folder: Path = REPOSITORY,
    variables: Mapping[str, str] | None = None,
    status: int | None = 0,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; if it ends with another status, the test fails with its output."""
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=900, check=False
    )
    assert status in (None, done.returncode), f"{done.stdout}\n{done.stderr}"
    return done


def copy_project(folder: Path) -> Path:
    """What a user has of the project, without environments and artifacts; the folder."""
    ignored = shutil.ignore_patterns("__pycache__")
    for part in ("platform", "workflows"):
        shutil.copytree(REPOSITORY / part, folder / part, ignore=ignored)
    return folder
