"""Notes: what a stage leaves for its next attempt or for others, checked before it is trusted.

A note has a digest of its own, and the digests and stamps (`Folder.stamp`) of the files that it
marks as done. A file is hashed if it has another stamp; if it was changed, its work is done again.
Results that artifacts of a stage share have a note too:

    {root}/{stage}/.shared/{key}/...                        its files, and a note, written last
    {root}/{stage}/{label}-{fingerprint}/.shared.json       the results that an artifact was made of
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rungwise.core.stages.artifact import seal, unseal
from rungwise.core.storage.folder import Folder

logger = logging.getLogger(__name__)

_NO_FILES: Mapping[str, str] = MappingProxyType({})


def write_note(output: Folder, name: str, data: Any, files: Mapping[str, str] = _NO_FILES) -> None:
    """Write a note of plain JSON data that marks `files`, sha256 by name, as done."""
    marks = {file: [digest, output.stamp(file)] for file, digest in files.items()}
    note = seal({"content": data, "files": marks})
    output.write_bytes(name, json.dumps(note).encode())


def read_note(output: Folder, name: str) -> Any:
    """Return the content of a note; None if there is none, or it or a file of its was changed."""
    try:
        text = output.read_bytes(name)
    except FileNotFoundError:
        return None
    try:
        note = unseal(json.loads(text))
        if all(
            output.stamp(file) == stamp != "" or output.sha256(file) == digest
            for file, (digest, stamp) in note["files"].items()
        ):
            return note["content"]
    except (FileNotFoundError, ValueError, TypeError, RecursionError):
        pass
    logger.warning("%s or a file of its was damaged: its work is done again", output.path(name))
    return None


SHARED = ".shared"
_NOTE = "note.json"
_USED = ".shared.json"


@dataclass(frozen=True)
class SharedResults:
    """The results in a folder, by key."""

    folder: Folder

    @classmethod
    def beside(cls, artifact: Folder) -> "SharedResults":
        """The results that the artifacts beside this one share."""
        return cls(Folder(artifact.uri.rpartition("/")[0]) / SHARED)

    def __getitem__(self, key: str) -> Folder:
        return self.folder / key

    def read(self, key: str) -> Any:
        """Return the content of a result; None if there is none, or it is not whole."""
        return read_note(self[key], _NOTE)

    def write(self, key: str, content: Any, files: Mapping[str, str]) -> None:
        """Mark a result of `files`, sha256 by name, as whole."""
        write_note(self[key], _NOTE, content, files)

    def find_used(self) -> dict[str, str]:
        """Return all that artifacts beside this folder have noted by `note_used`."""
        stage = Folder(self.folder.uri.rpartition("/")[0])
        notes = (read_note(stage / name, _USED) for name in stage.subfolders())
        return {part: key for used in notes if used for part, key in used.items()}

    def find_unused(self) -> list[str]:
        """Return the keys of results of which no artifact was made."""
        keys = set(self.folder.subfolders())
        return sorted(keys - set(self.find_used().values())) if keys else []


def note_used(artifact: Folder, results: Mapping[str, str]) -> None:
    """Note of which results an artifact was made: their keys, by a name for what is reused."""
    write_note(artifact, _USED, dict(results))
