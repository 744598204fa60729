"""Read any text file as a stream of lines, decompressed and decoded piece by piece.

Every file is read twice. `check` finds out whether it is UTF-8 and, if compressed, whether it is
whole, so that a file is refused or dropped before any of its documents is passed on; `lines` then
reads as far as it is sound. Neither holds more than a piece and one line, and of a line no more
than the limit: 200 MB without a break cost no more memory than a line may take.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from rungwise.core.storage import SourceFile

TOO_LONG = "too long"
CUT_OFF = "cut-off .gz"
UNSOUND = "unsound .gz"

_PIECE_BYTES = 1 << 20
_PACKED_PIECE_BYTES = 1 << 17
_FINE_BYTES = 1 << 8
# A file up to this size, as it is stored, is fetched once and kept for the second reading.
_KEPT_BYTES = 8 << 20
_GZIP_WINDOW = 31  # zlib's number for: a gzip header, and the largest window

Line = tuple[int, str, str]  # its number from 1, its text, and the reason if it has none


class UnsoundGzipError(Exception):
    """The compressed bytes end too early or are corrupt."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True)
class Checked:
    """The result of reading a file for the first time.

    `invalid_at` is the offset of the first byte that is not UTF-8, None if there is none, and
    `invalid` says so in words. The content is sound up to `end` bytes, all of it if None; then
    `reason` and `detail` say what is wrong from there on.
    """

    invalid_at: int | None = None
    invalid: str = ""
    end: int | None = None
    reason: str = ""
    detail: str = ""


class Content:
    """The decompressed bytes of a file, which can be read more than once."""

    def __init__(self, file: SourceFile) -> None:
        self._open: Callable[[], BinaryIO] = file.open
        self._packed = file.uri.endswith(".gz")
        if file.size_bytes <= _KEPT_BYTES:
            with file.open() as stream:
                kept = stream.read()
            self._open = lambda: io.BytesIO(kept)

    def pieces(self) -> Iterator[bytes]:
        """The content in order, the same pieces each time; UnsoundGzipError where it is corrupt."""
        with self._open() as stream:
            if self._packed:
                yield from _unpacked(stream)
            else:
                while piece := stream.read(_PIECE_BYTES):
                    yield piece


def check(content: Content) -> Checked:
    """Check that the content is UTF-8 and whole. Errors of the file system are passed on."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    head, read, invalid_at, invalid = b"", 0, None, ""
    unsound = None

    def decode(piece: bytes, final: bool = False) -> None:
        nonlocal invalid_at, invalid
        try:
            decoder.decode(piece, final)
        except UnicodeDecodeError as error:
            # Counted from the start of what the decoder still held.
            invalid_at = read + len(piece) - len(error.object) + error.start
            invalid = f"byte 0x{error.object[error.start]:02x} at offset {invalid_at}"
            if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                invalid += ", it looks like UTF-16"

    try:
        for piece in content.pieces():
            head = head or piece[:2]
            if invalid_at is None:
                decode(piece)
            read += len(piece)
    except UnsoundGzipError as error:
        unsound = error
    if unsound is None:
        if invalid_at is None:
            decode(b"", final=True)
        return Checked(invalid_at, invalid)
    end = read
    if unsound.reason == UNSOUND and invalid_at is not None:
        # The corruption of the .gz explains the invalid bytes too.
        end, invalid_at, invalid = invalid_at, None, ""
    detail = f"{unsound}, sound for {end:,} bytes of its content"
    return Checked(invalid_at, invalid, end, unsound.reason, detail)


def lines(
    content: Content, checked: Checked, encoding: str, errors: str, maximum_bytes: int
) -> Iterator[Line]:
    """The lines of the sound part, ended by any of LF, CRLF and CR, without a BOM.

    A line of more than `maximum_bytes` in UTF-8 has no text and the reason "too long". If the
    content is not sound to its end, the last line, which may be empty, has no text and its reason.
    """
    number, held, held_bytes = 1, [], 0
    for text in _texts(content, checked, encoding, errors):
        first, *others = text.split("\n")
        for part in (first, *others[:-1]) if others else ():
            if held:
                held_bytes += utf8_length(part)
                whole = "".join((*held, part)) if held_bytes <= maximum_bytes else None
                held, held_bytes = [], 0
            else:
                whole = part if _fits(part, maximum_bytes) else None
            yield (number, "", TOO_LONG) if whole is None else (number, whole, "")
            number += 1
        last = others[-1] if others else first
        held_bytes += utf8_length(last)
        # Past the limit only the length counts, but something has to show that there was a line.
        held = [*held, last] if held_bytes <= maximum_bytes else [""]
    if checked.end is not None:
        yield number, "", checked.reason
    elif held_bytes > maximum_bytes:
        yield number, "", TOO_LONG
    elif held:
        yield number, "".join(held), ""


def utf8_length(text: str) -> int:
    """Bytes of `text` in UTF-8; a lone surrogate, which JSON can hold, counts three."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _fits(text: str, maximum_bytes: int) -> bool:
    # No character has more than four bytes, so that few lines need to be measured.
    return 4 * len(text) <= maximum_bytes or utf8_length(text) <= maximum_bytes


def _texts(content: Content, checked: Checked, encoding: str, errors: str) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    breaks = io.IncrementalNewlineDecoder(None, translate=True)
    at_start = True
    for piece, last in _marked(_up_to(content.pieces(), checked.end)):
        final = last and checked.end is None
        text = decoder.decode(piece, final)
        if at_start and text:
            text, at_start = text.removeprefix("\ufeff"), False
        yield breaks.decode(text, final=last)


def _up_to(pieces: Iterator[bytes], end: int | None) -> Iterator[bytes]:
    if end is None:
        yield from pieces
        return
    while end > 0 and (piece := next(pieces, b"")):
        yield piece[:end]
        end -= len(piece)


def _marked(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Each piece, and whether it is the last; one empty piece if there is none."""
    previous = b""
    for piece in pieces:
        if previous:
            yield previous, False
        previous = piece
    yield previous, True


def _unpacked(stream: BinaryIO) -> Iterator[bytes]:
    """Decompress the members of a gzip file, one after the other (RFC 1952)."""
    unpacker, members, started, packed = zlib.decompressobj(_GZIP_WINDOW), 0, False, b""
    while True:
        packed = packed or stream.read(_PACKED_PIECE_BYTES)
        ended = not packed
        if members and not started:
            # Tapes and some tools fill the end of a file with zeros.
            packed = packed.lstrip(b"\0")
        if not packed and not started:
            if ended:
                break
            continue
        started = True
        before = unpacker.copy()
        try:
            piece = unpacker.decompress(packed, _PIECE_BYTES)
        except zlib.error as error:
            # zlib does not return what it had decompressed of this piece.
            with contextlib.suppress(zlib.error):
                for at in range(0, len(packed), _FINE_BYTES):
                    yield before.decompress(packed[at : at + _FINE_BYTES])
            raise UnsoundGzipError(UNSOUND, f"an unsound .gz ({error})") from None
        packed = unpacker.unconsumed_tail
        if piece:
            yield piece
        if unpacker.eof:
            packed, members, started = unpacker.unused_data, members + 1, False
            unpacker = zlib.decompressobj(_GZIP_WINDOW)
        elif ended and not piece:
            raise UnsoundGzipError(CUT_OFF, "a cut-off .gz")
