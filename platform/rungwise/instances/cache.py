"""Memory-mapped shards by number: local files in place, remote files through a cache on disk.

One sequential GET fetches a remote shard and hashes it on arrival; it enters the cache
(cache_folder.py) only if its sha256 matches the record. On first use in a process, a cached file is
hashed again, and the artifact's folder checks a local file.
"""

import contextlib
import hashlib
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
import fsspec.asyn

from rungwise.core.errors import DataError, UserError
from rungwise.core.storage.folder import Folder, file_digest
from rungwise.core.storage.store_errors import DISK_IS_FULL
from rungwise.instances import shards
from rungwise.instances.cache_folder import CacheFolder, default_folder
from rungwise.instances.shards import Shard

_OPEN_SHARDS = 128  # mappings, each with a file descriptor and its offsets in memory
_PARALLEL_DOWNLOADS = 4
_ATTEMPTS = 3
_RETRY_SECONDS = 0.25
_CHUNK_BYTES = 1 << 20
_TOUCH_SECONDS = 1.0
_MEND = "delete the folder of this artifact and run again to rebuild it"


@dataclass(frozen=True)
class CacheStats:
    """Counters of one store since its creation."""

    downloads: int = 0  # successful ones
    downloaded_bytes: int = 0
    hits: int = 0  # calls of `get` that started no download
    evictions: int = 0  # files this process removed to make room


@dataclass
class _Open:
    shard: Shard
    path: Path
    touched: float


