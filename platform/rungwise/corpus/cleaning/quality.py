"""Rules that tell prose from tables, lists, blobs and boilerplate in any language.

These are the rules of Rae et al. 2021 (arXiv:2112.11446, appendix A1.1) that need no word list,
with three changes: the share of words with a letter is replaced by the shares of letters and digits
among characters, as Chinese has no blanks; the mean word length by the longest word; and repeated
lines by repeated sentences. The first broken rule is reported.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from rungwise.core.configuration.config import Config

# Scripts written without blanks: Thai, Lao, Tibetan, Myanmar, Khmer, kana and Han.
_NO_BLANKS_RANGES = (
    "\u0e00\u0fff",
    "\u1000\u109f",
    "\u1780\u17ff",
    "\u2e80\u9fff",
    "\uf900\ufaff",
    "\U00020000\U0003ffff",
)
_NO_BLANKS = re.compile("[" + "".join(map("-".join, _NO_BLANKS_RANGES)) + "]")
_OTHER, _BLANK, _LETTER, _DIGIT, _LOST = range(5)


class QualityConfig(Config):
    """Limits on the characters of a document. An extreme value turns a rule off."""

    # share of visible characters that are letters, of any script, or marks on them
    minimum_letter_share: float = Field(default=0.6, ge=0, le=1)
    # share of visible characters that are digits
    maximum_digit_share: float = Field(default=0.2, ge=0, le=1)
    # share of visible characters that are replacement characters, U+FFFD
    maximum_lost_share: float = Field(default=0.01, ge=0, le=1)
    # characters in a row without a blank, in scripts that use blanks; a longer run is encoded data
    maximum_unbroken_characters: int = Field(default=500, ge=1)
    # share of the text in sentences that the document has had before
    maximum_repeated_share: float = Field(default=0.3, ge=0, le=1)
    # share of the text in all copies of one repeated sentence
    maximum_one_sentence_share: float = Field(default=0.2, ge=0, le=1)


def find_fault(sentences: Sequence[str], config: QualityConfig) -> str:
    """Return the reason to drop a document, such as "quality: few letters", or ""."""
    text = " ".join(sentences)
    counts = _counts(text)
    visible = max(1, int(counts.sum() - counts[_BLANK]))
    if counts[_LOST] > config.maximum_lost_share * visible:
        return "quality: many lost characters"
    if counts[_LETTER] < config.minimum_letter_share * visible:
        return "quality: few letters"
    if counts[_DIGIT] > config.maximum_digit_share * visible:
        return "quality: many digits"
    if _is_unbroken(text, config.maximum_unbroken_characters):
        return "quality: long run without a blank"
    repeated, most = _repetition(sentences)
    if repeated > config.maximum_repeated_share * len(text):
        return "quality: repeated sentences"
    if most > config.maximum_one_sentence_share * len(text):
        return "quality: one sentence again and again"
    return ""


def is_word(codes: np.ndarray) -> np.ndarray:
    """Whether each code point is a letter, a mark on one, or a digit."""
    classes = _classes()[codes]
    return (classes == _LETTER) | (classes == _DIGIT)


def is_word_alone(codes: np.ndarray) -> np.ndarray:
    """Whether each code point is of a script written without blanks."""
    alone = np.zeros(len(codes), bool)
    for first, last in _NO_BLANKS_RANGES:
        alone |= (codes >= ord(first)) & (codes <= ord(last))
    return alone


def _counts(text: str) -> np.ndarray:
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return np.bincount(_classes()[codes], minlength=5)


def _repetition(sentences: Sequence[str]) -> tuple[int, int]:
    """Count characters in repeats, and in all copies of the sentence that takes the most."""
    times = Counter(sentences)
    if len(times) == len(sentences):
        return 0, 0
    several = {sentence: count for sentence, count in times.items() if count > 1}
    repeated = sum(len(sentence) * (count - 1) for sentence, count in several.items())
    return repeated, max(len(sentence) * count for sentence, count in several.items())


def _is_unbroken(text: str, maximum: int) -> bool:
    words = (word for word in text.split(" ") if len(word) > maximum)
    return any(len(part) > maximum for word in words for part in _NO_BLANKS.split(word))


@functools.cache
def _classes() -> np.ndarray:
    class_of = {"L": _LETTER, "M": _LETTER, "N": _DIGIT, "Z": _BLANK}
    by_code = bytes(
        class_of.get(unicodedata.category(chr(code))[0], _OTHER)
        for code in range(sys.maxunicode + 1)
    )
    classes = np.frombuffer(by_code, np.uint8).copy()
    classes[0xFFFD] = _LOST
    return classes
