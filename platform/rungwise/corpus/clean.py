"""Unicode clean-up: characters that look the same become the same, and invisible ones go.

    clean("na\\u0308ive\\u00a0text\\r\\n") == Cleaned("näive text\\n", removed=0, replaced=0)

Every step is one regular expression over the whole text; ASCII text skips all but the first ones.
Line breaks survive, for they carry the structure that readers and segmentation need.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

# NEL, form feed, vertical tab and the Unicode separators break lines too.
_LINE_BREAKS = re.compile("[\r\v\f\x85\u2028\u2029]")
_ASCII_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f]+")
# C1 controls, lone surrogates (JSON can hold them, UTF-8 cannot) and noncharacters.
_UNREADABLE = re.compile("[\x80-\x84\x86-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]+")
# Soft hyphen, zero-width space, direction marks, word joiner and its invisible kin, and the BOM.
_INVISIBLE = re.compile("[\u00ad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]+")
# The zero-width (non-)joiner spells Persian, Indic scripts and emoji, and is noise beside ASCII.
_JOINERS = re.compile(
    "(?<![^\x00-\x7f])[\u200c\u200d]++|(?<=[^\x00-\x7f])[\u200c\u200d]++(?![^\x00-\x7f])"
)
# A single plain blank is left alone by all of these, which is what makes them fast.
_ODD_BLANKS = re.compile("[\t\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_BLANK_RUNS = re.compile("  +")
_BLANKS_AT_BREAKS = re.compile(" \n ?|\n ")


class Cleaned(NamedTuple):
    """The text, how many unreadable characters were taken out of it, how many U+FFFD are in it."""

    text: str
    removed: int
    replaced: int


def clean(text: str) -> Cleaned:
    """`text` in NFC, with plain line breaks and single spaces, without invisible characters.

    A replacement character (U+FFFD) stays, as it marks where something was lost, and is counted.
    """
    text = _LINE_BREAKS.sub("\n", text.replace("\r\n", "\n"))
    length = len(text)
    text = _ASCII_CONTROLS.sub("", text)
    removed = length - len(text)
    replaced = 0
    if not text.isascii():
        length = len(text)
        text = _UNREADABLE.sub("", text)
        removed += length - len(text)
        replaced = text.count("\ufffd")
        text = _composed(_ODD_BLANKS.sub(" ", _INVISIBLE.sub("", text)))
        # Taking a joiner out can bring a letter and its accent together.
        text = _composed(_JOINERS.sub("", text))
    text = _BLANK_RUNS.sub(" ", text.replace("\t", " "))
    text = _BLANKS_AT_BREAKS.sub("\n", text)
    return Cleaned(text.strip(), removed, replaced)


def _composed(text: str) -> str:
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)
