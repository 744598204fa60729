"""Storage: local folders and prefixes of an object store behind one interface. A file appears whole
or not at all: locally by a rename, on S3 because one object is one write.

An object is read complete, and all its bytes from one version: botocore retries refused, reset and
unanswered requests, s3fs a body that breaks off, and this module checks the length and ETag of
everything read. A store that stays unreachable raises one UserError after about two minutes."""

import contextlib
import errno
import functools
import hashlib
import io
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import fsspec

from rungwise.core.errors import (
    DataError,
    UserError,
    explain_connection_errors,
    explain_store_errors,
    is_conflict,
)
from rungwise.core.storage import hub

_STAGED = ".tmp"


def local_path(text: str | Path) -> Path:
    """A path on this machine, ~ and ~USER replaced. Raises UserError if there is no such user."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UserError(
            f"{text}: there is no such user; write ./{text} for a folder named so"
        ) from error


def cache_folder() -> Path:
    """The folder of this user and machine for what can be had again."""
    return Path(tempfile.gettempdir()) / f"rungwise-cache-{os.getuid()}"


@dataclass(frozen=True)
class Folder:
    """A local directory or an object-store prefix; `folder / name` is a folder inside it."""

    uri: str

    @classmethod
    def at(cls, uri: str | Path) -> "Folder":
        """The folder at a path or URL. Local paths become absolute, so that workers agree."""
        text = str(uri).removeprefix("file://")
        if is_remote(text):
            scheme, _, place = text.partition("://")
            return cls(f"{scheme}://{place.rstrip('/')}")
        return cls(str(local_path(text).absolute()))

    def __truediv__(self, name: str) -> "Folder":
        return Folder(f"{self.uri}/{name}")

    @property
    def remote(self) -> bool:
        return is_remote(self.uri)

    def path(self, name: str) -> str:
        return f"{self.uri}/{name}"

    def exists(self, name: str = "") -> bool:
        with self._store() as (fs, root):
            return bool(fs.exists(f"{root}/{name}" if name else root))

    def size(self, name: str) -> int:
        with self._store() as (fs, root):
            return int(fs.size(f"{root}/{name}"))

    def names(self) -> list[str]:
        """Relative names of all files below this folder, sorted; empty if it does not exist."""
        return list(self.sizes())

    def sizes(self) -> dict[str, int]:
        """Bytes of each file below this folder by relative name, sorted, from one listing."""
        with self._store() as (fs, root):
            root = fs._strip_protocol(root)
            try:
                files = fs.find(root, detail=True)
            except FileNotFoundError:
                return {}
        sizes = ((str(path)[len(root) :], info["size"]) for path, info in sorted(files.items()))
        return {name.lstrip("/"): int(size) for name, size in sizes}

    def subfolders(self) -> list[str]:
        """The names of the folders directly in this one, sorted."""
        return self._directly_here("directory")

    def files(self) -> list[str]:
        """The names of the files directly in this one, sorted."""
        return self._directly_here("file")

    def _directly_here(self, kind: str) -> list[str]:
        with self._store() as (fs, root):
            try:
                entries = fs.ls(root, detail=True)
            except FileNotFoundError:  # a prefix of a store ends with its last object
                return []
        paths = [str(entry["name"]) for entry in entries if entry["type"] == kind]
        return sorted(path.rstrip("/").rpartition("/")[2] for path in paths)

    def read_bytes(self, name: str) -> bytes:
        with explain_connection_errors(self.uri):
            while True:
                try:
                    with open_stream(self.path(name)) as stream:
                        return stream.read()
                except OSError as error:
                    # Replaced between s3fs's two requests: read the new version.
                    if not (isinstance(error.__cause__, OSError) and is_conflict(error.__cause__)):
                        raise

    def open(self, name: str) -> BinaryIO:
        """A seekable stream of one file; leaves no copy on this machine."""
        with explain_connection_errors(self.uri):
            return open_stream(self.path(name))

    def write_bytes(self, name: str, data: bytes, durable: bool = True) -> None:
        """Write one file atomically: a reader sees the old file, the new one, or none. Unless
        `durable`, a loss of power may take it, which is for what the next attempt writes again."""
        with self.staged(name, durable) as path:
            path.write_bytes(data)

    def overwrite(self, name: str, data: bytes) -> None:
        """Replace the bytes of a small file by as many others, in place: while a file is moved over
        another, some file systems leave both out of a listing. Raises FileNotFoundError if a local
        file is gone; in a store it is then written again."""
        if self.remote:
            self.write_bytes(name, data)
            return
        with explain_store_errors(self.uri), open(self.path(name), "r+b", buffering=0) as stream:
            stream.write(data)

    @contextlib.contextmanager
    def staged(self, name: str, durable: bool = True) -> Iterator[Path]:
        """A local path to write; becomes the file `name` if the block succeeds, else is dropped.
        Raises UserError if the disk is full or the folder cannot be written."""
        if self.remote:
            with tempfile.TemporaryDirectory(prefix="rungwise-") as scratch:
                path = Path(scratch) / Path(name).name
                with explain_store_errors(scratch):
                    yield path
                with explain_store_errors(self.uri):
                    fs, root = filesystem(self.uri)
                    try:
                        fs.put_file(str(path), f"{root}/{name}")
                    except FileNotFoundError:
                        # If the answer to a multipart completion was lost, the repeated completion
                        # fails because the upload is no longer known.
                        fs.put_file(str(path), f"{root}/{name}")
            return
        with explain_store_errors(self.uri):
            target = Path(self.uri) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            path = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}{_STAGED}"
            try:
                yield path
                if durable:
                    flush_to_disk(path)
                os.replace(path, target)
            finally:
                path.unlink(missing_ok=True)

    def remove_unfinished(self) -> None:
        """Remove what killed processes left below this folder while they wrote files."""
        for name in self.names():
            if (file := name.rpartition("/")[2]).startswith(".") and file.endswith(_STAGED):
                self.remove(name)

    def local(self, name: str, cache: Path | None = None) -> Path:
        """A local path with the bytes of `name`: the file itself, or a download in `cache`."""
        if is_mappable(self.uri):
            return Path(file_on_disk(self.path(name)))
        cache = cache or cache_folder()
        with self._store() as (fs, root):
            before = fs.info(f"{root}/{name}")
        tag = before.get("ETag") or before["size"]
        key = hashlib.sha256(f"{self.uri}/{name}#{tag}".encode()).hexdigest()[:32]
        target = cache / key / Path(name).name
        if not target.exists():
            staged = Folder(str(target.parent)).staged(target.name)
            with staged as path, explain_connection_errors(self.uri):
                download(fs, f"{root}/{name}", before, path)
        return target

    def link_file(self, source: "Folder", file: str, name: str) -> None:
        """Put a file of another folder here, without its bytes being written twice if both are on
        one disk; in a store, which copies it."""
        if self.remote:
            with self._store() as (fs, root), source._store() as (_, place):
                fs.cp_file(f"{place}/{file}", f"{root}/{name}")
            return
        with self.staged(name, durable=False) as path:
            try:
                os.link(source.path(file), path)  # its bytes are on the disk already
            except OSError:
                shutil.copyfile(source.path(file), path)
                flush_to_disk(path)

    def copy_file(self, source: Path, name: str) -> None:
        with self.staged(name) as path:
            shutil.copyfile(source, path)

    def remove(self, name: str = "") -> None:
        """Delete one file or the whole folder; does nothing if it does not exist."""
        with explain_store_errors(self.uri), self._store() as (fs, root):
            path = f"{root}/{name}" if name else root
            while fs.exists(path):
                try:
                    fs.rm(path, recursive=True)
                    return
                except FileNotFoundError:  # another process removed a part of it
                    continue
                except OSError as error:  # or wrote one
                    if error.errno not in (errno.ENOTEMPTY, errno.EISDIR):
                        raise

    def sha256(self, name: str) -> str:
        """Hexadecimal SHA-256 of one file, read in pieces."""
        with explain_connection_errors(self.uri), open_stream(self.path(name)) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    def stamp(self, name: str) -> str:
        """Return a text that another write of the file changes: the ETag of an object, "" in a
        store without them; else inode, size and time of modification, of one length. Raises
        FileNotFoundError."""
        if self.remote:
            with self._store() as (fs, root):
                return object_tag(fs.info(f"{root}/{name}"))
        info = os.stat(self.path(name))
        return f"{info.st_ino:016x}-{info.st_size:016x}-{info.st_mtime_ns:016x}"

    def check_writable(self, key: str) -> None:
        """Raise UserError, naming the config key `key`, unless a file can be written here."""
        probe = f".rungwise-{uuid.uuid4().hex[:8]}"
        try:
            self.write_bytes(probe, b"")
            self.remove(probe)
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"{key}: cannot write to {self.uri} ({error}); choose another {key}"
            ) from error

    def free_bytes(self) -> int | None:
        """Free bytes on the disk of a local folder; None for a remote one."""
        return None if self.remote else shutil.disk_usage(self.existing()).free

    def existing(self) -> Path:
        """This local folder or its nearest existing parent."""
        path = Path(self.uri)
        return next(place for place in (path, *path.parents) if place.exists())

    @contextlib.contextmanager
    def _store(self) -> Iterator[tuple[Any, str]]:
        """The file system and this folder's path on it; errors of S3 become a UserError."""
        with explain_connection_errors(self.uri):
            yield filesystem(self.uri)


