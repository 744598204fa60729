"""The bytes of a file, decompressed as far as they are intact, their lines with offsets, and the
encoding of bytes that state none: one of UTF-16 and UTF-32, UTF-8, one in which characters of
Chinese, Japanese or Korean are frequent, or charset-normalizer's guess among the encodings of one
byte of the Encoding Standard (https://encoding.spec.whatwg.org)."""

import bz2
import codecs
import contextlib
import gzip
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, BinaryIO

import pyarrow as pa

from rungwise.core.storage.source_files import SourceFile

# Of a file: to guess its encoding from, and to recognise UTF-16 and what is no text.
HEAD_BYTES, SHORT_HEAD_BYTES = 1 << 20, 1 << 12
_SAMPLE_BYTES = 1 << 16  # of lines with bytes beyond ASCII
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16: it begins with that mark
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_WIDE = ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")
# Control characters that text does not hold; about every third byte of UTF-16 is one.
CONTROLS = bytes(sorted({*range(32)} - {*b"\t\n\v\f\r\x1b"}))
_FEWEST_CONTROLS, _PRINTABLE, _FEWEST_BLANKS = 0.02, 0.98, 0.002
_BLANKS = " \n\r\t\u3000"
_ARCHIVES = {
    b"\x1f\x8b": "a gzip file: give it a name in .gz",
    b"BZh": "a bzip2 file: give it a name in .bz2",
    b"\xfd7zXZ\0": "an xz file: give it a name in .xz",
    b"\x28\xb5\x2f\xfd": "a zstandard file: give it a name in .zst",
    b"PK\3\4": "a zip archive, or a file of an office program: unpack it, or save its text",
    b"\xd0\xcf\x11\xe0": "a file of an office program: save its text",
    b"%PDF": "a PDF: extract its text",
}
# The most frequent characters of each language, which are hardly any text in another encoding.
_FREQUENT = {
    "gb18030": "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着"
    "下自之年过发后作里\uff0c。、之其不曰道",
    "big5": "的一是不了在人有我他這個們中來上大為和國地到以說時要就出會可也你對生能而子那得於著"
    "下自之年過發後作裡\uff0c。、之其不曰道",
    "cp932": "のにはをたがでてとしれさいるなかもら、。こあっりすくきよまうだ",
    "euc_jp": "のにはをたがでてとしれさいるなかもら、。こあっりすくきよまうだ",
    "cp949": "이다는의에을가를은고하지로사기도한인리어그아자나서대들",
}
_FEWEST_FREQUENT = 0.1
# In order of preference: several may be equally likely.
_SINGLE_BYTE = [
    *("cp1252", "cp1251", "koi8_r", "cp1250", "iso8859_2", "cp1253", "iso8859_7", "cp1254"),
    *("cp1255", "cp1256", "cp1257", "cp1258", "cp866", "tis_620"),
]
_NEARLY_CHAOS, _NEARLY_LIKE = 0.02, 0.05


def is_binary(head: bytes) -> bool:
    """Whether a file that begins so is no text in any encoding."""
    return _has_controls(head[:SHORT_HEAD_BYTES]) and not wide_encoding(head)


def _has_controls(head: bytes) -> bool:
    return len(head) - len(head.translate(None, CONTROLS)) >= _FEWEST_CONTROLS * len(head) > 0


def wide_encoding(head: bytes) -> str:
    """Return the encoding of UTF-16 or UTF-32 in which a file begins, or ""."""
    marked = next((name for mark, name in _MARKS.items() if head.startswith(mark)), "")
    head = head[:SHORT_HEAD_BYTES]
    if marked or not _has_controls(head):
        return marked
    best, most = "", 0.0
    for name in _WIDE:
        try:
            text = codecs.getincrementaldecoder(name)().decode(head)
        except UnicodeDecodeError:
            continue
        printable = sum(one.isprintable() or one in _BLANKS for one in text)
        blanks = sum(one in _BLANKS for one in text)
        if printable >= _PRINTABLE * len(text) and blanks > max(most, _FEWEST_BLANKS * len(text)):
            best, most = name, blanks
    return best


def detect_encoding(content: bytes) -> str | None:
    """The encoding of a file or its beginning, which may cut a character; None if nothing fits."""
    if wide := wide_encoding(content):
        return wide
    try:
        codecs.getincrementaldecoder("utf-8")().decode(content)
    except UnicodeDecodeError as error:
        begin = content.rfind(b"\n", 0, error.start) + 1 if error.start >= HEAD_BYTES else 0
        head = content[begin : begin + HEAD_BYTES]
        return guess_encoding(head.rpartition(b"\n")[0] or head)
    return "utf-8"


def decode(head: bytes) -> tuple[str, str]:
    """Return the text of a sample, without a byte order mark, and its encoding."""
    encoding = detect_encoding(head) or "latin-1"
    text = codecs.getincrementaldecoder(encoding)("replace").decode(head)
    return text.removeprefix("\ufeff"), encoding


