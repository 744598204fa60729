"""Provenance of an artifact: the commit, the package versions and the machine that made it."""

import hashlib
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from rungwise.core.configuration.secrecy import redact

COMMIT_VARIABLE = "RUNGWISE_COMMIT"  # set for a job, whose folder is not a git checkout
PACKAGES = ("ray", "torch", "mlflow", "tokenizers", "numpy", "pyarrow")  # shown before the rest
_MOST_OF_DIFF = 1 << 16  # characters


def provenance() -> dict[str, Any]:
    """Describe what this process runs and where. It enters no fingerprint and has no secrets."""
    patch = read_patch()
    metadata = [each.metadata for each in importlib.metadata.distributions()]
    packages = sorted((each["Name"], each["Version"]) for each in metadata)
    return {
        "commit": os.environ.get(COMMIT_VARIABLE) or commit(),
        "uncommitted": patch and redact(patch),
        "command": redact(command()),
        "python": platform.python_version(),
        "packages": dict(packages),
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cpus": os.cpu_count()},
    }


def command() -> str:
    """The command of this process."""
    # Python gives the path of a module's file as the command.
    module = getattr(sys.modules["__main__"], "__spec__", None)
    name = module and module.name.removesuffix(".__main__")
    return shlex.join([*(["python", "-m", name] if name else [sys.argv[0]]), *sys.argv[1:]])


def commit(folder: Path | None = None) -> str | None:
    """The commit of the source tree or of `folder`, `-dirty` if changed; None without checkout."""
    options = ("--always", "--dirty", "--abbrev=12")
    return _git(folder or Path(__file__).parent, "describe", *options) or None


def read_patch() -> str | None:
    """The changes since the commit, or their length and hash if too long; None without any."""
    patch = _git(Path(__file__).parent, "diff", "HEAD", "--", ":/")
    if len(patch) > _MOST_OF_DIFF:
        digest = hashlib.sha256(patch.encode()).hexdigest()
        return f"a patch of {len(patch):,} characters, sha256 {digest}"
    return patch or None


def _git(folder: Path, *arguments: str) -> str:
    """The output of git; empty if it fails, for instance outside a checkout."""
    try:
        command = ["git", "-C", str(folder), *arguments]
        result = subprocess.run(command, capture_output=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout.decode("utf-8", "replace").strip()  # a patch may hold any bytes
