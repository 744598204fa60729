"""Storage: local folders and object stores behind one interface.

A `Folder` is a place for files: a local directory or a prefix of an object store
(`s3://bucket/key`). Whatever is written appears whole or not at all: locally by a rename, on S3
because one object is one write. No other module tells a bucket from a folder.

Failing requests are retried: botocore repeats one that is refused, reset or not answered, s3fs one
whose body breaks off, and the length and ETag of everything read are checked here. A store that
stays away raises one UserError after some two minutes.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import io
import os
import re
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import fsspec
from fsspec.utils import glob_translate

from rungwise.core.errors import DataError, UserError

# The bytes of one request: enough that its latency does not count.
_RANGE_BYTES = 8 << 20
_RANGES_AT_ONCE = 8
# s3fs repeats five times what botocore gives up, with growing pauses: 20 attempts a request.
_ATTEMPTS = 4
_CONNECT_SECONDS = 5
_ANSWER_SECONDS = 30
_SHORT_ANSWERS = 3
_SETTLE_SECONDS = 3.0


def is_remote(uri: str) -> bool:
    """True for `s3://...` and other URLs, False for paths of this machine."""
    return "://" in uri and not uri.startswith("file://")


@dataclass(frozen=True)
class Folder:
    """A local directory or an object-store prefix; `folder / name` is a folder inside it."""

    uri: str

    @classmethod
    def at(cls, uri: str | Path) -> Folder:
        """The folder at a path or URL; a local path becomes absolute, so workers agree on it."""
        text = str(uri).removeprefix("file://")
        if is_remote(text):
            return cls(text.rstrip("/"))
        return cls(str(Path(text).expanduser().absolute()))

    def __truediv__(self, name: str) -> Folder:
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
        """Bytes of one file."""
        with self._store() as (fs, root):
            return int(fs.size(f"{root}/{name}"))

    def names(self) -> list[str]:
        """Relative names of every file below this folder, sorted; empty if it does not exist."""
        return list(self.sizes())

    def sizes(self) -> dict[str, int]:
        """The bytes of every file below this folder, by relative name, sorted; one listing."""
        with self._store() as (fs, root):
            if not fs.exists(root):
                return {}
            root = fs._strip_protocol(root)
            files = fs.find(root, detail=True)
        return {
            str(path)[len(root) :].lstrip("/"): int(info["size"])
            for path, info in sorted(files.items())
        }

    def subfolders(self) -> list[str]:
        """The names of the folders directly in this one, sorted."""
        return self._directly_here("directory")

    def files(self) -> list[str]:
        """The names of the files directly in this one, sorted."""
        return self._directly_here("file")

    def _directly_here(self, kind: str) -> list[str]:
        with self._store() as (fs, root):
            if not fs.exists(root):
                return []
            entries = fs.ls(root, detail=True)
        paths = [str(entry["name"]) for entry in entries if entry["type"] == kind]
        return sorted(path.rstrip("/").rpartition("/")[2] for path in paths)

    def read_bytes(self, name: str) -> bytes:
        with reached(self.uri):
            while True:
                try:
                    with _open(self.path(name)) as stream:
                        return stream.read()
                except OSError as error:
                    # Replaced between s3fs's two requests: read what is new.
                    if not (isinstance(error.__cause__, OSError) and _refused(error.__cause__)):
                        raise

    def open(self, name: str) -> BinaryIO:
        """A seekable stream of the bytes of one file; nothing is kept on this machine."""
        with reached(self.uri):
            return _open(self.path(name))

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write one file whole: a reader sees the old file, the new one, or none."""
        with self.staged(name) as path:
            path.write_bytes(data)

    def create(self, name: str, data: bytes) -> bool:
        """Write one small file unless there is one already; False if there is.

        Of several that create one name at once, one succeeds: on a disk by O_EXCL (a reader may
        meet the file while it is still empty), on a store by a put that is conditional. A store
        that does not know those is written to, and read again after _SETTLE_SECONDS: there, two
        can succeed if one of them takes longer than that for its put.
        """
        if not self.remote:
            path = Path(self.uri) / name
            with explained(self.uri), contextlib.suppress(FileExistsError):
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as stream:
                    stream.write(data)
                return True
            return False
        with self._store() as (fs, root):
            key = f"{root}/{name}"
            if fs.exists(key):
                return False
            try:
                fs.pipe_file(key, data, mode="create")
                # The same again, which must be refused: or else the condition was not looked at.
                fs.pipe_file(key, data, mode="create")
            except OSError as error:
                if _refused(error):
                    # By us, if the first answer was lost and botocore asked again.
                    return self._holds(name, data)
                if error.errno != errno.ENOSYS:
                    raise
                fs.pipe_file(key, data)
        time.sleep(_SETTLE_SECONDS)
        return self._holds(name, data)

    def _holds(self, name: str, data: bytes) -> bool:
        try:
            return self.read_bytes(name) == data
        except FileNotFoundError:
            return False

    @contextlib.contextmanager
    def staged(self, name: str) -> Iterator[Path]:
        """A local path to write; on a clean exit it becomes the file `name`, otherwise nothing.

        Raises UserError if the disk is full or the folder cannot be written.
        """
        if self.remote:
            with tempfile.TemporaryDirectory(prefix="rungwise-") as scratch:
                path = Path(scratch) / Path(name).name
                with explained(scratch):
                    yield path
                with explained(self.uri):
                    self._upload(path, name)
            return
        with explained(self.uri):
            target = Path(self.uri) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            path = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.tmp"
            try:
                yield path
                flush_to_disk(path)
                os.replace(path, target)
            finally:
                path.unlink(missing_ok=True)

    def _upload(self, path: Path, name: str) -> None:
        fs, root = _filesystem(self.uri)
        try:
            fs.put_file(str(path), f"{root}/{name}")
        except FileNotFoundError:
            # An upload in parts whose completion was answered into a broken connection is not
            # known any more when it is completed again.
            fs.put_file(str(path), f"{root}/{name}")

    def local(self, name: str, cache: Path | None = None) -> Path:
        """A path on this machine with the bytes of `name`: itself, or a download in `cache`."""
        if not self.remote:
            return Path(self.uri) / name
        cache = cache or Path(tempfile.gettempdir()) / f"rungwise-cache-{os.getuid()}"
        with self._store() as (fs, root):
            before = fs.info(f"{root}/{name}")
        tag = before.get("ETag") or before["size"]
        key = hashlib.sha256(f"{self.uri}/{name}#{tag}".encode()).hexdigest()[:32]
        target = cache / key / Path(name).name
        if not target.exists():
            with Folder(str(target.parent)).staged(target.name) as path, reached(self.uri):
                _download(fs, f"{root}/{name}", before, path)
        return target

    def copy_in(self, source: Path, name: str) -> None:
        """Put a copy of the local file `source` here as `name`."""
        with self.staged(name) as path:
            shutil.copyfile(source, path)

    def remove(self, name: str = "") -> None:
        """Delete one file, or the whole folder; one that does not exist is no error."""
        with explained(self.uri), self._store() as (fs, root):
            path = f"{root}/{name}" if name else root
            if fs.exists(path):
                fs.rm(path, recursive=True)

    def sha256(self, name: str) -> str:
        """Hexadecimal SHA-256 of one file, read in pieces."""
        with reached(self.uri), _open(self.path(name)) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

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
        """Bytes left on the disk of a local folder, None for a remote one."""
        if self.remote:
            return None
        return shutil.disk_usage(self.existing()).free

    def existing(self) -> Path:
        """This local folder, or the nearest above it that exists."""
        path = Path(self.uri)
        return next(place for place in (path, *path.parents) if place.exists())

    @contextlib.contextmanager
    def _store(self) -> Iterator[tuple[Any, str]]:
        """The file system and this folder's path on it; its silence becomes a UserError."""
        with reached(self.uri):
            yield _filesystem(self.uri)


