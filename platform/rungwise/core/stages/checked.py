"""The folder of a finished artifact: checks each file against the record when it is read.

Local files and cached copies are hashed once per process, and again if size or modification time
change. `open` and `read_bytes` download an object and hash it each time.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rungwise.core.configuration.canonical import fingerprint
from rungwise.core.errors import DataError
from rungwise.core.storage.folder import Folder, file_digest

RECORD = "artifact.json"
RECORD_FORMAT = 2

_digests: dict[str, dict[str, str]] = {}  # artifact URI -> file name -> sha256
_sound: set[tuple[str, int, int]] = set()  # verified files: path, size, modification time


def is_hidden(name: str) -> bool:
    """Whether a file is internal to a stage and therefore not in the record."""
    return name == RECORD or name.rpartition("/")[2].startswith(".")


def seal(record: dict[str, Any]) -> dict[str, Any]:
    """Add a digest of the whole record, so that edits are detected."""
    return record | {"sha256": fingerprint(record, length=64)}


def unseal(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without its seal. Raises ValueError if it was edited."""
    record = dict(record)
    stated, actual = record.pop("sha256", None), fingerprint(record, length=64)
    if stated != actual:
        raise ValueError(f"it was edited: its sha256 is {actual}, it says {stated}")
    return record


def read_record(folder: Folder) -> dict[str, Any]:
    """Read the record of an artifact, without its seal. Raises DataError if it is a link or a later
    version wrote it, and ValueError if it was edited."""
    if not folder.remote and (path := Path(folder.path(RECORD))).is_symlink():
        raise link_error(path)
    try:
        record = json.loads(folder.read_bytes(RECORD))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    # Before its digest, which a later version may compute in another way.
    if record["format"] > RECORD_FORMAT:
        later = f"{record['format']}, of a later rungwise"
        expected = f"format {RECORD_FORMAT} or before"
        raise DataError.at(folder.path(RECORD), expected, later, "update rungwise")
    return unseal(record)


@dataclass(frozen=True)
class CheckedFolder(Folder):
    """The artifact folder `root` or a folder inside it. Reading a file raises DataError if the file
    is not in the record or differs from it."""

    root: str

    @classmethod
    def of(cls, folder: Folder, record: dict[str, Any]) -> "CheckedFolder":
        _digests[folder.uri] = {name: file["sha256"] for name, file in record["files"].items()}
        return cls(folder.uri, folder.uri)

    def __truediv__(self, name: str) -> Folder:
        return CheckedFolder(f"{self.uri}/{name}", self.root)

    def read_bytes(self, name: str) -> bytes:
        with self.open(name) as stream:
            return stream.read()

    def open(self, name: str) -> BinaryIO:
        """Open a file whose bytes have all been verified. For an object this is a temporary copy,
        deleted when the stream is closed."""
        with tempfile.TemporaryDirectory(prefix="rungwise-") as scratch:
            return self.local(name, Path(scratch)).open("rb")

    def local(self, name: str, cache: Path | None = None) -> Path:
        path = super().local(name, cache)
        if is_hidden(name) or not path.exists():
            return path
        try:
            self._compare(name, path)
        except DataError:
            if not self.remote:
                raise
            path.unlink()  # the cached copy may be damaged rather than the object
            path = super().local(name, cache)
            self._compare(name, path)
        return path

    def _compare(self, name: str, path: Path) -> None:
        if path.is_symlink():
            raise link_error(path)
        state = path.stat()
        version = (str(path), state.st_size, state.st_mtime_ns)
        if version in _sound:
            return
        name = f"{self.uri}/{name}".removeprefix(f"{self.root}/")
        if self.root not in _digests:  # loaded by another process
            CheckedFolder.of(Folder(self.root), read_record(Folder(self.root)))
        expected = _digests[self.root].get(name)
        if expected is None:
            raise DataError(f"{self.root}/{name} is not in the record of its artifact; remove it")
        digest = file_digest(path)
        if digest != expected:
            raise change_error(f"{self.root}/{name}", expected, digest)
        _sound.add(version)


def link_error(path: Path) -> DataError:
    """Build the error for a link in place of a file."""
    return DataError(f"{path} is a link, where a file was written; put the file there")


def change_error(path: str, expected: str, digest: str) -> DataError:
    """Build the error for a file that differs from the record."""
    return DataError(
        f"{path} has changed since it was written: expected sha256 {expected[:12]}, found "
        f"{digest[:12]}; delete the folder to have it built again"
    )