def archive_kind(head: bytes) -> str:
    """Return what a file that is no text is, and what to do, or ""."""
    if head[257:].startswith(b"ustar"):
        return "a tar archive: unpack it"
    return next((kind for magic, kind in _ARCHIVES.items() if head.startswith(magic)), "")


def guess_encoding(content: bytes) -> str | None:
    """Guess the encoding of whole lines that are not UTF-8; None if nothing fits, or for ASCII."""
    sample = b""
    for line in content.splitlines(keepends=True):
        if not line.isascii():
            sample += line
        if len(sample) > _SAMPLE_BYTES:
            break
    if not sample:
        return None
    shares = {name: _share_of_frequent(sample, name) for name in _FREQUENT}
    best = max(shares, key=lambda name: shares[name])
    return best if shares[best] >= _FEWEST_FREQUENT else _guess_single_byte(sample)


def _share_of_frequent(sample: bytes, name: str) -> float:
    try:
        text = codecs.getincrementaldecoder(name)().decode(sample)
    except UnicodeDecodeError:
        return 0.0
    letters = [one for one in text if not one.isascii()]
    return sum(one in _FREQUENT[name] for one in letters) / max(1, len(letters))


def _guess_single_byte(sample: bytes) -> str | None:
    from charset_normalizer import from_bytes

    # Disorder and, against it, likeness to a language, of each encoding that decodes the sample.
    scores = {
        name: (match.chaos, match.coherence)
        for match in from_bytes(sample, cp_isolation=_SINGLE_BYTE)
        for name in match.could_be_from_charset
    }
    if not scores:
        return None
    least = min(chaos for chaos, _ in scores.values())
    likely = {
        name: like for name, (chaos, like) in scores.items() if chaos <= least + _NEARLY_CHAOS
    }
    most = max(likely.values())
    return next(name for name in _SINGLE_BYTE if likely.get(name, -1.0) >= most - _NEARLY_LIKE)


CUT_OFF = "cut-off file"
UNSOUND = "unsound file"
NOT_DECODED = "not in its encoding"

_SMALLEST_PIECE, _LARGEST_PIECE = 1 << 20, 8 << 20
_UNPACKED_PIECE = 1 << 16
_ZSTANDARD_PIECE = 1 << 12  # as many intact bytes may be lost before damage
_MARGIN = 1 << 16  # read past the end of a range: usually enough for the rest of its last line
_PACKED_FACTOR = 3
# An .xz file that states a larger dictionary is refused before memory is taken for it.
_XZ_MEMORY_BYTES = 1 << 30


@dataclass
class _Streams:
    """The content of streams that follow each other in an .xz or .bz2 file, with zeros between them
    or without. Unlike `lzma.open` and `bz2.open`, it takes no damaged stream for the end."""

    packed: BinaryIO
    decompressor: Callable[[], Any]
    stream: Any = None
    begin: int = 0  # where what is not known to be intact begins

    def tell(self) -> int:
        return self.begin

    def read1(self, num_bytes: int) -> bytes:
        """Return at most `num_bytes`, none at the end."""
        while True:
            if self.stream is None or self.stream.eof:
                packed = b"" if self.stream is None else self.stream.unused_data
                while not packed.lstrip(b"\0"):
                    if not (packed := self.packed.read(_UNPACKED_PIECE)):
                        return b""
                packed = packed.lstrip(b"\0")
                self.begin = self.packed.tell() - len(packed)
                self.stream = self.decompressor()
            else:
                self.begin = self.packed.tell()
                packed = self.packed.read(_UNPACKED_PIECE) if self.stream.needs_input else b""
                if self.stream.needs_input and not packed:
                    raise EOFError
            if piece := self.stream.decompress(packed, num_bytes):
                return piece


_OPEN: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": gzip.open,
    ".bgz": gzip.open,
    ".bz2": partial(_Streams, decompressor=bz2.BZ2Decompressor),
    ".xz": partial(
        _Streams,
        decompressor=partial(
            lzma.LZMADecompressor, format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES
        ),
    ),
    # python-zstandard's own stream does not report a truncated file.
    ".zst": lambda stream: pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd"),
}


class UnsoundError(Exception):
    """The content of a file is intact for `at` bytes and cannot be read further. `lost` counts
    stored bytes; after a decoding error, those of the unpacked content."""

    def __init__(self, reason: str, detail: str, at: int, lost: int) -> None:
        super().__init__(detail)
        self.reason = reason
        self.at = at
        self.lost = lost


def compression_suffix(name: str) -> str:
    """Return the suffix of a compressed file as it is written, such as ".gz" or ".GZ", or ""."""
    return next((name[-len(each) :] for each in _OPEN if name.lower().endswith(each)), "")


def estimate_unpacked_bytes(file: SourceFile) -> int:
    """The size of a file after unpacking, at an assumed compression ratio."""
    return file.size_bytes * (_PACKED_FACTOR if compression_suffix(file.name) else 1)


