"""The list of public data sets (sets.yaml), and which of them provides a file."""

import fnmatch
import functools
import os
from importlib import resources
from typing import Any, Literal
from urllib.parse import urljoin

import yaml
from pydantic import Field

from rungwise.core.configuration.config import Config, validate

_FILE = "sets.yaml"
FOLDER = "data"  # where recipes look for public data, below the working folder
Rule = Literal[
    "abstracts", "brown", "imdb_test", "imdb_train", "imdb_unsup", "member", "msra", "reuters"
]


class Download(Config):
    """A file of another server, and what it must be."""

    url: str
    bytes: int
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class PublicFile(Config):
    """A file below `data/`: a copy of its only part, or what `rule` makes of its parts."""

    parts: tuple[Download, ...] = Field(min_length=1)
    rule: Rule | None = None
    member: str = ""  # of the archive, for the rule `member`


class PublicSet(Config):
    """A data set; `files` are by path below `data/`."""

    title: str
    licence: str
    consent: bool
    note: str = ""
    files: dict[str, PublicFile]

    @property
    def downloads(self) -> dict[str, Download]:
        """The different downloads by address."""
        return {part.url: part for file in self.files.values() for part in file.parts}

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.downloads.values())


@functools.cache
def public_sets() -> dict[str, PublicSet]:
    """Return the sets by name."""
    entries = yaml.safe_load((resources.files("rungwise.core.public") / _FILE).read_text("utf-8"))
    return {
        name: validate(PublicSet, _with_parts(entry), f"{_FILE}: {name}")
        for name, entry in entries.items()
    }


def _with_parts(entry: dict[str, Any]) -> dict[str, Any]:
    """Give each file of an entry its parts, and each part its whole address."""
    base, files = entry.pop("base"), {}
    for path, file in entry["files"].items():
        member = file.get("member", "")
        parts = [
            {"url": urljoin(base, each["from"]), "bytes": each["bytes"], "sha256": each["sha256"]}
            for each in file.get("parts", [file])
        ]
        rule = file.get("rule") or ("member" if member else None)
        files[path] = {"parts": parts, "rule": rule, "member": member}
    return entry | {"files": files}


def find_sets(pattern: str) -> list[str]:
    """Return the names of the sets with a file that a path, folder, glob or member of an archive
    below `data/` names."""
    path = os.path.normpath(pattern)
    if not path.startswith(f"{FOLDER}{os.sep}"):
        return []
    inside = path.removeprefix(f"{FOLDER}{os.sep}")
    return [
        name
        for name, public in public_sets().items()
        if any(_names(inside, file) for file in public.files)
    ]


def _names(pattern: str, file: str) -> bool:
    """Whether `pattern` is the file, a folder above it, a glob of it, or inside of the archive."""
    beside = file.startswith(f"{pattern}/") or pattern.startswith(f"{file}/")
    return beside or fnmatch.fnmatchcase(file, pattern)


def how_to_get(pattern: str) -> str:
    """Return the advice for a pattern that matches no file, to end a message with; "" if the list
    has no such file."""
    names = find_sets(pattern)
    return f"; get it with: rungwise data get {' '.join(names)}" if names else ""
