"""The bytes of a file, decompressed as far as they are intact, and their lines with offsets.

Memory holds at most a piece and one line, and a line only up to the limit: 200 MB without a line
break need no more memory than the longest permitted line.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any, BinaryIO

import pyarrow as pa

from rungwise.core.storage.source_files import SourceFile

CUT_OFF = "cut-off file"
UNSOUND = "unsound file"
NOT_DECODED = "not in its encoding"

_SMALLEST_PIECE, _LARGEST_PIECE = 1 << 20, 8 << 20
_UNPACKED_PIECE = 1 << 16
_ZSTANDARD_PIECE = 1 << 12  # as many intact bytes may be lost before damage
# Read past the end of a range: usually enough for the rest of its last line.
_MARGIN = 1 << 16
_PACKED_FACTOR = 3
# Encoding guesses read _HEAD_BYTES of a file and sample _SAMPLE_BYTES of non-ASCII lines.
_HEAD_BYTES, _SAMPLE_BYTES = 1 << 20, 1 << 16
_USUAL = ("cp1252", "gb18030", "cp932", "big5", "cp949")
_WIDE = {
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16: it begins with that mark
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}

# (offset, whole lines with their breaks, 0), or (offset, [], length of a line that is too long)
Lines = tuple[int, list[bytes], int]


def _zstandard(stream: BinaryIO) -> Any:
    # python-zstandard's own stream does not report a truncated file.
    return pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd")


_OPEN: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _zstandard,
}


class UnsoundError(Exception):
    """The content of a file is intact for `at` bytes and cannot be read further.

    `lost` counts stored bytes; after a decoding error, those of the unpacked content.
    """

    def __init__(self, reason: str, detail: str, at: int, lost: int) -> None:
        super().__init__(detail)
        self.reason = reason
        self.at = at
        self.lost = lost


def compression_suffix(name: str) -> str:
    """Return the suffix of a compressed file, such as ".gz", or ""."""
    return next((suffix for suffix in _OPEN if name.endswith(suffix)), "")


def unpacked_bytes(file: SourceFile) -> int:
    """The size of a file after unpacking, at an assumed compression ratio."""
    return file.size_bytes * (_PACKED_FACTOR if compression_suffix(file.name) else 1)


def read_pieces(file: SourceFile, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Yield the decompressed content from `begin` on; `end` is roughly where the reader stops.

    Compressed files ignore both. Raises UnsoundError where they are corrupt or truncated.
    """
    with file.open() as stream:
        if suffix := compression_suffix(file.name):
            yield from _unpack(stream, suffix, file.size_bytes)
            return
        # Unbuffered: a buffer would fetch more from a store than requested.
        stream.raw.seek(begin, os.SEEK_SET)
        remaining = (file.size_bytes if end is None else end + _MARGIN) - begin
        while piece := stream.raw.read(min(max(remaining, _SMALLEST_PIECE), _LARGEST_PIECE)):
            yield piece
            remaining -= len(piece)


def read_head(file: SourceFile, num_bytes: int) -> bytes:
    """Return the first bytes of the content, fewer if it is damaged: its reader reports that."""
    head = b""
    with contextlib.suppress(UnsoundError):
        for piece in read_pieces(file, 0, num_bytes):
            head += piece
            if len(head) >= num_bytes:
                break
    return head[:num_bytes]


def _unpack(stream: BinaryIO, suffix: str, size_bytes: int) -> Iterator[bytes]:
    at = 0
    with _OPEN[suffix](stream) as content:
        # read1 returns what is available, so no intact data before an error are lost.
        is_zstandard = suffix == ".zst"
        read_piece = content.read if is_zstandard else content.read1
        piece_bytes = _ZSTANDARD_PIECE if is_zstandard else _UNPACKED_PIECE
        try:
            while piece := read_piece(piece_bytes):
                yield piece
                at += len(piece)
        except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            # pyarrow reports truncation only in its message.
            is_cut = isinstance(error, EOFError) or "Truncated" in str(error)
            detail = f"a cut-off {suffix}" if is_cut else f"an unsound {suffix} ({error})"
            raise UnsoundError(
                CUT_OFF if is_cut else UNSOUND,
                f"{detail}, sound for {at:,} bytes of its content",
                at,
                max(1, size_bytes - stream.tell()),
            ) from None