class ShardStore:
    """The shards of one split. Any number of threads may use it."""

    def __init__(
        self,
        folder: Folder,
        files: Sequence[str],
        digests: Sequence[str],
        sizes: Sequence[int],
        cache_bytes: int = 8 << 30,
        cache_folder: Path | None = None,
    ) -> None:
        """Open `files` of `folder`, with their `digests` (sha256 in hex) and `sizes` (bytes).

        `cache_bytes` bounds the cache of the whole machine, not of this process. Raises UserError
        if it cannot hold the largest shard, or if the default cache folder is not private.
        """
        assert len(files) == len(digests) == len(sizes)
        self._folder = folder
        self._files, self._digests, self._sizes = list(files), list(digests), list(sizes)
        self._lock = threading.Lock()
        self._busy: dict[int, threading.Lock] = {}
        self._open: OrderedDict[int, _Open] = OrderedDict()
        self._verified: set[int] = set()
        self._queue: deque[int] = deque()
        self._threads = 0
        self._stats = CacheStats()
        self._cache: CacheFolder | None = None
        if folder.remote:
            # Created once: fsspec would create one for each thread that asks.
            self._filesystem, self._root = fsspec.core.url_to_fs(folder.uri)
            largest = max(self._sizes, default=0)
            if largest > cache_bytes:
                raise UserError(
                    f"cache_bytes is {cache_bytes:,}, but a shard in {folder.uri} has {largest:,} "
                    "bytes; raise cache_bytes"
                )
            self._cache = CacheFolder(cache_folder or default_folder(), cache_bytes)

    def __len__(self) -> int:
        return len(self._files)

    @property
    def stats(self) -> CacheStats:
        return self._stats

    def get(self, number: int) -> Shard:
        """Return the shard, memory-mapped; its digest is checked once per process.

        Raises DataError if the bytes do not match the record, UserError if the disk is full or the
        cache too small.
        """
        shard = self._opened(number)
        if shard is not None:
            self._count(hits=1)
            return shard
        # Wait for a shard that another thread is fetching.
        with self._busy.setdefault(number, threading.Lock()):
            fetched = False
            for _ in range(_ATTEMPTS):
                # Another process may evict the file before it is mapped.
                with contextlib.suppress(FileNotFoundError):
                    path, downloaded = self._present(number)
                    fetched |= downloaded
                    shard = _mapped(path)
                    self._keep_open(number, shard, path)
                    self._count(hits=int(not fetched))
                    return shard
        raise UserError(
            f"shards of {self._folder.uri} are evicted before they can be opened: cache_bytes is "
            "less than the readers of this machine use at once; raise it"
        )

    def prefetch(self, numbers: Iterable[int]) -> None:
        """Fetch and check these shards in the background, in this order.

        Replaces shards of an earlier call that have not been started, and stops where the cache
        would be full. Errors are suppressed here; `get` raises them.
        """
        queue: deque[int] = deque()
        room = self._cache.limit if self._cache else sum(self._sizes)
        for number in map(int, numbers):
            room -= self._sizes[number]
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
            if self._opened(number) is None:
                # `get` will raise the error to its caller.
                with (
                    contextlib.suppress(Exception),
                    self._busy.setdefault(number, threading.Lock()),
                ):
                    self._present(number)

    def _keep_open(self, number: int, shard: Shard, path: Path) -> None:
        with self._lock:
            self._open[number] = _Open(shard, path, time.monotonic())
            while len(self._open) > _OPEN_SHARDS:
                self._open.popitem(last=False)

    def _opened(self, number: int) -> Shard | None:
        """Return the shard if it is open, and mark its cache file as used."""
        now = time.monotonic()
        with self._lock:
            entry = self._open.get(number)
            if entry is None:
                return None
            self._open.move_to_end(number)
            if self._cache is not None and now - entry.touched > _TOUCH_SECONDS:
                entry.touched = now
                self._cache.touch(entry.path)
        return entry.shard

    def _present(self, number: int) -> tuple[Path, bool]:
        """Return a verified local path of the shard, and whether this call downloaded it."""
        name, digest, size = self._files[number], self._digests[number], self._sizes[number]
        if self._cache is None:
            path = self._folder.local(name)  # compares it with the record
            if not path.exists():
                raise DataError(f"{path} is in the record but is missing; {_MEND}")
            return path, False
        path, downloaded = self._download(number)
        if (
            not downloaded
            and number not in self._verified
            and (path.stat().st_size != size or file_digest(path) != digest)
        ):
            # It was correct when written, so the disk has changed it since.
            self._cache.remove(path)
            path, downloaded = self._download(number)
        self._verified.add(number)
        return path, downloaded

    def _download(self, number: int) -> tuple[Path, bool]:
        assert self._cache is not None
        digest, size = self._digests[number], self._sizes[number]
        path = self._cache.path(digest)
        with self._cache.only_one(digest):
            if path.exists():
                self._cache.touch(path)
                return path, False
            with self._cache.claimed(digest, size) as (stream, evicted):
                self._forget(evicted)
                self._fetch(number, stream)
        self._count(downloads=1, downloaded_bytes=size)
        return path, True

    def _forget(self, evicted: set[str]) -> None:
        """Close evicted shards, so that their disk space is freed."""
        with self._lock:
            for number in [n for n in self._open if self._digests[n] in evicted]:
                del self._open[number]
        self._count(evictions=len(evicted))

    def _fetch(self, number: int, stream: BinaryIO) -> None:
        """Write the object to `stream` and check it; retry a broken or wrong download."""
        uri, expected = self._folder.path(self._files[number]), self._digests[number]
        for attempt in range(1, _ATTEMPTS + 1):
            digest = hashlib.sha256()
            stream.seek(0)
            try:
                for chunk in _chunks(self._filesystem, f"{self._root}/{self._files[number]}"):
                    digest.update(chunk)
                    stream.write(chunk)
            except FileNotFoundError as error:
                raise DataError(f"{uri} is in the record but is missing; {_MEND}") from error
            except PermissionError as error:
                raise UserError(f"cannot read {uri} ({error}); check the credentials") from error
            except Exception as error:
                if attempt == _ATTEMPTS or getattr(error, "errno", None) in DISK_IS_FULL:
                    raise
            else:
                if digest.hexdigest() == expected:
                    stream.truncate()  # an earlier attempt may have been longer
                    return
                if attempt == _ATTEMPTS:
                    raise DataError(
                        f"{uri} has changed since it was written: expected sha256 {expected}, "
                        f"found {digest.hexdigest()}; {_MEND}"
                    )
            time.sleep(_RETRY_SECONDS * 4 ** (attempt - 1))

    def _count(self, **more: int) -> None:
        with self._lock:
            self._stats = replace(
                self._stats, **{name: getattr(self._stats, name) + n for name, n in more.items()}
            )


def _chunks(filesystem: Any, path: str) -> Iterator[bytes]:
    """Yield the bytes of one GET in chunks, outside fsspec's single event-loop thread."""
    stream: Any = fsspec.asyn.sync(filesystem.loop, filesystem.open_async, path, "rb")

    async def gathered() -> bytes:
        parts: list[bytes] = []
        missing = _CHUNK_BYTES
        while missing and (part := await stream.read(missing)):
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    while chunk := fsspec.asyn.sync(filesystem.loop, gathered):
        yield chunk


def _mapped(path: Path) -> Shard:
    """Map a shard file; raises FileNotFoundError if it was evicted meanwhile."""
    try:
        return shards.read_shard(path)
    except DataError:
        path.stat()
        raise
