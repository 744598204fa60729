"""Artifacts: the folders that stages write, each with a record. Without a record it is not done.

    {root}/{stage}/{label}-{fingerprint}/
        ...                 what the stage wrote
        artifact.json       written last, in one write

The fingerprint is a hash of what the artifact *is* (see stage.py); the label is only for people, so
an artifact is found by its fingerprint whatever it is called.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rungwise.core.errors import DataError
from rungwise.core.storage import Folder

RECORD = "artifact.json"
RECORD_FORMAT = 1


@dataclass(frozen=True)
class Artifact:
    """A finished stage: its folder and its record. Its summary is read by `Summary.of`, which keeps
    in `parsed` what it has read."""

    stage: str
    fingerprint: str
    folder: Folder
    record: dict[str, Any]
    parsed: dict[type, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def headline(self) -> str:
        """The stage's summary in one line."""
        return self.record["summary"]["headline"]

    @property
    def label(self) -> str:
        return self.record["label"]

    def verify(self) -> None:
        """Compare every file with the record; DataError names the first one that differs."""
        for name, expected in self.record["files"].items():
            if not self.folder.exists(name):
                raise DataError(f"{self.folder.path(name)} is in the record but is missing")
            digest = self.folder.sha256(name)
            if digest != expected["sha256"]:
                raise DataError(
                    f"{self.folder.path(name)} has changed since it was written: expected sha256 "
                    f"{expected['sha256'][:12]}, found {digest[:12]}"
                )


def folder_of(root: Folder, stage: str, label: str, fingerprint: str) -> Folder:
    """The folder of an artifact: an existing one with this fingerprint, else a new one."""
    for name in (root / stage).subfolders():
        if name.endswith(f"-{fingerprint}"):
            return root / stage / name
    return root / stage / f"{label}-{fingerprint}"


def load(folder: Folder) -> Artifact | None:
    """The artifact in `folder`, or None if there is no record.

    Raises DataError if there is a record that cannot be read.
    """
    if not folder.exists(RECORD):
        return None
    try:
        record = json.loads(folder.read_bytes(RECORD))
        return Artifact(record["stage"], record["fingerprint"], folder, record)
    except (ValueError, KeyError) as error:
        raise DataError(
            f"{folder.path(RECORD)} is not a record ({error}); delete the folder to rebuild it"
        ) from error


def finish(folder: Folder, record: dict[str, Any], known: Mapping[str, str]) -> Artifact:
    """Hash the files of `folder`, then write the record: from here on the artifact is done.

    `known` holds the sha256 of files that were hashed where they were written, so that a driver
    need not read terabytes again.
    """
    files = {
        name: {"bytes": size, "sha256": known.get(name) or folder.sha256(name)}
        for name, size in folder.sizes().items()
        if name != RECORD and not name.rpartition("/")[2].startswith(".")
    }
    record = {"format": RECORD_FORMAT, **record, "files": files}
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
    folder.write_bytes(RECORD, text.encode("utf-8"))
    return Artifact(record["stage"], record["fingerprint"], folder, record)


def all_of(root: Folder, stage: str) -> list[Artifact]:
    """Every finished artifact of a stage, newest first."""
    loaded = (load(root / stage / name) for name in (root / stage).subfolders())
    return sorted(
        (artifact for artifact in loaded if artifact is not None),
        key=lambda artifact: artifact.record["finished"],
        reverse=True,
    )


def find_input(artifact: Artifact, stage: str) -> Artifact:
    """The artifact of `stage` that `artifact` was built from.

    Raises DataError if it is not below the same root.
    """
    made_of = artifact.record["inputs"][stage]
    root = Folder.at(artifact.folder.uri.rsplit("/", 2)[0])
    folder = folder_of(root, made_of["stage"], "", made_of["fingerprint"])
    source = load(folder)
    if source is None:
        raise DataError(
            f"the {stage} that {artifact.folder.uri} was built from are not below the same root: "
            f"expected a finished artifact {made_of['fingerprint']} in {root.uri}/{stage}"
        )
    return source


def at_or_below(folder: Folder) -> Artifact | None:
    """The artifact in a folder, or the newest one directly below it; None if there is neither."""
    root, _, stage = folder.uri.rpartition("/")
    return load(folder) or next(iter(all_of(Folder.at(root), stage)), None)
