"""Spool files: events that wait for a server. Whoever writes a file holds a lock on it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
from pathlib import Path
from typing import IO, Any, NamedTuple

logger = logging.getLogger(__name__)


class Spooled(NamedTuple):
    """A spool file that no process is writing."""

    path: Path
    to: dict[str, Any]  # the server's URI, without a password, and the experiment
    events: list[dict[str, Any]]


def unsent(spool: Path) -> list[Spooled]:
    """The spool files that no living process is writing, oldest first, without torn last lines."""
    files = []
    for path in sorted(spool.glob("*.jsonl")):
        with contextlib.suppress(FileNotFoundError):
            stream = locked(path, "r+")
            if stream is None:
                continue
            with stream:
                lines = stream.read().split("\n")[:-1]
            events: list[dict[str, Any]] = []
            for line in lines:
                try:
                    events.append(json.loads(line))
                except ValueError:  # of a full disk or a crash
                    logger.warning("a corrupt line of %s is left out: %.80s", path, line)
            if events and events[0].pop("op") == "to":
                files.append(Spooled(path, events[0], events[1:]))
            else:
                logger.warning("%s does not say where its events belong; it stays", path)
    return files


def locked(path: Path, mode: str) -> IO[str] | None:
    """Open `path` and lock it until it is closed; None if another process holds the lock."""
    stream = path.open(mode, encoding="utf-8")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        stream.close()
        return None
    os.set_inheritable(stream.fileno(), False)
    return stream
