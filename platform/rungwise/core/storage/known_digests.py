"""Digests of files that were hashed before, kept on this machine, so that a large corpus is not
read by every command. As in git's index, a file is unchanged while its inode, size and times are
those that it was hashed with: the time at which an inode changed, unlike that of modification, is
set by the system alone."""

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterable, Mapping

from rungwise.core.storage.folder import cache_folder
from rungwise.core.storage.object_store import is_remote
from rungwise.core.storage.source_files import SourceFile

_TICK_NS = 2_000_000_000  # two changes within a tick of a file system's clock may have one time
_TABLE = "CREATE TABLE IF NOT EXISTS digests (path TEXT PRIMARY KEY, state TEXT, digest TEXT)"


def describe_state(file: SourceFile) -> str:
    """Return what any change of a local file changes; "" of other files, of one that changed since
    it was listed, and of one that changed just now, since the next change may not show."""
    if type(file) is not SourceFile or is_remote(file.uri):
        return ""
    try:
        info = os.stat(file.uri)
    except OSError:
        return ""
    if info.st_size != file.size_bytes or time.time_ns() - info.st_ctime_ns < _TICK_NS:
        return ""
    parts = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
    return "-".join(map(str, parts))


def find_digests(states: Mapping[str, str]) -> dict[str, str]:
    """Return the digests, by path, of the files that have the state, by path, that was kept."""
    query = "SELECT digest FROM digests WHERE path = ? AND state = ?"
    # Without a disk for them, all is hashed.
    with contextlib.suppress(sqlite3.Error, OSError), contextlib.closing(_open()) as database:
        rows = ((path, database.execute(query, (path, states[path])).fetchone()) for path in states)
        return {path: row[0] for path, row in rows if row}
    return {}


def keep_digests(rows: Iterable[tuple[str, str, str]]) -> None:
    """Keep the digests of files: rows of path, state before the file was read, and digest."""
    with (
        contextlib.suppress(sqlite3.Error, OSError),
        contextlib.closing(_open()) as database,
        database,
    ):
        database.executemany("REPLACE INTO digests VALUES (?, ?, ?)", rows)


def _open() -> sqlite3.Connection:
    folder = cache_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    database = sqlite3.connect(folder / "sha256.sqlite")
    database.execute(_TABLE)
    return database
