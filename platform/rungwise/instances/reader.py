"""Read instances by index: the same rows on any worker, at any step, for any world size. Shards are
memory-mapped: local files in place, remote files through a cache on disk.

B batch
"""

import contextlib
import fcntl
import os
import tempfile
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rungwise.core.arrays import Ints
from rungwise.core.errors import DataError, UserError, disk_explained, explain_connection_errors
from rungwise.core.stages.artifact import Artifact
from rungwise.core.storage.folder import Folder, download, file_digest, filesystem
from rungwise.instances import shards
from rungwise.instances.batch import Batch
from rungwise.instances.masking import Vocabulary
from rungwise.instances.shards import PaddedRows, Shard, join_rows, pad_rows
from rungwise.instances.summary import InstancesSummary, ShardFile, read_kind

CACHE_BYTES = 8 << 30
_OPEN_SHARDS = 128  # mappings, each with a file descriptor and its offsets in memory
_PARALLEL_DOWNLOADS = 4
_ATTEMPTS = 3
_ABANDONED_SECONDS = 600.0  # a download is written to in far less
_LOCKS = 256  # a digest maps to one of them; a collision only costs waiting
_MEND = "delete the folder of this artifact and run again to rebuild it"


class ShardStore:
    """The shards of one split. Any number of threads may use it."""

    def __init__(
        self,
        folder: Folder,
        files: Sequence[ShardFile],
        cache_bytes: int = CACHE_BYTES,
        cache_folder: Path | None = None,
    ) -> None:
        """Open `files` of `folder`. `cache_bytes` bounds the cache of the whole machine, not of
        this process. Raises UserError if it cannot hold the largest shard, or if the default cache
        folder is another user's."""
        self._folder, self._files = folder, files
        self._lock = threading.Lock()
        self._open: OrderedDict[int, Shard] = OrderedDict()
        self._verified: set[int] = set()
        self._queue: deque[int] = deque()
        self._threads = 0
        self._cache: CacheFolder | None = None
        if folder.remote:
            # Created once: fsspec would create one for each thread that asks.
            self._filesystem, self._root = filesystem(folder.uri)
            largest = max((file.bytes for file in files), default=0)
            if largest > cache_bytes:
                raise UserError(
                    f"cache_bytes is {cache_bytes:,}, but a shard in {folder.uri} has {largest:,} "
                    "bytes; raise cache_bytes"
                )
            self._cache = CacheFolder(cache_folder or _default_folder(), cache_bytes)

    def get(self, number: int) -> Shard:
        """Return the shard, memory-mapped; its digest is checked once per process. Raises DataError
        if the bytes do not match the record, UserError if the disk is full or the cache too
        small."""
        with self._lock:
            if number in self._open:
                self._open.move_to_end(number)
                return self._open[number]
        for _ in range(_ATTEMPTS):
            path = self._local_path(number)
            try:
                shard = shards.read_shard(path)
            except DataError:
                if path.exists():
                    raise
                continue  # another process has evicted it
            with self._lock:
                self._open[number] = shard
                while len(self._open) > _OPEN_SHARDS:
                    self._open.popitem(last=False)
            return shard
        raise UserError(
            f"shards of {self._folder.uri} are evicted before they can be opened: cache_bytes is "
            "less than the readers of this machine use at once; raise it"
        )

    def prefetch(self, numbers: Iterable[int]) -> None:
        """Fetch and check these shards in the background, in this order. Replaces shards of an
        earlier call that have not been started, and stops where the cache would be full. Errors are
        suppressed here; `get` raises them."""
        queue: deque[int] = deque()
        room = self._cache.limit if self._cache else sum(file.bytes for file in self._files)
        for number in map(int, numbers):
            room -= self._files[number].bytes
            if room < 0:
                break
            queue.append(number)
        with self._lock:
            self._queue = queue
            starting = min(_PARALLEL_DOWNLOADS - self._threads, len(queue))
            self._threads += starting
        for _ in range(starting):
            threading.Thread(target=self._fetch_queue, name="shards", daemon=True).start()

    def _fetch_queue(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._threads -= 1
                    return
                number = self._queue.popleft()
                is_open = number in self._open
            if not is_open:
                # `get` will raise the error to its caller.
                with contextlib.suppress(Exception):
                    self._local_path(number)

    def _local_path(self, number: int) -> Path:
        """Return a verified local path of the shard."""
        file = self._files[number]
        if self._cache is None:
            path = self._folder.local(file.file)  # compares it with the record
            if not path.exists():
                raise DataError(f"{path} is in the record but is missing; {_MEND}")
            return path
        path = self._cache.path(file.sha256)
        with self._cache.locked(str(int(file.sha256[:8], 16) % _LOCKS)):
            with contextlib.suppress(FileNotFoundError):  # another process may evict it
                os.utime(path)
                if number not in self._verified and file_digest(path) != file.sha256:
                    # It was correct when written, so the disk has changed it since.
                    path.unlink(missing_ok=True)
            if not path.exists():
                with self._cache.add(file.sha256, file.bytes) as part:
                    self._download(file.file, file.sha256, part)
                with self._lock:  # close evicted shards, so that their disk space is freed
                    for other in list(self._open):
                        if not self._cache.path(self._files[other].sha256).exists():
                            del self._open[other]
            self._verified.add(number)
        return path

    def _download(self, name: str, expected: str, part: Path) -> None:
        uri = self._folder.path(name)
        try:
            with explain_connection_errors(self._folder.uri):
                path = f"{self._root}/{name}"
                download(self._filesystem, path, self._filesystem.info(path), part)
        except FileNotFoundError as error:
            raise DataError(f"{uri} is in the record but is missing; {_MEND}") from error
        if (digest := file_digest(part)) != expected:
            raise DataError(
                f"{uri} has changed since it was written: expected sha256 {expected}, found "
                f"{digest}; {_MEND}"
            )


class CacheFolder:
    """The folder shared by all processes of a machine: files by digest, locks that end with their
    process, and a bound on bytes, but for downloads in progress. The files opened longest ago are
    unlinked; they stay readable where they are mapped."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self.limit = folder, limit
        with _explain_errors(folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(self, digest: str) -> Path:
        return self._folder / f"{digest}.arrow"

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold a lock against all threads and processes of this machine."""
        locks = self._folder / "locks"
        # Created each time: cleaners of temporary files may remove empty folders.
        locks.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (locks / name).open("wb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def add(self, digest: str, size: int) -> Iterator[Path]:
        """Yield the path of a file of `size` bytes to write, under its lock. On a clean exit it
        becomes the file of `digest`, otherwise it is removed."""
        part = self._folder / f"{digest}.part"
        with _explain_errors(self._folder):
            self._make_room(size)
            try:
                yield part
                part.rename(self.path(digest))
            finally:
                part.unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        """Unlink the files opened longest ago until `size` more bytes fit, and what killed
        processes left."""
        files = []
        for path in self._folder.glob("*.*"):
            with contextlib.suppress(FileNotFoundError):  # another process may unlink it
                files.append((path.stat(), path))
        total = size + sum(status.st_size for status, _ in files)
        for status, path in sorted(files, key=lambda file: file[0].st_mtime_ns):
            if path.suffix == ".part":
                stays = time.time() - status.st_mtime < _ABANDONED_SECONDS
            else:
                stays = total <= self.limit
            if not stays:
                path.unlink(missing_ok=True)
                total -= status.st_size


def _default_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"rungwise-shards-{os.getuid()}"
    with _explain_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise UserError(
            f"the cache folder {folder} must be a folder of this user with mode 0700; "
            "remove it, or set TMPDIR to another place"
        )
    return folder


def _explain_errors(folder: Path) -> contextlib.AbstractContextManager[None]:
    return disk_explained(f"the shard cache {folder}", "cache folder", "lower cache_bytes, ")


class InstanceReader:
    """Reads one split of an instances artifact; opens shards when first needed. `cache_bytes`
    bounds the copies of remote shards on this machine's disk, in `cache_folder`."""

    def __init__(
        self,
        artifact: Artifact,
        split: str,
        cache_bytes: int = CACHE_BYTES,
        cache_folder: Path | None = None,
    ) -> None:
        summary = InstancesSummary.of(artifact)
        files = summary.split_files(split)
        self.config = read_kind(artifact)
        self.vocabulary = Vocabulary(summary.vocab_size, summary.special, summary.labels)
        self.rows_per_shard = np.array([row.instances for row in files], dtype=np.int64)
        self._begin = np.concatenate([[0], np.cumsum(self.rows_per_shard)])
        self.store = ShardStore(artifact.folder, files, cache_bytes, cache_folder)

    def __len__(self) -> int:
        return int(self._begin[-1])

    def batch(self, instances: Ints, epochs: Ints, seed: int) -> Batch[NDArray[Any]]:
        """The rows of these indices (B,), read in these epochs (B,)."""
        return self.config.batch(self.rows(instances), epochs, seed, self.vocabulary)

    def rows(self, instances: Ints) -> PaddedRows:
        """The rows with these indices (B,), padded to the width of the kind. Raises DataError if a
        shard is damaged."""
        parts, places = [], []
        pad_id = self.vocabulary.special.pad or 0
        for number, here in self._by_shard(instances):
            local = instances[here] - self._begin[number]
            shard = self.store.get(number)
            parts.append(pad_rows(shard, local, instances[here], self.config.width, pad_id))
            places.append(here)
        return join_rows(parts, places)

    def _by_shard(self, instances: Ints) -> list[tuple[int, Ints]]:
        """The number of each shard that holds some of the instances, and which ones."""
        shard_of = np.searchsorted(self._begin, instances, side="right") - 1
        numbers = np.unique(shard_of)
        by_shard = np.argsort(shard_of, kind="stable")
        ends = np.searchsorted(shard_of[by_shard], numbers, side="right")
        return list(zip(numbers.tolist(), np.split(by_shard, ends[:-1]), strict=True))
