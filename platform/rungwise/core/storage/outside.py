"""Files from outside that a stage reads: those that match a key's patterns, also inside .zip and
.tar archives, which are read as if each were a folder; and their digest."""

import bz2
import fnmatch
import gzip
import hashlib
import io
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from rungwise.core.errors import ConfigError, DataError, explain_connection_errors
from rungwise.core.public_data import how_to_get
from rungwise.core.storage.known_digests import describe_state, find_digests, keep_digests
from rungwise.core.storage.object_store import is_remote
from rungwise.core.storage.source_files import SourceFile, data_files, find_files

_THREADS = 16
# Files (also .gz), folders and globs, local, s3:// or hf://, and members of .zip and .tar; one or a
# list.
Paths = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    Field(min_length=1),
]


def match_files(
    patterns: Sequence[str], key: str, find: Callable[[str], list[SourceFile]]
) -> list[SourceFile]:
    """List the files that `find` lists for `patterns`, sorted, each once; `key` is their key in the
    config. Raises ConfigError if a pattern matches nothing, or a name is not UTF-8."""
    files: dict[str, SourceFile] = {}
    for pattern in patterns:
        with explain_connection_errors(pattern, key):
            matched = data_files(find(pattern))
        if not matched:
            is_relative = not is_remote(pattern) and not Path(pattern).is_absolute()
            raise ConfigError(
                f"{key}: no file matches {pattern!r}"
                f"{f' in {Path.cwd()}' if is_relative else ''}; expected a file, "
                f"folder or glob{how_to_get(pattern)}"
            )
        for file in matched:
            try:
                file.uri.encode()
            except UnicodeEncodeError:  # Python holds the odd bytes as lone surrogates
                raise ConfigError(
                    f"{key}: the name of the file {file.uri!a} is not UTF-8; rename it"
                ) from None
            files.setdefault(file.uri, file)
    return sorted(files.values(), key=lambda file: (file.name, file.uri))


def list_matching_files(patterns: Sequence[str], key: str) -> list[SourceFile]:
    """List the files and members of archives that `patterns` match, as `match_files`. Raises
    DataError if all are empty."""
    files = match_files(patterns, key, find)
    if not any(file.size_bytes for file in files):
        empty = f"{len(files)} empty files that match {', '.join(patterns)}"
        raise DataError.at(key, "data", empty, f"change {key}")
    return files


def digest(patterns: Sequence[str], key: str) -> dict[str, Any]:
    """Return `digest_files` of the matching files."""
    return digest_files(list_matching_files(patterns, key), key)


def digest_files(files: Sequence[SourceFile], key: str) -> dict[str, Any]:
    """Return the number of files, their size, and one digest of their names and bytes."""
    hashes = zip(files, hash_files(files, key), strict=True)
    lines = "".join(f"{file.name}\0{digest}\n" for file, digest in hashes)
    return {
        "files": len(files),
        "bytes": sum(file.size_bytes for file in files),
        "sha256": hashlib.sha256(lines.encode()).hexdigest(),
    }


def hash_files(files: Sequence[SourceFile], key: str) -> list[str]:
    """Return a digest of the bytes of each file: of an object the store's ETag and size, else the
    SHA-256, or that of the SHA-256s of its blocks if it has several; store errors name `key`."""

    def hash_block(block: tuple[SourceFile, int]) -> bytes:
        file, number = block
        with explain_connection_errors(file.uri, key):
            return file.block_digest(number)

    states = {file.uri: state for file in files if (state := describe_state(file))}
    digests = {file.uri: f"{file.tag}-{file.size_bytes}" for file in files if file.tag}
    digests |= find_digests(states)
    unread = [file for file in files if file.uri not in digests]
    with ThreadPoolExecutor(_THREADS) as pool:
        blocks = [(file, number) for file in unread for number in range(file.num_blocks)]
        hashes = iter(list(pool.map(hash_block, blocks)))
    for file in unread:
        own = list(islice(hashes, file.num_blocks))
        whole = own[0] if len(own) == 1 else hashlib.sha256(b"".join(own)).digest()
        digests[file.uri] = whole.hex()
    paths = [file.uri for file in unread if file.uri in states]
    keep_digests((path, states[path], digests[path]) for path in paths)
    return [digests[file.uri] for file in files]


_PATH = re.compile(r"(.+?\.(?:zip|tar|tgz|tar\.gz|tar\.bz2|tar\.xz))(?:/(.*))?", re.IGNORECASE)
# Members are held in memory: text shrinks to a tenth, and a hundredth is no text.
_MOST_UNPACKED, _MORE_BYTES = 100, 10_000_000
_COMPRESSIONS = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}
_DAMAGED = (
    *(zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError),
    UnicodeDecodeError,  # a name that is not in the encoding that it states
    OSError,  # of gzip and bz2, without a number
    RuntimeError,  # encrypted, or packed in a way that Python cannot unpack
)


