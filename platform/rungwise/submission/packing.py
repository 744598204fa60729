"""List what Ray would pack of a folder, by Ray's own rules.

Ray stores files in its package uncompressed, so their sizes give the package's size;
tests/unit/test_submission.py compares with packages made by Ray.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from rungwise.core.errors import UserError
from rungwise.ray_private import (
    DASHBOARD_CLIENT_MAX_SIZE,
    GCS_STORAGE_MAX_SIZE,
    IGNORE_GITIGNORE,
    default_excludes,
    folder_excludes,
    uri_of_folder,
    walk_folder,
)

# Upper limits of the job server's requests and of the head's store.
MOST_BYTES = min(DASHBOARD_CLIENT_MAX_SIZE, GCS_STORAGE_MAX_SIZE)
_MOST_FILES = 100_000
# Zip format specification, section 4.3: two headers per entry, each with the entry's name.
_ENTRY_BYTES = 30 + 46
_END_BYTES = 22
_SILENT = logging.Logger("packing", logging.CRITICAL + 1)


@dataclass(frozen=True)
class Packed:
    """A file or an empty folder in the package."""

    path: str  # relative to the folder; ends with a slash for an empty folder
    size_bytes: int


def packed(folder: Path) -> list[Packed]:
    """List the contents of the package by name, without reading any file. Raises UserError if a
    part cannot be read or is a link to outside, or if the folder holds far more files than a
    project."""
    entries: list[Packed] = []
    folder, real = folder.absolute(), folder.resolve()

    def take(path: Path) -> None:
        is_folder = path.is_dir()
        if is_folder and next(path.iterdir(), None) is not None:
            return
        if is_folder or path.is_file():
            if not os.access(path, os.R_OK):
                raise PermissionError(13, os.strerror(13), str(path))
            name = path.relative_to(folder).as_posix()
            if not path.resolve().is_relative_to(real):
                raise UserError(
                    f"{name} is a link to {path.resolve()}, outside of {folder}, and what is there "
                    "would be uploaded; exclude it in .rayignore, or copy it here"
                )
            packed_as = Packed(f"{name}/", 0) if is_folder else Packed(name, path.stat().st_size)
            entries.append(packed_as)
            if len(entries) > _MOST_FILES:
                raise UserError(
                    f"{folder} holds more than {_MOST_FILES:,} files; choose the project's own "
                    "folder with --working-dir, or exclude what a job does not need in .rayignore"
                )

    excludes = [folder_excludes(folder, default_excludes())]
    try:
        walk_folder(folder, excludes, take, include_gitignore=_gitignore_counts(), logger=_SILENT)
    except OSError as error:
        raise UserError(
            f"cannot read {error.filename} ({error.strerror}), which would be uploaded; exclude it "
            "in .rayignore, or make it readable"
        ) from error
    return sorted(entries, key=lambda entry: entry.path)


def package_bytes(files: list[Packed]) -> int:
    names = sum(2 * len(file.path.encode()) + _ENTRY_BYTES for file in files)
    return sum(file.size_bytes for file in files) + names + _END_BYTES


def package_uri(folder: Path) -> str:
    """The URI of the folder's package on a cluster, made from a digest of its content."""
    return uri_of_folder(str(folder), _gitignore_counts(), excludes=default_excludes())


def _gitignore_counts() -> bool:
    return os.environ.get(IGNORE_GITIGNORE, "0") != "1"
