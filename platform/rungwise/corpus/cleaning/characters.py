"""Unicode clean-up: unify characters that look the same, and remove invisible ones. And a guess of
the language of a text.

    clean("na\\u0308ive\\u00a0text\\r\\n") == Cleaned("näive text\\n", removed=0, replaced=0)

Works on UTF-8 bytes, at a nanosecond a byte per step. Line breaks stay, since readers and
segmentation need them, and HTML's become such."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_ASCII = bytes(range(128))
_MAPPED = bytes.maketrans(b"\t\v\f\r", b" \n\n\n")
# The characters of each kind, in strings, since tokenizer/files.py writes patterns of them.
CONTROLS = "".join(map(chr, [*range(9), *range(0x0E, 0x20), 0x7F]))
# Marks between paragraphs and documents: clean text holds no control characters.
PARAGRAPH, DOCUMENT = "\1", "\2"
_MARKS = re.compile("[\1\2]")
_CONTROLS = CONTROLS.encode()
_CONTROLS_BUT_MARKS = _CONTROLS.translate(None, b"\1\2")
# Also line breaks: NEL and the Unicode separators.
LINE_BREAKS = "\x85\u2028\u2029"
ODD_BLANKS = "\u00a0\u1680\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
# Soft hyphen, zero-width space, direction marks, word joiner and its kin, BOM.
INVISIBLE = "\u00ad\u180e\u200b\u200e\u200f\ufeff" + "".join(
    map(chr, (*range(0x202A, 0x202F), *range(0x2060, 0x2070)))
)
# C1 controls and noncharacters, as ranges.
UNREADABLE = "\x80-\x84\x86-\x9f\ufdd0-\ufdef\ufffe\uffff"
# And lone surrogates: JSON can hold them, UTF-8 cannot.
_UNREADABLE = re.compile(f"[{UNREADABLE}\ud800-\udfff]")
# Zero-width (non-)joiners spell Persian, Indic scripts and emoji; beside ASCII they are noise.
JOINERS = "(?<![^\x00-\x7f])[\u200c\u200d]++|(?<=[^\x00-\x7f])[\u200c\u200d]++(?![^\x00-\x7f])"
_JOINERS = re.compile(JOINERS)
HTML_BREAK = "<[bB][rR] */?>"
_HTML_BREAK = re.compile(HTML_BREAK.encode())


class Cleaned(NamedTuple):
    """The text, the unreadable characters removed, and the U+FFFD left in it."""

    text: str
    removed: int
    replaced: int


def clean(text: str) -> Cleaned:
    """Return `text` in NFC, with plain line breaks, single spaces and no invisible characters.
    Replacement characters (U+FFFD) stay, since they mark lost text, and are counted."""
    if text.isascii() and text.isprintable() and "  " not in text and "<" not in text:
        return Cleaned(text.strip(" "), 0, 0)
    return _clean(text, _CONTROLS)


def clean_all(documents: Sequence[Sequence[str]]) -> Cleaned:
    """Clean the paragraphs of many documents at once, in a tenth of the time. In the result, a line
    of `PARAGRAPH` separates paragraphs and a line of `DOCUMENT` documents."""
    between = f"\n{PARAGRAPH}\n"
    joined = f"\n{DOCUMENT}\n".join(map(between.join, documents))
    num_marks = sum(max(0, len(paragraphs) - 1) for paragraphs in documents)
    removed = joined.count(PARAGRAPH) - num_marks
    removed += joined.count(DOCUMENT) - max(0, len(documents) - 1)
    if removed:
        plain = ([_MARKS.sub("", text) for text in paragraphs] for paragraphs in documents)
        joined = f"\n{DOCUMENT}\n".join(map(between.join, plain))
    cleaned = _clean(joined, _CONTROLS_BUT_MARKS)
    return cleaned._replace(removed=cleaned.removed + removed)


def _clean(text: str, controls: bytes) -> Cleaned:
    data = text.encode("utf-8", "surrogatepass")
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    length = len(data)
    data = data.translate(_MAPPED, controls)
    removed = length - len(data)
    if text.isascii():
        return Cleaned(_single_blanks(data).decode("ascii").strip(), removed, 0)
    others = data.translate(None, _ASCII).decode("utf-8", "surrogatepass")
    codes = np.frombuffer(others.encode("utf-32-le", "surrogatepass"), np.uint32)
    kinds = frozenset(map(chr, np.unique(codes).tolist()))
    for several, plain in ((LINE_BREAKS, b"\n"), (INVISIBLE, b""), (ODD_BLANKS, b" ")):
        for kind in kinds.intersection(several):
            data = data.replace(kind.encode(), plain)
    text = data.decode("utf-8", "surrogatepass")
    if _UNREADABLE.search("".join(kinds)):
        text, count = _UNREADABLE.subn("", text)
        removed += count
    text = _compose(text)
    if not kinds.isdisjoint("\u200c\u200d"):
        # Without the joiner, a letter and its accent may meet.
        text = _compose(_JOINERS.sub("", text))
    text = _single_blanks(text.encode()).decode().strip()
    return Cleaned(text, removed, text.count("\ufffd"))


def _single_blanks(data: bytes) -> bytes:
    """Write HTML's line breaks plainly; remove blanks after a blank and beside a line break."""
    data = _HTML_BREAK.sub(b"\n", data)
    codes = np.frombuffer(bytearray(data), np.uint8)
    blank = codes == ord(" ")
    again = blank[1:] & blank[:-1]
    if again.any():
        # Zeros are deleted: clean text has no others.
        codes[1:] *= ~again
        codes = np.frombuffer(bytearray(codes.tobytes().translate(None, b"\0")), np.uint8)
        blank = codes == ord(" ")
    line_break = codes == ord("\n")
    beside = blank[1:-1] & (line_break[2:] | line_break[:-2])
    if beside.any():
        codes[1:-1] *= ~beside
        return codes.tobytes().translate(None, b"\0")
    return codes.tobytes()