def file_digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def flush_to_disk(path: Path | str) -> None:
    """Flush a file, or the entries of a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Bytes per request: large enough to hide the latency.
_RANGE_BYTES = 8 << 20
_RANGES_AT_ONCE = 8
# s3fs retries five times, with growing pauses, after botocore gives up: 20 attempts a request.
_ATTEMPTS = 4
_CONNECT_SECONDS = 5
_ANSWER_SECONDS = 30
_SHORT_ANSWERS = 3


def is_remote(uri: str) -> bool:
    """True for `s3://...` and other URLs, False for local paths."""
    return "://" in uri and not uri.startswith("file://")


def is_mappable(uri: str) -> bool:
    """Whether the file is on this machine's disk, or is copied there to be read."""
    return hub.is_hub(uri) or not is_remote(uri)


def file_on_disk(uri: str) -> str:
    """The path of a file that `is_mappable`; fetches a file of the hub that is not there."""
    return str(hub.local_copy(uri)) if hub.is_hub(uri) else uri.removeprefix("file://")


def open_stream(uri: str, tag: str = "") -> io.BufferedReader:
    """Open a seekable stream of a file or an object. Raises DataError if its ETag is not `tag`."""
    if is_mappable(uri):
        return open(file_on_disk(uri), "rb")
    fs, path = filesystem(uri)
    return _open_object(fs, path, tag)


