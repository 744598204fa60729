"""A folder of downloads shared by all processes of a machine, bounded in bytes.

Files are named by their sha256, so artifacts can share them. Space is reserved under one lock
(flock): sizes are summed, the least recently used files are unlinked, and the new file is allocated
in full before the lock is released, so downloads in progress count too. The mtime is the time of
last use. On Linux an unlinked file stays readable where it is mapped, so eviction never harms a
reader; its space is freed with the last mapping. A lock per digest lets one process download it
while others wait. Locks and claims end with their process.
"""

import contextlib
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from rungwise.core.errors import UserError
from rungwise.core.storage.store_errors import disk_explained

_WAIT_SECONDS = 0.05
_LOCKS = 256  # a digest maps to one of them; a collision only costs waiting


class CacheFolder:
    """The shared folder: files by digest, locks, and a bound on bytes. Files are added and removed
    only under the lock "room", so sums of sizes are exact."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self.limit = folder, limit
        with _explained(folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(self, digest: str) -> Path:
        return self._folder / f"{digest}.arrow"

    def remove(self, path: Path) -> None:
        with self._locked("room"):
            path.unlink(missing_ok=True)

    def touch(self, path: Path) -> None:
        # Another process may have evicted it; a mapped file stays readable.
        with contextlib.suppress(FileNotFoundError):
            os.utime(path)

    @contextlib.contextmanager
    def only_one(self, digest: str) -> Iterator[None]:
        """Hold the lock of a digest, against all threads and processes of this machine."""
        with self._locked(str(int(digest[:8], 16) % _LOCKS)):
            yield

    @contextlib.contextmanager
    def claimed(self, digest: str, size: int) -> Iterator[tuple[BinaryIO, set[str]]]:
        """Yield a file of `size` allocated bytes to write, and the digests evicted for it. On a
        clean exit it becomes the file of `digest`, otherwise it is removed."""
        part = self._folder / f"{digest}.part"
        with _explained(self._folder):
            while (claim := self._claim(part, size)) is None:
                time.sleep(_WAIT_SECONDS)  # downloads fill the cache; one must end first
            stream, evicted = claim
            with stream:
                try:
                    yield stream, evicted
                except BaseException:
                    self.remove(part)
                    raise
                stream.flush()
                with self._locked("room"):
                    part.rename(self.path(digest))

    def _claim(self, part: Path, size: int) -> tuple[BinaryIO, set[str]] | None:
        with self._locked("room"):
            evicted = self._make_room(size)
            return None if evicted is None else (_allocated(part, size), evicted)

    def _make_room(self, size: int) -> set[str] | None:
        """Unlink the least recently used files until `size` more bytes fit. Returns None if
        downloads in progress leave too little room."""
        files: list[tuple[os.stat_result, str]] = []
        under_way = 0
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(".arrow"):
                    files.append((entry.stat(), entry.path))
                elif entry.name.endswith(".part"):
                    if _abandoned(entry.path):
                        os.unlink(entry.path)
                    else:
                        under_way += entry.stat().st_size
        if under_way + size > self.limit:
            return None
        total = under_way + sum(status.st_size for status, _ in files)
        evicted: set[str] = set()
        for status, path in sorted(files, key=lambda file: file[0].st_mtime_ns):
            if total + size <= self.limit:
                break
            os.unlink(path)
            total -= status.st_size
            evicted.add(Path(path).stem)
        return evicted

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        locks = self._folder / "locks"
        # Created each time: cleaners of temporary files may remove empty folders.
        locks.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (locks / name).open("wb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield


def _allocated(part: Path, size: int) -> BinaryIO:
    """Create a file, locked and fully allocated, so that a full disk is noticed here."""
    stream = part.open("wb")
    try:
        # The lock tells a download in progress from one whose process died.
        fcntl.flock(stream, fcntl.LOCK_EX)
        if size:
            os.posix_fallocate(stream.fileno(), 0, size)
    except BaseException:
        part.unlink()
        stream.close()
        raise
    return stream


def _abandoned(part: str) -> bool:
    with open(part, "rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def default_folder() -> Path:
    """The default cache folder, a temporary one; UserError if others could access it."""
    folder = Path(tempfile.gettempdir()) / f"rungwise-shards-{os.getuid()}"
    with _explained(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    closed = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
    if not closed or status.st_uid != os.getuid():
        raise UserError(
            f"the cache folder {folder} must be a folder of this user with mode 0700; "
            "remove it, or set TMPDIR to another place"
        )
    return folder


def _explained(folder: Path) -> contextlib.AbstractContextManager[None]:
    return disk_explained(f"the shard cache {folder}", "cache folder", "lower cache_bytes, ")