def _compose(text: str) -> str:
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


# How the bytes of UTF-8 look in Windows' encoding of Western languages: those that begin a
# character of two or three bytes, and those that continue one.
_BYTES = [
    bytes([code]).decode("cp1252", "replace").replace("\ufffd", chr(code)) for code in range(256)
]
_AS_BYTES = {character: code for code, character in enumerate(_BYTES)}
_MORE = "".join(map(re.escape, _BYTES[0x80:0xC0]))
_MISREAD = re.compile(
    f"[{''.join(_BYTES[0xC2:0xE0])}][{_MORE}]|[{''.join(_BYTES[0xE0:0xF0])}][{_MORE}]{{2}}"
)
_FEWEST_MISREAD, _MISREAD_SHARE = 3, 0.2


def describe_lost_characters(text: str) -> list[str]:
    """Return notes on text that was decoded wrongly before it came here."""
    notes = []
    if lost := text.count("\ufffd"):
        notes.append(
            f"{lost:,} characters were lost before (\ufffd), where the text was decoded wrongly"
        )
    misread = Counter(_MISREAD.findall(text))
    others = sum(not character.isascii() for character in text)
    if misread.total() >= _FEWEST_MISREAD and 2 * misread.total() >= _MISREAD_SHARE * others:
        usual = misread.most_common(1)[0][0]
        right = bytes(_AS_BYTES[character] for character in usual).decode("utf-8", "replace")
        notes.append(
            f"{misread.total():,} places look like UTF-8 read in another encoding, such as "
            f"{usual} for {right}; mend the text first, for example by ftfy"
        )
    return notes


# Scripts, and the least share of letters that shows them; Japanese first, as it also writes Han.
_SCRIPTS = {
    "Japanese": (re.compile("[\u3040-\u30ff]"), 0.1),
    "Korean": (re.compile("[\uac00-\ud7a3]"), 0.3),
    "Chinese": (re.compile("[\u3400-\u9fff]"), 0.3),
}


def guess_language(text: str) -> str:
    """Guess the language or script of a text by its letters."""
    letters = sum(map(str.isalpha, text)) or 1
    for name, (pattern, share) in _SCRIPTS.items():
        if len(pattern.findall(text)) / letters > share:
            return name
    latin = sum(letter.isascii() and letter.isalpha() for letter in text) / letters
    return "Latin letters" if latin > 0.7 else "letters other than Latin"
