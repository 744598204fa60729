"""The only file that knows a bucket from a folder.

A `Folder` is a place for files: a local directory or a prefix of an object store
(`s3://bucket/key`). Whatever is written appears whole or not at all: locally by a rename, on S3
because one object is one write. Everything else in the package speaks of folders and names.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import fsspec

from rungwise.errors import UserError

_CHUNK_BYTES = 1 << 20


def is_remote(uri: str) -> bool:
    """True for `s3://...` and other URLs, False for paths of this machine."""
    return "://" in uri and not uri.startswith("file://")


@dataclass(frozen=True)
class Folder:
    """A local directory or an object-store prefix. `Folder.at` makes one; `/` goes deeper."""

    uri: str

    @classmethod
    def at(cls, uri: str | Path) -> Folder:
        """A folder for a path or URL; a local path becomes absolute, so workers agree on it."""
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
        fs, root = self._filesystem()
        return bool(fs.exists(f"{root}/{name}" if name else root))

    def size(self, name: str) -> int:
        """Bytes of one file."""
        fs, root = self._filesystem()
        return int(fs.size(f"{root}/{name}"))

    def names(self) -> list[str]:
        """Every file below this folder, relative, sorted. Empty if there is no such folder."""
        fs, root = self._filesystem()
        if not fs.exists(root):
            return []
        root = fs._strip_protocol(root)
        fs.invalidate_cache()
        return sorted(str(found)[len(root) :].lstrip("/") for found in fs.find(root))

    def subfolders(self) -> list[str]:
        """The names of the folders directly in this one, sorted."""
        fs, root = self._filesystem()
        if not fs.exists(root):
            return []
        fs.invalidate_cache()
        found = [item["name"] for item in fs.ls(root, detail=True) if item["type"] == "directory"]
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)

    def read_bytes(self, name: str) -> bytes:
        fs, root = self._filesystem()
        return fs.cat_file(f"{root}/{name}")

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write one file whole: a reader sees the old file, the new one, or none."""
        with self.staged(name) as path:
            path.write_bytes(data)

    @contextlib.contextmanager
    def staged(self, name: str) -> Iterator[Path]:
        """A local path to write; on a clean exit it becomes the file `name`, otherwise nothing.

        Raises UserError if the disk is full or the folder cannot be written.
        """
        with explained(self.uri):
            if self.remote:
                with tempfile.TemporaryDirectory(prefix="rungwise-") as scratch:
                    path = Path(scratch) / Path(name).name
                    yield path
                    fs, root = self._filesystem()
                    fs.put_file(str(path), f"{root}/{name}")
                return
            target = Path(self.uri) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            path = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.tmp"
            try:
                yield path
                _flush_to_disk(path)
                os.replace(path, target)
            finally:
                path.unlink(missing_ok=True)

    def local(self, name: str, cache: Path | None = None) -> Path:
        """A path on this machine with the bytes of `name`: itself, or a download in `cache`."""
        if not self.remote:
            return Path(self.uri) / name
        cache = cache or Path(tempfile.gettempdir()) / f"rungwise-cache-{os.getuid()}"
        fs, root = self._filesystem()
        tag = fs.info(f"{root}/{name}").get("ETag") or fs.size(f"{root}/{name}")
        key = hashlib.sha256(f"{self.uri}/{name}#{tag}".encode()).hexdigest()[:32]
        target = cache / key / Path(name).name
        if not target.exists():
            with Folder(str(target.parent)).staged(target.name) as path:
                fs.get_file(f"{root}/{name}", str(path))
        return target

    def copy_in(self, source: Path, name: str) -> None:
        """Put a copy of the local file `source` here as `name`."""
        with self.staged(name) as path:
            shutil.copyfile(source, path)

    def remove(self, name: str = "") -> None:
        """Delete one file, or the whole folder. No error if it is not there."""
        fs, root = self._filesystem()
        path = f"{root}/{name}" if name else root
        if fs.exists(path):
            fs.rm(path, recursive=True)

    def sha256(self, name: str) -> str:
        """Hexadecimal SHA-256 of one file, read in pieces."""
        fs, root = self._filesystem()
        with fs.open(f"{root}/{name}", "rb") as stream:
            return _sha256_of(stream)

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
            ) from (error)

    def free_bytes(self) -> int | None:
        """Bytes left on the disk of a local folder, None for a remote one."""
        if self.remote:
            return None
        path = Path(self.uri)
        while not path.exists():
            path = path.parent
        return shutil.disk_usage(path).free

    def _filesystem(self) -> tuple[Any, str]:
        # Worker processes may write what this one reads: no listing is remembered.
        options = {"use_listings_cache": False} if self.remote else {}
        fs, path = fsspec.core.url_to_fs(self.uri, **options)
        return fs, path


@dataclass(frozen=True)
class SourceFile:
    """One file of somebody else's that is read: its URI, its name below the source, its bytes."""

    uri: str
    name: str
    size_bytes: int

    def open(self) -> BinaryIO:
        # `fsspec.open` gives one OpenFile; the checker reads a list of them into it.
        return cast(fsspec.core.OpenFile, fsspec.open(self.uri, "rb")).open()

    def digest(self) -> str:
        """What changes when the bytes do: SHA-256 here, the store's own tag and size on S3."""
        if is_remote(self.uri):
            fs, path = fsspec.core.url_to_fs(self.uri)
            info = fs.info(path)
            return f"{info.get('ETag', '').strip(chr(34))}-{info['size']}"
        with self.open() as stream:
            return _sha256_of(stream)


def find_files(pattern: str) -> list[SourceFile]:
    """The files of a file, a folder (all below it) or a glob, sorted by name; hidden ones left out.

    Names are relative to the folder, or to the part of a glob before its first wildcard, so that a
    corpus that moves keeps its document ids. Empty if nothing matches.
    """
    fs, path = fsspec.core.url_to_fs(pattern)
    path = fs._strip_protocol(path)
    if any(letter in path for letter in "*?["):
        found = fs.glob(path, detail=True)
        fixed = path[: min(path.index(letter) for letter in "*?[" if letter in path)]
        base = fixed.rpartition("/")[0]
    elif fs.isdir(path):
        found, base = fs.find(path, detail=True), path
    elif fs.exists(path):
        found, base = {path: fs.info(path)}, path.rpartition("/")[0]
    else:
        return []
    files = []
    for name, info in sorted(found.items()):
        relative = str(name)[len(base) :].lstrip("/")
        hidden = any(part.startswith(".") for part in relative.split("/"))
        if info["type"] == "file" and not hidden:
            uri = fs.unstrip_protocol(name) if is_remote(pattern) else str(name)
            files.append(SourceFile(uri, relative, int(info["size"])))
    return files


@contextlib.contextmanager
def explained(uri: str) -> Iterator[None]:
    """Turn a full disk and a refused write into one sentence for the user."""
    try:
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


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256_of(stream: Any) -> str:
    digest = hashlib.sha256()
    while chunk := stream.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()
