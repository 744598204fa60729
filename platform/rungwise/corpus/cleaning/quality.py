"""Rules that tell prose from tables, lists, blobs and boilerplate in any language, after Rae et al.
2021 (arXiv:2112.11446, appendix A1.1) without blanks or word lists."""

import functools
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Sequence

import numpy as np

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


# Shares of the visible characters.
_LEAST_LETTERS, _MOST_DIGITS, _MOST_LOST = 0.6, 0.2, 0.01
# Characters in a row without a blank, in scripts that use blanks; a longer run is encoded data.
_LONGEST_RUN = 500
# Shares of the text: in sentences that the document has had before, and in all copies of one.
_MOST_REPEATED, _MOST_OF_ONE = 0.3, 0.2


def find_fault(sentences: Sequence[str]) -> str:
    """Return the reason to drop a document, such as "quality: few letters", or ""."""
    text = " ".join(sentences)
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    counts = np.bincount(_classes()[codes], minlength=5)
    visible = max(1, int(counts.sum() - counts[_BLANK]))
    words = (word for word in text.split(" ") if len(word) > _LONGEST_RUN)
    repeats = [(len(one), count) for one, count in Counter(sentences).items() if count > 1]
    repeated = sum(length * (count - 1) for length, count in repeats)
    most = max((length * count for length, count in repeats), default=0)
    faults = {
        "many lost characters": counts[_LOST] > _MOST_LOST * visible,
        "few letters": counts[_LETTER] < _LEAST_LETTERS * visible,
        "many digits": counts[_DIGIT] > _MOST_DIGITS * visible,
        "long run without a blank": any(
            len(part) > _LONGEST_RUN for word in words for part in _NO_BLANKS.split(word)
        ),
        "repeated sentences": repeated > _MOST_REPEATED * len(text),
        "one sentence again and again": most > _MOST_OF_ONE * len(text),
    }
    return next((f"quality: {fault}" for fault, is_there in faults.items() if is_there), "")


def is_word(codes: np.ndarray) -> np.ndarray:
    """Whether each code point is a letter, a mark on one, or a digit."""
    classes = _classes().take(codes)
    return (classes == _LETTER) | (classes == _DIGIT)


def is_word_alone(codes: np.ndarray) -> np.ndarray:
    """Whether each code point is of a script written without blanks."""
    alone = np.zeros(len(codes), bool)
    for first, last in _NO_BLANKS_RANGES:
        alone |= (codes >= ord(first)) & (codes <= ord(last))
    return alone


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
