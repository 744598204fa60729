"""The folder of a local cluster and its files, besides the record (cluster/registry.py).

token         readable only by its owner; removed when the cluster ends
ray ->        scratch of Ray's nodes; elsewhere, since Unix sockets below it need a short path
ready         exists once everything has answered
logs/         one file per process, and each node's Ray logs after it has ended
prometheus/   configuration and measurements, kept for the next cluster of that name
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rungwise.cluster.ray_start import TOKEN_BYTES
from rungwise.cluster.registry import clusters_folder, forget
from rungwise.core.errors import UserError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")


class ClusterFolder:
    """The paths of one cluster. Raises UserError if `name` is not a valid folder name."""

    def __init__(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise UserError(
                f"--name is {name!r}; expected at most 40 letters, digits, dots, dashes and "
                "underscores, a letter or digit first"
            )
        self.name = name
        self.path = clusters_folder().absolute() / name
        self.token = self.path / "token"
        self.ready = self.path / "ready"
        self.logs = self.path / "logs"
        self.prometheus = self.path / "prometheus"
        self._link = self.path / "ray"

    @property
    def scratch(self) -> Path | None:
        return self._link.readlink() if self._link.is_symlink() else None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the cluster's lock, which the system releases when this process ends. Raises
        UserError if another command holds it."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.path / "lock").open("w") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UserError(
                    f"another rungwise up or down is at work on the cluster {self.name}; wait for "
                    "it, or end it with Ctrl-C"
                ) from error
            yield

    def create(self) -> Path:
        """Create a new token, empty logs and a new scratch folder; return the scratch folder."""
        shutil.rmtree(self.logs, ignore_errors=True)
        self.logs.mkdir(mode=0o700)
        self.prometheus.mkdir(mode=0o700, exist_ok=True)
        self.token.unlink(missing_ok=True)
        descriptor = os.open(self.token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w") as stream:
            stream.write(secrets.token_hex(TOKEN_BYTES))
        # The default temporary folder may have a path too long for a socket below it.
        short = "/tmp" if os.access("/tmp", os.W_OK) else None
        scratch = Path(tempfile.mkdtemp(prefix="rungwise-", dir=short))
        self._link.symlink_to(scratch)
        return scratch

    def clear(self) -> None:
        """Remove all but logs and measurements; the record goes last, so this can be repeated."""
        if scratch := self.scratch:
            for logs in sorted(scratch.glob("*/session_[0-9]*/logs")):
                copy = self.logs / "ray" / logs.parents[1].name
                shutil.rmtree(copy, ignore_errors=True)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(logs, copy)
            shutil.rmtree(scratch, ignore_errors=True)
            self._link.unlink()
        self.token.unlink(missing_ok=True)
        self.ready.unlink(missing_ok=True)
        forget(self.name)
