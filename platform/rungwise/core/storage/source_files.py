"""Files that the user provides: listed, opened and hashed in place, also inside .zip and .tar
archives, which are read as if each were a folder.

Digests are kept on this machine, so that a large corpus is not read by every command. As in git's
index, a file is unchanged while its inode, size and times are those that it was hashed with: the
time at which an inode changed, unlike that of modification, is set by the system alone."""

import bz2
import contextlib
import fnmatch
import gzip
import hashlib
import io
import lzma
import os
import re
import sqlite3
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar

from fsspec.utils import glob_translate
from pydantic import BeforeValidator, Field

from rungwise.core.errors import ConfigError, DataError, explain_connection_errors
from rungwise.core.public_data import how_to_get
from rungwise.core.storage import folder as stores

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
        return stores.open_stream(self.uri, self.tag)

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
            uri = fs.unstrip_protocol(name) if stores.is_remote(pattern) else str(name)
            files.append(SourceFile(uri, relative, int(info["size"]), stores.object_tag(info)))
    return files


def _split(pattern: str) -> tuple[Any, str, str]:
    """The file system, the literal path, and the glob below it."""
    fs, path = stores.filesystem(pattern)
    parts = fs._strip_protocol(path).split("/")
    for number, part in enumerate(parts):
        if set(part) & set("*?[") and not fs.exists("/".join(parts[: number + 1])):
            base = "/".join(parts[:number]) or fs.root_marker
            return fs, base, "/".join(parts[number:])
    return fs, "/".join(parts), ""


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
            is_relative = not stores.is_remote(pattern) and not Path(pattern).is_absolute()
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
    files = match_files(patterns, key, find_in_archives)
    if not any(file.size_bytes for file in files):
        empty = f"{len(files)} empty files that match {', '.join(patterns)}"
        raise DataError.at(key, "data", empty, f"change {key}")
    return files


def digest_matching_files(patterns: Sequence[str], key: str) -> dict[str, Any]:
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


def find_in_archives(pattern: str) -> list[SourceFile]:
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
    """List the files that `find_in_archives` reads: the archive, not its members."""
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


_TICK_NS = 2_000_000_000  # two changes within a tick of a file system's clock may have one time
_TABLE = "CREATE TABLE IF NOT EXISTS digests (path TEXT PRIMARY KEY, state TEXT, digest TEXT)"


def describe_state(file: SourceFile) -> str:
    """Return what any change of a local file changes; "" of other files, of one that changed since
    it was listed, and of one that changed just now, since the next change may not show."""
    if type(file) is not SourceFile or stores.is_remote(file.uri):
        return ""
    try:
        info = os.stat(file.uri)
    except OSError:
        return ""
    if info.st_size != file.size_bytes or time.time_ns() - info.st_ctime_ns < _TICK_NS:
        return ""
    parts = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
    return "-".join(map(str, parts))


def find_digests(states: Mapping[str, str]) -> dict[str, str]:
    """Return the digests, by path, of the files that have the state, by path, that was kept."""
    query = "SELECT digest FROM digests WHERE path = ? AND state = ?"
    # Without a disk for them, all is hashed.
    with contextlib.suppress(sqlite3.Error, OSError), contextlib.closing(_open()) as database:
        rows = ((path, database.execute(query, (path, states[path])).fetchone()) for path in states)
        return {path: row[0] for path, row in rows if row}
    return {}


def keep_digests(rows: Iterable[tuple[str, str, str]]) -> None:
    """Keep the digests of files: rows of path, state before the file was read, and digest."""
    with (
        contextlib.suppress(sqlite3.Error, OSError),
        contextlib.closing(_open()) as database,
        database,
    ):
        database.executemany("REPLACE INTO digests VALUES (?, ?, ?)", rows)


def _open() -> sqlite3.Connection:
    folder = stores.cache_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    database = sqlite3.connect(folder / "sha256.sqlite")
    database.execute(_TABLE)
    return database