def download(fs: Any, path: str, before: dict[str, Any], target: Path) -> None:
    """Download an object to `target`. Raises DataError if it was replaced since info `before`."""
    with _open_object(fs, path, object_tag(before)) as stream, target.open("wb") as file:
        shutil.copyfileobj(stream, file, _RANGES_AT_ONCE * _RANGE_BYTES)


def _open_object(fs: Any, path: str, tag: str) -> io.BufferedReader:
    # s3fs sends the current tag with every range, so that no two versions are mixed.
    opened = fs.open(path, "rb", cache_type="none")
    if tag and object_tag(opened.details) not in (tag, ""):  # a server of files tells none here
        raise DataError(f"{path} has changed since it was listed; run again")
    fetch = opened.cache.fetcher

    def fetch_ranges(start: int, end: int) -> bytes:
        end = min(end, opened.size)

        def fetch_range(first: int) -> bytes:
            return _whole(fetch, first, min(first + _RANGE_BYTES, end), path)

        firsts = range(start, end, _RANGE_BYTES)
        if len(firsts) < 2:
            return b"".join(map(fetch_range, firsts))
        with ThreadPoolExecutor(_RANGES_AT_ONCE) as pool:
            return b"".join(pool.map(fetch_range, firsts))

    opened.cache.fetcher = fetch_ranges
    return io.BufferedReader(opened, _RANGE_BYTES)


def _whole(fetch: Callable[[int, int], bytes], start: int, end: int, uri: str) -> bytes:
    """Fetch a range, retrying if fewer bytes arrive. Raises DataError if they never do."""
    size, data = end - start, b""
    for _ in range(_SHORT_ANSWERS):
        data = fetch(start, end)
        if len(data) == size:
            return data
    raise DataError(
        f"{uri}: asked {_SHORT_ANSWERS} times for {size:,} bytes, the store sent {len(data):,}; "
        "check the store and whatever stands before it"
    )


def object_tag(info: dict[str, Any]) -> str:
    """The ETag in an object's `info`; empty for a file."""
    return str(info.get("ETag") or "").strip('"')


def filesystem(uri: str) -> tuple[Any, str]:
    """The fsspec file system of a path or URL, and the path on it. Raises UserError for a URL
    without a bucket, or of a kind that fsspec or this environment does not know."""
    if not is_remote(uri):
        return fsspec.core.url_to_fs(uri)
    if hub.is_hub(uri):
        pinned = hub.pin(uri)
        return hub.HubFiles(pinned), pinned.removeprefix(hub.SCHEME)
    if not uri.partition("://")[2].strip("/"):
        raise UserError(f"{uri}: expected a bucket, as in s3://BUCKET/FOLDER")
    # Worker processes may write what this one reads, so listings must not be cached.
    options: dict[str, Any] = {"use_listings_cache": False}
    if uri.startswith(("s3://", "s3a://")):
        _retry_checksums()
        options["config_kwargs"] = {
            "connect_timeout": _CONNECT_SECONDS,
            "read_timeout": _ANSWER_SECONDS,
            "retries": {
                "mode": os.environ.get("AWS_RETRY_MODE", "standard"),
                "total_max_attempts": int(os.environ.get("AWS_MAX_ATTEMPTS", _ATTEMPTS)),
            },
        }
    try:
        return fsspec.core.url_to_fs(uri, **options)
    except (ImportError, ValueError) as error:
        raise UserError(f"{uri}: {error}") from error


@functools.cache
def _retry_checksums() -> None:
    """Make s3fs retry a body that fails its checksum, as a truncated one does."""
    from botocore.exceptions import FlexibleChecksumError
    from s3fs.core import add_retryable_error

    add_retryable_error(FlexibleChecksumError)
