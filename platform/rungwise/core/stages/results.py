"""Results that artifacts of a stage share, each named after all that it follows from.

    {root}/{stage}/.shared/{key}/...                        its files, and a note, written last
    {root}/{stage}/{label}-{fingerprint}/.shared.json       the results that an artifact was made of

A result is reused if its note and its files are whole (notes.py). `gc` deletes those of which no
artifact was made.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rungwise.core.stages.notes import read_note, write_note
from rungwise.core.storage.folder import Folder

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
