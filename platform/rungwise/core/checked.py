"""The folder of a finished artifact: each file is compared with the record when it is first read.

A file is hashed once a process, and again when its size or its time of change is another. What is
streamed from an object store (`open`) is not: there the store answers for the bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rungwise.core.errors import DataError
from rungwise.core.storage import Folder

RECORD = "artifact.json"

_digests: dict[str, dict[str, str]] = {}  # of the files of an artifact, by its place
_sound: set[tuple[str, int, int]] = set()  # files that were compared: path, size, time of change


def hidden(name: str) -> bool:
    """Whether a file is a stage's own, which no record names."""
    return name == RECORD or name.rpartition("/")[2].startswith(".")


@dataclass(frozen=True)
class CheckedFolder(Folder):
    """A folder in, or that of, the artifact at `root`. Reading a file raises DataError where it is
    not in the record or differs from it."""

    root: str

    @classmethod
    def of(cls, folder: Folder, record: dict[str, Any]) -> CheckedFolder:
        """The folder of the artifact with this record."""
        _digests[folder.uri] = {name: file["sha256"] for name, file in record["files"].items()}
        return cls(folder.uri, folder.uri)

    def __truediv__(self, name: str) -> Folder:
        return CheckedFolder(f"{self.uri}/{name}", self.root)

    def read_bytes(self, name: str) -> bytes:
        if not self.remote and not hidden(name):
            self.local(name)
        return super().read_bytes(name)

    def open(self, name: str) -> BinaryIO:
        if not self.remote:
            self.local(name)
        return super().open(name)

    def local(self, name: str, cache: Path | None = None) -> Path:
        path = super().local(name, cache)
        if not hidden(name) and path.exists():
            self._compare(name, path)
        return path

    def _compare(self, name: str, path: Path) -> None:
        name = f"{self.uri}/{name}".removeprefix(f"{self.root}/")
        state = path.stat()
        seen = (str(path), state.st_size, state.st_mtime_ns)
        if seen in _sound:
            return
        if self.root not in _digests:  # in another process than the one that loaded it
            record = json.loads(Folder(self.root).read_bytes(RECORD))
            CheckedFolder.of(Folder(self.root), record)
        expected = _digests[self.root].get(name)
        if expected is None:
            raise DataError(f"{self.root}/{name} is not in the record of its artifact; remove it")
        digest = Folder(str(path.parent)).sha256(path.name)
        if digest != expected:
            raise changed(f"{self.root}/{name}", expected, digest)
        _sound.add(seen)


def changed(path: str, expected: str, digest: str) -> DataError:
    """The error that a file is not what was written."""
    return DataError(
        f"{path} has changed since it was written: expected sha256 {expected[:12]}, found "
        f"{digest[:12]}; delete the folder to have it built again"
    )