@dataclass(frozen=True)
class Member(SourceFile):
    """A file of an archive, held in memory because an archive is read once, in its own order."""

    content: bytes = b""

    def open(self) -> io.BufferedReader:
        return io.BufferedReader(io.BytesIO(self.content))  # pyright: ignore[reportArgumentType]


def find(pattern: str) -> list[SourceFile]:
    """List the files that match a path, folder or glob. The path of an archive gives its members
    and may continue inside it: `SST-2.zip/SST-2/train.tsv`. Raises DataError if an archive cannot
    be unpacked."""
    parts = _PATH.fullmatch(pattern)
    if parts is None:
        return find_files(pattern)
    archive, inside = parts[1], (parts[2] or "").strip("/")
    members = []
    for file in find_files(archive):
        if _PATH.fullmatch(file.name) is None:
            return find_files(pattern)  # a folder with the name of an archive
        try:
            with file.open() as stream:
                members += sorted(_members(file, stream, inside), key=lambda member: member.name)
        except _DAMAGED as error:
            if isinstance(error, OSError) and (error.errno or error.__cause__):
                raise  # of the disk or the store
            why = " ".join(str(error).split())  # that of tarfile has several lines
            raise DataError(f"{file.uri}: cannot be unpacked ({why}); fetch it again") from error
    return members


def on_disk(pattern: str) -> list[SourceFile]:
    """List the files that `find` reads: the archive, not its members."""
    parts = _PATH.fullmatch(pattern)
    return find_files(pattern) or (find_files(parts[1]) if parts else [])


def _members(file: SourceFile, stream: io.BufferedReader, inside: str) -> Iterator[Member]:
    if file.name.lower().endswith(".zip"):
        with zipfile.ZipFile(stream) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            entries = [entry for entry in entries if _matches(entry.filename, inside)]
            refuse_bomb(file, sum(entry.file_size for entry in entries))
            for entry in entries:
                if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise zipfile.BadZipFile("packed by another method than deflate")
                with archive.open(entry) as opened:
                    # With the size, since without one all is unpacked that is there.
                    yield _member(file, entry.filename, opened.read(entry.file_size))
        return
    unpacked, content_bytes = _Unpacked(file, stream), 0
    with tarfile.open(fileobj=unpacked, mode="r|") as archive:
        for entry in archive:
            name = entry.name.removeprefix("./")
            if entry.isfile() and _matches(name, inside):
                opened = archive.extractfile(entry)
                assert opened is not None, "a file has content"
                content_bytes += entry.size  # holes of sparse files are not in the stream
                refuse_bomb(file, content_bytes)
                yield _member(file, name, opened.read())
    # The checksum of a .tar.gz comes after the last member.
    while unpacked.read(1 << 20):
        pass


class _Unpacked(io.RawIOBase):
    """The stream of a .tar without its compression, headers included, that ends in an error where
    it is too long for its file."""

    def __init__(self, file: SourceFile, stream: io.BufferedReader) -> None:
        unpack = _COMPRESSIONS.get(stream.peek(2)[:2])
        self._file, self._stream, self._bytes = file, unpack(stream) if unpack else stream, 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        self._bytes += len(data)
        refuse_bomb(self._file, self._bytes)
        return data


def refuse_bomb(file: SourceFile, unpacked_bytes: int) -> None:
    """Raise DataError if a file unpacks to so many bytes that it cannot be text."""
    if unpacked_bytes > _MOST_UNPACKED * file.size_bytes + _MORE_BYTES:
        raise DataError(
            f"{file.uri}: {file.size_bytes:,} bytes unpack to {unpacked_bytes:,} or more, beyond "
            f"{_MOST_UNPACKED} times their size; if that is right, unpack it and name the folder"
        )


def _member(file: SourceFile, name: str, content: bytes) -> Member:
    return Member(f"{file.uri}/{name}", f"{file.name}/{name}", len(content), content=content)


def _matches(name: str, inside: str) -> bool:
    """Whether `inside` is the member's path, a folder above it, or a glob that matches it."""
    # Hidden files, and the extra folder that macOS puts into archives.
    if any(part.startswith((".", "__MACOSX")) for part in name.split("/")):
        return False
    below = not inside or name == inside or name.startswith(f"{inside}/")
    return below or fnmatch.fnmatchcase(name, inside)