def transcode(content: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Transcode `content` to UTF-8; raises UnsoundError, with an offset in UTF-8, if it cannot.

    For encodings whose line breaks are not those of ASCII; their files are never split.
    """
    decoder = codecs.getincrementaldecoder(encoding)()
    pieces = iter(content)
    at = 0
    try:
        for piece in pieces:
            converted = decoder.decode(piece).encode("utf-8", "surrogatepass")
            yield converted
            at += len(converted)
        yield decoder.decode(b"", final=True).encode()
    except UnicodeDecodeError as error:
        lost = len(error.object) + sum(map(len, pieces))
        raise UnsoundError(NOT_DECODED, f"not {encoding}: {error.reason}", at, lost) from None


def split_lines(
    content: Iterable[bytes], offset: int, maximum_bytes: int, first_ends_by: int | None = None
) -> Iterator[Lines]:
    """Yield the lines of `content`, which begins at `offset`; LF, CRLF and CR end a line.

    A line of more than `maximum_bytes` is only counted. Yields nothing if the first line extends
    past `first_ends_by`.
    """
    # The parts of the last line, none if it is too long, and its length.
    parts: list[bytes] = []
    line_bytes = 0
    start = offset
    for piece in _with_whole_breaks(content):
        lines = piece.splitlines(keepends=True)
        if line_bytes:
            part = lines.pop(0)
            line_bytes += len(part)
            parts = [*parts, part] if line_bytes <= maximum_bytes else []
            if offset == start and first_ends_by is not None and line_bytes > first_ends_by - start:
                return
            if not part.endswith((b"\n", b"\r")):
                continue
            yield (offset, [b"".join(parts)], 0) if parts else (offset, [], line_bytes)
            offset, parts, line_bytes = offset + line_bytes, [], 0
        if lines and not lines[-1].endswith((b"\n", b"\r")):
            parts = [lines.pop()]
            line_bytes = len(parts[0])
            parts = parts if line_bytes <= maximum_bytes else []
        if not lines:
            continue
        groups = [lines] if max(map(len, lines)) <= maximum_bytes else [[line] for line in lines]
        for group in groups:
            num_bytes = sum(map(len, group))
            is_too_long = len(group) == 1 and num_bytes > maximum_bytes
            yield (offset, [], num_bytes) if is_too_long else (offset, group, 0)
            offset += num_bytes
    if line_bytes:
        yield (offset, [b"".join(parts)], 0) if parts else (offset, [], line_bytes)


def _with_whole_breaks(content: Iterable[bytes]) -> Iterator[bytes]:
    """Regroup pieces so that none ends between a CR and its LF."""
    rest = b""
    for piece in content:
        joined = rest + piece
        rest = b"\r" if joined.endswith(b"\r") else b""
        if whole := joined[:-1] if rest else joined:
            yield whole
    if rest:
        yield rest


def line_number(file: SourceFile, offset: int) -> int:
    """Return the line number, from 1, at `offset`, for messages: it reads all before it."""
    number = 0
    for at, lines, _ in split_lines(read_pieces(file), 0, _LARGEST_PIECE):
        begins = list(accumulate(map(len, lines[:-1]), initial=at))
        number += sum(begin <= offset for begin in begins)
        if begins[-1] > offset:
            break
    return number


def detect_wide_encoding(file: SourceFile) -> str:
    """Return the multi-byte encoding that a byte order mark announces, or ""."""
    head = read_head(file, 4)
    return next((name for mark, name in _WIDE.items() if head.startswith(mark)), "")


def guess_file_encoding(file: SourceFile) -> str | None:
    """Guess the encoding of the first megabyte of a file; see `guess_encoding`."""
    head = read_head(file, _HEAD_BYTES)
    return guess_encoding(head.rpartition(b"\n")[0] or head)


def guess_encoding(content: bytes) -> str | None:
    """Return the guess of charset-normalizer; None if `content` is ASCII or nothing fits."""
    from charset_normalizer import from_bytes

    sample = b""
    for line in content.splitlines(keepends=True):
        if not line.isascii():
            sample += line
        if len(sample) > _SAMPLE_BYTES:
            break
    matches = from_bytes(sample)
    best = matches.best()
    if not sample or best is None:
        return None
    # Among equal guesses it takes the alphabetically first; prefer the usual ones.
    equal = {
        name
        for match in matches
        if (match.chaos, match.coherence) == (best.chaos, best.coherence)
        for name in match.could_be_from_charset
    }
    return next((name for name in _USUAL if name in equal), best.encoding)


def utf8_length(text: str) -> int:
    """Return the UTF-8 length; a lone surrogate, which JSON can hold, counts three."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