@dataclass(frozen=True)
class SourceFile:
    """A file that the user provides: its URI, its name relative to the source, its size.

    `tag` is the object store's ETag, empty for a local file.
    """

    BLOCK_BYTES: ClassVar[int] = 64 << 20

    uri: str
    name: str
    size_bytes: int
    tag: str = ""

    def open(self) -> io.BufferedReader:
        """A seekable stream of the bytes; a DataError if the file changed since it was listed."""
        return _open(self.uri, self.tag)

    @property
    def num_blocks(self) -> int:
        """The blocks that are hashed apart; 1 for an empty file."""
        return max(1, -(-self.size_bytes // self.BLOCK_BYTES))

    def digest(self) -> str:
        """A digest of the bytes: the store's ETag and size on S3, for a local file SHA-256, which
        is taken of the SHA-256 of its blocks if it has several."""
        if self.tag:
            return f"{self.tag}-{self.size_bytes}"
        return digest_of_blocks([self.block_digest(n) for n in range(self.num_blocks)])

    def block_digest(self, number: int) -> bytes:
        """SHA-256 of one block."""
        with self.open() as stream:
            stream.seek(number * self.BLOCK_BYTES)
            digest = hashlib.sha256()
            left = self.BLOCK_BYTES
            while left and (chunk := stream.read(min(left, 1 << 20))):
                digest.update(chunk)
                left -= len(chunk)
        return digest.digest()


def digest_of_blocks(digests: Sequence[bytes]) -> str:
    """The digest of a file from those of its blocks, in their order."""
    return (digests[0] if len(digests) == 1 else hashlib.sha256(b"".join(digests)).digest()).hex()


def find_files(pattern: str) -> list[SourceFile]:
    """List what a path, a folder (all below it) or a glob matches, by name, without hidden files.

    What exists as it is written is meant as it is written, also where its name has `[`, `*` or `?`.
    Names are relative to the folder, or to that of a glob before its first wildcard, so that a
    corpus that moves keeps its document ids. Empty if nothing matches. A store is asked for one
    listing, whatever the number of files.
    """
    fs, base, below = _split(pattern)
    if below:
        depth = None if "**" in below else below.count("/") + 1
        matches = fs.find(base, maxdepth=depth, detail=True)
    elif fs.isdir(base):
        matches = fs.find(base, detail=True)
    elif fs.exists(base):
        matches = {base: fs.info(base)}
        base = base.rpartition("/")[0]
    else:
        return []
    matching = re.compile(glob_translate(below or "**"))
    files = []
    for name, info in sorted(matches.items()):
        relative = str(name)[len(base) :].lstrip("/")
        hidden = any(part.startswith(".") for part in relative.split("/"))
        if info["type"] == "file" and not hidden and matching.match(relative):
            uri = fs.unstrip_protocol(name) if is_remote(pattern) else str(name)
            files.append(SourceFile(uri, relative, int(info["size"]), _tag_of(info)))
    return files


def is_glob(pattern: str) -> bool:
    """Whether there are wildcards in it, other than in names of what exists."""
    return bool(_split(pattern)[2])


def _split(pattern: str) -> tuple[Any, str, str]:
    """The filesystem, the path that is meant literally, and the glob below it."""
    fs, path = _filesystem(pattern)
    parts = fs._strip_protocol(path).split("/")
    for number, part in enumerate(parts):
        if set(part) & set("*?[") and not fs.exists("/".join(parts[: number + 1])):
            base = "/".join(parts[:number]) or fs.root_marker
            return fs, base, "/".join(parts[number:])
    return fs, "/".join(parts), ""


class _Ranges(io.RawIOBase):
    """A stream of an object in a store; a range that arrives short is requested again."""

    def __init__(self, opened: Any, uri: str) -> None:
        self._opened = opened
        self._uri = uri

    def readinto(self, buffer: Any) -> int:
        data = self._fetch(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        # The inherited method asks for 8 kB at a time.
        return b"".join(iter(lambda: self._fetch(_RANGE_BYTES), b""))

    def _fetch(self, most: int) -> bytes:
        start = self._opened.tell()
        wanted = max(0, min(most, self._opened.size - start))

        def read() -> bytes:
            self._opened.seek(start)
            return self._opened.read(wanted)

        return _whole(read, wanted, self._uri)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._opened.seek(offset, whence)

    def tell(self) -> int:
        return self._opened.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._opened.close()
        super().close()


def _open(uri: str, tag: str = "") -> io.BufferedReader:
    if not is_remote(uri):
        return open(uri.removeprefix("file://"), "rb")
    fs, path = _filesystem(uri)
    # s3fs sends the tag it finds now with every range, so that no two versions are mixed.
    opened = fs.open(path, "rb", cache_type="none")
    current_tag = _tag_of(opened.details)
    if tag and current_tag != tag:
        raise DataError(f"{uri} has changed since it was listed; run again")
    return io.BufferedReader(_Ranges(opened, uri), _RANGE_BYTES)


def _download(fs: Any, path: str, before: dict[str, Any], target: Path) -> None:
    """Write the object at `path` to `target`, a few ranges at once, all of one version."""
    size = int(before["size"])

    def fetch(start: int) -> None:
        end = min(start + _RANGE_BYTES, size)
        data = _whole(lambda: fs.cat_file(path, start=start, end=end), end - start, path)
        os.pwrite(descriptor, data, start)

    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        with ThreadPoolExecutor(_RANGES_AT_ONCE) as pool:
            list(pool.map(fetch, range(0, size, _RANGE_BYTES)))
    finally:
        os.close(descriptor)
    if _tag_of(fs.info(path)) != _tag_of(before):
        raise DataError(f"{path} was replaced while it was read; run again")


def _whole(read: Callable[[], bytes], wanted: int, uri: str) -> bytes:
    """Read `wanted` bytes, again if fewer arrive. Raises DataError if they never do."""
    data = b""
    for _ in range(_SHORT_ANSWERS):
        data = read()
        if len(data) == wanted:
            return data
    raise DataError(
        f"{uri}: asked {_SHORT_ANSWERS} times for {wanted:,} bytes, the store sent {len(data):,}; "
        "check the store and whatever stands before it"
    )


def _tag_of(info: dict[str, Any]) -> str:
    return str(info.get("ETag") or "").strip('"')


def _filesystem(uri: str) -> tuple[Any, str]:
    if not is_remote(uri):
        return fsspec.core.url_to_fs(uri)
    # Worker processes may write what this one reads: no listing is remembered.
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
    return fsspec.core.url_to_fs(uri, **options)


@functools.cache
def _retry_checksums() -> None:
    """Make s3fs retry a body that fails its checksum: it was cut on the way."""
    from botocore.exceptions import FlexibleChecksumError
    from s3fs.core import add_retryable_error

    add_retryable_error(FlexibleChecksumError)


@contextlib.contextmanager
def explained(uri: str) -> Iterator[None]:
    """Turn a full disk, a refused write or an unreachable store into a UserError."""
    try:
        with reached(uri):
            yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"no room left on the disk of {uri}; free some space, or choose another root"
            ) from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR):
            raise UserError(
                f"cannot write to {uri} ({error.strerror}); choose another root"
            ) from error
        raise


@contextlib.contextmanager
def reached(uri: str, key: str = "root") -> Iterator[None]:
    """Turn an error of S3, or its silence, into a UserError that names the config key `key`.

    A missing file stays a FileNotFoundError, and errors that are not of S3 pass unchanged.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if message := _store_message(error):
            raise UserError(
                f"cannot use bucket {_bucket(uri)} ({message}); check AWS_ENDPOINT_URL, the "
                f"credentials and the network, or change {key} (now {uri})"
            ) from error
        raise


def _store_message(error: Exception) -> str:
    """The message of an S3 error in one line; empty if it is none, or only of a missing object."""
    # A module that has not been imported has raised nothing, and importing it takes a while.
    botocore = sys.modules.get("botocore.exceptions")
    if botocore is None:
        return ""
    s3_errors = (botocore.BotoCoreError, botocore.ClientError)
    cause = next((e for e in (error, error.__cause__) if isinstance(e, s3_errors)), None)
    if cause is None:
        return ""
    code = getattr(cause, "response", {}).get("Error", {}).get("Code")
    if code == "NoSuchBucket":
        return "there is no such bucket"
    return "" if isinstance(error, FileNotFoundError) else " ".join(str(cause).split())


def _refused(error: OSError) -> bool:
    """True if a conditional put met another object, or another put of the same one."""
    answer = getattr(error.__cause__, "response", {}).get("ResponseMetadata", {})
    return answer.get("HTTPStatusCode") in (409, 412)


def _bucket(uri: str) -> str:
    return uri.partition("://")[2].partition("/")[0]


def flush_to_disk(path: Path | str) -> None:
    """Flush a file, or the directory entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