def read_pieces(file: SourceFile, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Yield the decompressed content from `begin` on; `end` is roughly where the reader stops.
    Compressed files ignore both. Raises UnsoundError where they are corrupt or truncated."""
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
    """Return the first bytes of the content, fewer if it is damaged."""
    return read_start(file, num_bytes)[0]


def read_start(file: SourceFile, num_bytes: int) -> tuple[bytes, float]:
    """Return the first bytes of the content, and about which share of all they are."""
    head, suffix = b"", compression_suffix(file.name)
    with file.open() as stream, contextlib.suppress(UnsoundError):
        pieces = (
            _unpack(stream, suffix, file.size_bytes)
            if suffix
            else iter(lambda: stream.read(min(num_bytes, _LARGEST_PIECE)), b"")
        )
        for piece in pieces:
            head += piece
            if len(head) > num_bytes:
                packed = stream.tell() if suffix else len(head)
                return head[:num_bytes], packed / file.size_bytes * num_bytes / len(head)
    return head, 1.0


_DIGEST = re.compile(rb"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{32,}\b")
POINTER_BYTES, _POINTER_WORDS = 1000, 4


def is_pointer(content: bytes) -> bool:
    """Whether a file stands for data elsewhere, as the pointers of Git LFS, git-annex and DVC do: a
    few short lines with a digest."""
    short = all(len(line.split()) <= _POINTER_WORDS for line in content.splitlines())
    return len(content) < POINTER_BYTES and short and bool(_DIGEST.search(content))


def _unpack(stream: BinaryIO, suffix: str, size_bytes: int) -> Iterator[bytes]:
    content, at = _OPEN[suffix.lower()](stream), 0
    # read1 returns what is available, so no intact data before an error are lost.
    is_zstandard = suffix.lower() == ".zst"
    read_piece = content.read if is_zstandard else content.read1
    try:
        while piece := read_piece(_ZSTANDARD_PIECE if is_zstandard else _UNPACKED_PIECE):
            yield piece
            at += len(piece)
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        # pyarrow reports truncation only in its message.
        is_cut = isinstance(error, EOFError) or "Truncated" in str(error)
        detail = f"a cut-off {suffix}" if is_cut else f"an unsound {suffix} ({error})"
        read_bytes = (content if isinstance(content, _Streams) else stream).tell()
        raise UnsoundError(
            CUT_OFF if is_cut else UNSOUND,
            f"{detail}, sound for {at:,} bytes of its content",
            at,
            max(1, size_bytes - read_bytes),
        ) from None


def transcode(content: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Transcode `content` to UTF-8; raises UnsoundError, with an offset in UTF-8, if it cannot. For
    encodings whose line breaks are not those of ASCII; their files are never split."""
    decoder = codecs.getincrementaldecoder(encoding)()
    pieces, piece = iter(content), b""
    at = 0
    try:
        for piece in pieces:
            converted = decoder.decode(piece).encode("utf-8", "surrogatepass")
            yield converted
            at += len(converted)
        yield decoder.decode(b"", final=True).encode()
    except UnicodeError as error:  # without a place if the mark is missing of UTF-16 or UTF-32
        is_placed = isinstance(error, UnicodeDecodeError)
        rest, reason = (error.object, error.reason) if is_placed else (piece, str(error))
        size = len(rest) + sum(map(len, pieces))
        raise UnsoundError(NOT_DECODED, f"not {encoding}: {reason}", at, size) from None


def split_lines(
    content: Iterable[bytes], offset: int, maximum_bytes: int, part_bytes: int
) -> Iterator[tuple[int, bytes, bool, bool]]:
    """Yield the lines of `content`, which begins at `offset`, with their breaks (LF, CRLF or CR):
    the offset, the bytes, and whether a line begins and ends there. One of more than
    `maximum_bytes` comes in parts of about `part_bytes`."""
    # One buffer, since joining a long line again and again would hold several copies of it.
    pending, begins = bytearray(), True
    for piece in chain(with_whole_breaks(content), [b""]):
        for line in piece.splitlines(keepends=True) or [piece]:
            pending += line
            while len(pending) > maximum_bytes:
                part = bytes(cut(pending, part_bytes))
                del pending[: len(part)]
                yield offset, part, begins, False
                offset, begins = offset + len(part), False
            if line.endswith((b"\n", b"\r")) or (pending and not piece):
                whole = bytes(pending)
                pending.clear()
                yield offset, whole, begins, True
                offset, begins = offset + len(whole), True


def cut(line: bytearray, num_bytes: int) -> bytearray:
    """Return the beginning of a longer line, up to a blank, or else the end of a character."""
    end = max(line.rfind(blank, num_bytes // 2, num_bytes) for blank in (b" ", b"\t")) + 1
    if not end:
        end = num_bytes
        while end > 1 and 0x80 <= line[end] < 0xC0:
            end -= 1
    return line[:end]


def with_whole_breaks(content: Iterable[bytes]) -> Iterator[bytes]:
    """Regroup pieces so that none ends between a CR and its LF."""
    rest = b""
    for piece in content:
        joined = rest + piece
        rest = b"\r" if joined.endswith(b"\r") else b""
        if whole := joined[:-1] if rest else joined:
            yield whole
    if rest:
        yield rest
