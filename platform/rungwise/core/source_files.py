"""Files that the user provides: listed, opened and hashed where they lie."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rungwise.core.object_store import filesystem, is_remote, open_stream, tag_of


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
        return open_stream(self.uri, self.tag)

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

    Names are relative to the folder, or to the part of a glob before its first wildcard, so that a
    corpus that moves keeps its document ids. Empty if nothing matches. A store is asked for one
    listing, whatever the number of files.
    """
    fs, path = filesystem(pattern)
    path = fs._strip_protocol(path)
    if any(letter in path for letter in "*?["):
        matches = fs.glob(path, detail=True)
        fixed = path[: min(path.index(letter) for letter in "*?[" if letter in path)]
        base = fixed.rpartition("/")[0]
    elif fs.isdir(path):
        matches, base = fs.find(path, detail=True), path
    elif fs.exists(path):
        matches, base = {path: fs.info(path)}, path.rpartition("/")[0]
    else:
        return []
    files = []
    for name, info in sorted(matches.items()):
        relative = str(name)[len(base) :].lstrip("/")
        hidden = any(part.startswith(".") for part in relative.split("/"))
        if info["type"] == "file" and not hidden:
            uri = fs.unstrip_protocol(name) if is_remote(pattern) else str(name)
            files.append(SourceFile(uri, relative, int(info["size"]), tag_of(info)))
    return files
