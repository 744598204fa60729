"""Refuse regular expressions of a tokenizer.json that take for ever on some text.

    (a+)+b   on n letters a: 2 to the power n ways to fail

A search can take exponential time only where a group of changing length or of alternatives is
itself repeated (Weideman et al. 2016, "Analyzing Matching Time Behavior of Backtracking Regular
Expression Matchers by Using Ambiguity of NFA"). No published tokenizer has such a group, so every
one is refused, also those that would end. What is left takes polynomial time, which the library
cuts off with a panic: `refuse_panic`.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from rungwise.core.errors import DataError

_FEW = 3  # times that a group may repeat another repetition
_TOKEN = re.compile(
    r"""\\(?:[pPx]\{[^}]*\}|.)          # an escape: \p{L}, \s
    | \[(?:\\.|\[(?:\\.|[^\]])*\]|(?<=\[)\^?\]|[^\]])*\]  # a class, which may hold another
    | \((?:\?(?:<?[=!]|>|<\w+>|[\w-]*:|\#))?           # the beginning of a group
    | \)
    | \|
    | (?P<quantifier>[*+?]|\{(?P<least>\d*)(?P<comma>,?)(?P<most>\d*)\})(?P<possessive>\+?)
    | .""",
    re.VERBOSE | re.DOTALL,
)


def refuse_slow_patterns(tokenizer: Any, source: str) -> None:
    """Raise DataError for a tokenizer.json, parsed, with a pattern that may take for ever."""
    match tokenizer:
        case {"Regex": str(pattern)}:
            if repeats_repetition(pattern):
                raise DataError(
                    f"{source}: the pattern {pattern!r:.80} repeats a group that has several "
                    "lengths or alternatives, and may take for ever on some text; write it "
                    "without a repetition in a repetition"
                )
        case dict():
            # Not the vocabulary, which has no patterns and millions of entries.
            for key in tokenizer.keys() - {"model", "added_tokens"}:
                refuse_slow_patterns(tokenizer[key], source)
        case list():
            for each in tokenizer:
                refuse_slow_patterns(each, source)


def repeats_repetition(pattern: str) -> bool:
    """Whether a group of several lengths or alternatives is repeated."""
    # For each open group, whether it varies, and whether it is atomic: never taken back.
    groups = [[False, False]]
    last = [False, False]  # of what a quantifier repeats
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if text[0] == "(":
            groups.append([False, text == "(?>"])
        elif text == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1][0] |= last[0] and not last[1]
        elif text == "|":
            groups[-1][0] = True
        elif token["quantifier"]:
            least, most = token["least"] or "0", token["most"]
            is_fixed = token["least"] is not None and (not token["comma"] or least == most)
            is_few = text == "?" or (bool(token["most"]) and int(most) <= _FEW)
            is_few |= is_fixed and int(least) <= _FEW
            if last[0] and not last[1] and not is_few and not token["possessive"]:
                return True
            groups[-1][0] |= not is_fixed and not token["possessive"]
        else:
            last = [False, False]
    return False


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
