"""Provenance of an artifact: the commit, the package versions and the machine that made it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = ("ray", "torch", "mlflow", "tokenizers", "numpy", "pyarrow")


def provenance() -> dict[str, Any]:
    """The provenance of what this process makes, as plain data; it enters no fingerprint."""
    return {
        "commit": commit(),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cpus": os.cpu_count(),
        },
    }


def commit(folder: Path | None = None) -> str | None:
    """The commit of the source tree, or of `folder`, with `-dirty` if it has changes.

    None outside a checkout.
    """
    folder = folder or Path(__file__).parent
    try:
        return subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
