"""Typing errors in the inputs of examples, for a score on noisy text (claim K25).

Each word of four letters or more is changed with a given probability, by one error inside it:

    swap     two neighbouring letters change places
    drop     a letter is missing
    insert   a neighbouring key is hit as well
    replace  a neighbouring key is hit instead

As in Belinkov & Bisk 2018 (arXiv:1711.02173) the first and last letter stay. A word is a run of
letters; for a letter that is not on an American keyboard the next letter of the word is hit. Errors
depend only on the seed, the example and the position of the word, and the words changed at one rate
are changed in the same way at each higher rate.

Targets stay valid: no tagged word is lost, and the words of an answer are not changed while its
offset moves with the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rungwise.core.errors import DataError
from rungwise.core.randomness import bits, uniform
from rungwise.tasks.data.splits import parts, whole
from rungwise.tasks.kinds.examples import Answer, ChoiceExample, Question, Tagged, Text
from rungwise.tokens.text import document_hash

_WORD = re.compile(r"[^\W\d_]{4,}")
_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_BESIDE = {
    key: row[max(0, n - 1) : n] + row[n + 1 : n + 2] for row in _ROWS for n, key in enumerate(row)
}

Edit = tuple[int, int, str]  # [begin, end) of a text, and its replacement


def noisy(examples: Sequence[Any], rate: float, seed: int) -> list[Any]:
    """Return the examples with an error in each word with probability `rate`, targets unchanged.

    Raises DataError if no word is changed: the model would seem robust.
    """
    copies = [_noisy(example, rate, seed) for example in examples]
    if copies == list(examples):
        raise DataError(
            f"evaluate.noise: {rate:g} changes none of the {len(copies)} test examples, of whose "
            "words those with four letters or more can be changed; leave it out, or raise it"
        )
    return copies


def split_of(rate: float) -> str:
    """Return the name of the test split with errors at this rate."""
    return f"noise_{rate:g}"


def _noisy(example: Any, rate: float, seed: int) -> Any:
    key = document_hash(whole(example))
    answers = (example.answers or ()) if isinstance(example, Question) else ()
    kept = {1: [(each.start, each.start + len(each.text)) for each in answers]}
    given = parts(example)
    edits = [
        list(_edits(text, kept.get(number, ()), rate, (seed, key, number)))
        for number, text in enumerate(given)
    ]
    texts = [_edited(*each) for each in zip(given, edits, strict=True)]
    match example:
        case Text():
            first, second = texts
            return replace(example, text=first, second=None if example.second is None else second)
        case Tagged():
            return replace(example, words=tuple(texts))
        case Question():
            question, context = texts
            moved = tuple(Answer(each.text, _moved(each.start, edits[1])) for each in answers)
            asked = replace(example, question=question, context=context)
            return replace(asked, answers=moved) if answers else asked
        case ChoiceExample():
            context, question, *options = texts
            question = None if example.question is None else question
            return replace(example, context=context, question=question, options=tuple(options))


def _edits(
    text: str, kept: Sequence[tuple[int, int]], rate: float, place: tuple[int, int, int]
) -> Iterator[Edit]:
    """Yield the changes of words in order; words that overlap a range in `kept` stay."""
    words = list(_WORD.finditer(text))
    changed_W = uniform(*place, np.arange(len(words)), 0) < rate
    numbers_W3 = bits(*place, np.arange(len(words))[:, None], np.arange(1, 4))
    for word, changed, numbers in zip(words, changed_W, numbers_W3.tolist(), strict=True):
        if changed and not any(word.start() < end and begin < word.end() for begin, end in kept):
            yield word.start(), word.end(), _mistyped(word[0], *numbers)


def _mistyped(word: str, way: int, place: int, side: int) -> str:
    at = 1 + place % (len(word) - 2)
    letter = word[at]
    beside = _BESIDE.get(letter.lower(), word[at + 1])
    key = beside[side % len(beside)]
    key = key.upper() if letter.isupper() else key
    match way % 4:
        case 0:
            at = min(at, len(word) - 3)
            changed = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        case 1:
            changed = word[:at] + key + word[at:]
        case 2:
            changed = word[:at] + key + word[at + 1 :]
        case _:
            changed = word
    # Drop a letter, also where the error above changed nothing because letters are equal.
    return word[:at] + word[at + 1 :] if changed == word else changed


def _edited(text: str, edits: Sequence[Edit]) -> str:
    pieces, end = [], 0
    for begin, stop, new in edits:
        pieces += [text[end:begin], new]
        end = stop
    return "".join([*pieces, text[end:]])


def _moved(place: int, edits: Sequence[Edit]) -> int:
    """Return the position after the edits of what was at `place`."""
    return place + sum(len(new) - (stop - begin) for begin, stop, new in edits if stop <= place)
