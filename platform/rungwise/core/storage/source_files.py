"""Files that the user provides: listed, opened and hashed in place."""

import hashlib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fsspec.utils import glob_translate

from rungwise.core.storage.object_store import filesystem, is_remote, object_tag, open_stream

_BESIDE_ARROW = re.compile(r"(state|dataset_info|dataset_dict)\.json|cache-.*\.arrow")


@dataclass(frozen=True)
class SourceFile:
    """A file that the user provides. `name` is relative to the source; `tag` is the object store's
    ETag, empty for a local file."""

    BLOCK_BYTES: ClassVar[int] = 64 << 20

    uri: str
    name: str
    size_bytes: int
    tag: str = ""

    def open(self) -> io.BufferedReader:
        """A seekable stream. Raises DataError if an object changed since it was listed."""
        return open_stream(self.uri, self.tag)

    @property
    def num_blocks(self) -> int:
        """The number of blocks that are hashed separately; 1 for an empty file."""
        return max(1, -(-self.size_bytes // self.BLOCK_BYTES))

    def block_digest(self, number: int) -> bytes:
        with self.open() as stream:
            stream.seek(number * self.BLOCK_BYTES)
            digest = hashlib.sha256()
            remaining = self.BLOCK_BYTES
            while remaining and (chunk := stream.read(min(remaining, 1 << 20))):
                digest.update(chunk)
                remaining -= len(chunk)
        return digest.digest()


_SPLIT_WORDS = {
    "train": ("train", "training", "trn", "trainset"),
    "validation": ("validation", "valid", "val", "dev", "devel", "development", "trial", "testa"),
    "test": ("test", "testing", "tst", "testset", "testb", "holdout", "heldout", "evaluation"),
}
_SPLITS = {word: split for split, words in _SPLIT_WORDS.items() for word in words}


def name_split(name: str) -> str | None:
    """Return the split that a name such as `wnut17train.conll`, `PublicTest` or `DEV` tells; None
    if not one."""
    words = [*re.findall("[a-z]+", name.lower()), *re.findall("[A-Z][a-z]+", name)]
    splits = {_SPLITS.get(word.lower()) for word in words} - {None}
    return splits.pop() if len(splits) == 1 else None


def split_of_path(path: str) -> str:
    """Return the split that the name of a file tells, else that of its folders; "" if none."""
    return next(filter(None, map(name_split, reversed(path.split("/")))), "")


def data_files(files: Sequence[SourceFile]) -> list[SourceFile]:
    """Leave out what `datasets` stores beside the Arrow files that it saves: JSON, and caches."""
    if not any(file.name.endswith(".arrow") for file in files):
        return list(files)
    return [file for file in files if not _BESIDE_ARROW.fullmatch(file.name.rpartition("/")[2])]


def find_files(pattern: str) -> list[SourceFile]:
    """List the files that a path, a folder (recursively) or a glob matches, sorted, without hidden
    ones; empty if nothing matches.

    A path that exists is taken literally, even if it contains `[`, `*` or `?`. Names are relative
    to the folder, or to the folder before a glob's first wildcard, so that document ids survive
    moving a corpus. In a store, this takes one listing for any number of files.
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
    for name, entry in sorted(matches.items()):
        # A listing gives the type of a link, not that of the file it leads to.
        info = fs.info(name) if entry.get("islink") and fs.exists(name) else entry
        relative = str(name)[len(base) :].lstrip("/")
        hidden = any(part.startswith(".") for part in relative.split("/"))
        if info["type"] == "file" and not hidden and matching.match(relative):
            uri = fs.unstrip_protocol(name) if is_remote(pattern) else str(name)
            files.append(SourceFile(uri, relative, int(info["size"]), object_tag(info)))
    return files


def _split(pattern: str) -> tuple[Any, str, str]:
    """The file system, the literal path, and the glob below it."""
    fs, path = filesystem(pattern)
    parts = fs._strip_protocol(path).split("/")
    for number, part in enumerate(parts):
        if set(part) & set("*?[") and not fs.exists("/".join(parts[: number + 1])):
            base = "/".join(parts[:number]) or fs.root_marker
            return fs, base, "/".join(parts[number:])
    return fs, "/".join(parts), ""
