"""Refuse regular expressions of a tokenizer.json that take for ever on some text.

    (a+)+b   on n letters a: 2 to the power n ways to fail

Each pattern is tried on short texts in which what it may match is repeated, more often each time,
and followed by what it may not. It is refused if one of them takes the library long. A trial finds
exponential time in its usual forms, and cannot prove that there is none. The library itself cuts a
search off with a panic after some ten million steps: `refuse_panic`.
"""

import contextlib
import functools
import itertools
import re
import time
from collections.abc import Iterator
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers

from rungwise.core.errors import DataError

_SECONDS = 0.02  # of the processor, for a text of at most a few hundred characters
_COUNTS = (12, 20, 30, 50, 100)  # of repetitions: a slow one is found before the library gives up
_MOST_ATOMS, _WIDEST = 60, 3
_STOPS = ("!", "\n", "\0")
_CHARACTERS = "aAzZ09 _-.,'\n\xe9\u0301\u4e2d"
_ATOM = re.compile(
    r"""\(\?\#[^)]*\) | \(\?(?:<?[=!]|>|<\w+>|[\w-]*:)? | \{\d*,?\d*\} | [()|*+?^$]  # no atom
    | (?P<atom>\\[pP]\{[^}]*\} | \\. | \[(?:\\.|\[(?:\\.|[^\]])*\]|(?<=\[)\^?\]|[^\]])*\] | .)""",
    re.VERBOSE | re.DOTALL,
)


def refuse_slow_patterns(tokenizer: Any, source: str) -> None:
    """Raise DataError for a tokenizer.json, parsed, with a pattern that may take for ever."""
    match tokenizer:
        case {"Regex": str(pattern)}:
            if (text := find_slow_text(pattern)) is not None:
                raise DataError(
                    f"{source}: the pattern {pattern!r:.80} may take for ever, as on {text!r:.60}; "
                    "write it so that a text can be matched in one way only"
                )
        case dict():
            # Not the vocabulary, which has no patterns and millions of entries.
            for key in tokenizer.keys() - {"model", "added_tokens"}:
                refuse_slow_patterns(tokenizer[key], source)
        case list():
            for each in tokenizer:
                refuse_slow_patterns(each, source)


@functools.cache
def find_slow_text(pattern: str) -> str | None:
    """Return a text on which the pattern takes too long; None if none of those tried does."""
    try:
        splitter = pre_tokenizers.Split(Regex(pattern), "isolated")
    except Exception:  # no pattern, which whoever builds the tokenizer says
        return None
    for text in _texts(pattern):
        start = time.thread_time()
        try:
            with refuse_panic():
                splitter.pre_tokenize_str(text)
        except DataError:
            return text
        if time.thread_time() - start > _SECONDS:
            return text
    return None


def _texts(pattern: str) -> Iterator[str]:
    """Yield a few characters that atoms of the pattern match, repeated, behind those that the atoms
    before match, or behind nothing. What all atoms match stands at the end: without it the library
    may see that there is nothing to search."""
    atoms = [match["atom"] for match in _ATOM.finditer(pattern) if match["atom"]][:_MOST_ATOMS]
    samples = [_samples(atom, pattern) for atom in atoms] or [[""]]
    texts = ["".join(each) for each in zip(*samples, strict=True)]
    units = {
        (before, text[place : place + width]): None
        for text in texts
        for place in range(len(atoms))
        for width in range(1, _WIDEST + 1)
        for before in ("", texts[0][:place])
    }
    ends = ["", *(stop + texts[0] for stop in _STOPS)]
    for (before, unit), end, count in itertools.product(units, ends, _COUNTS):
        yield before + unit * count + end


def _samples(atom: str, pattern: str) -> list[str]:
    """Three characters that an atom matches, not always different ones."""
    try:
        remover = normalizers.Replace(Regex(atom), "")
    except Exception:  # a part of something else, such as a back reference
        return [atom[-1:]] * 3
    letters = sorted({*pattern, *_CHARACTERS})
    matches = [each for each in letters if not remover.normalize_str(each)] or [atom[-1:]]
    return [matches[0], matches[len(matches) // 2], matches[-1]]


@contextlib.contextmanager
def refuse_panic() -> Iterator[None]:
    """Raise DataError where the tokenizers library gives up on a text: it panics, with an exception
    that is no Exception."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise DataError(
            f"the tokenizers library gives up on a text ({error}); simplify the patterns of "
            "tokenizer.json, or leave the text out"
        ) from error
