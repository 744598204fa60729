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

No tagged word is lost, and the words of an answer stay while its offset moves with the text.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rungwise.core.errors import DataError
from rungwise.core.randomness import bits, uniform
from rungwise.tasks.kinds.examples import Answer, Example, Question, join_parts
from rungwise.tokens.text import document_hash

_WORD = re.compile(r"[^\W\d_]{4,}")
_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_BESIDE = {
    key: row[max(0, n - 1) : n] + row[n + 1 : n + 2] for row in _ROWS for n, key in enumerate(row)
}

Edit = tuple[int, int, str]  # [begin, end) of a text, and its replacement


def add_errors(examples: Sequence[Any], rate: float, seed: int) -> list[Any]:
    """Return the examples with an error in each word with probability `rate`, targets unchanged.

    Raises DataError if no word is changed: the model would seem robust.
    """
    copies = [_misspell(example, rate, seed) for example in examples]
    if copies == list(examples):
        raise DataError(
            f"evaluate.noise: {rate:g} changes none of the {len(copies)} test examples, of whose "
            "words those with four letters or more can be changed; leave it out, or raise it"
        )
    return copies


def noise_split(rate: float) -> str:
    """Return the name of the test split with errors at this rate."""
    return f"noise_{rate:g}"


def _misspell(example: Example, rate: float, seed: int) -> Example:
    key = document_hash(join_parts(example))
    answers = (example.answers or ()) if isinstance(example, Question) else ()
    fixed = {1: [(each.start, each.start + len(each.text)) for each in answers]}
    edits = [
        list(_edits(text, fixed.get(number, ()), rate, (seed, key, number)))
        for number, text in enumerate(example.parts)
    ]
    copy = example.replace_parts([*map(_apply, example.parts, edits)])
    if isinstance(copy, Question) and answers:
        shifted = tuple(Answer(each.text, _shift(each.start, edits[1])) for each in answers)
        return replace(copy, answers=shifted)
    return copy


def _edits(
    text: str, fixed: Sequence[tuple[int, int]], rate: float, place: tuple[int, int, int]
) -> Iterator[Edit]:
    """Yield the changes of words in order; words that overlap a range in `fixed` stay."""
    words = list(_WORD.finditer(text))
    changed_W = uniform(*place, np.arange(len(words)), 0) < rate
    numbers_W3 = bits(*place, np.arange(len(words))[:, None], np.arange(1, 4))
    for word, changed, numbers in zip(words, changed_W, numbers_W3.tolist(), strict=True):
        if changed and not any(word.start() < end and begin < word.end() for begin, end in fixed):
            yield word.start(), word.end(), _mistype(word[0], *numbers)


def _mistype(word: str, way: int, place: int, side: int) -> str:
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


def _apply(text: str, edits: Sequence[Edit]) -> str:
    pieces, end = [], 0
    for begin, stop, new in edits:
        pieces += [text[end:begin], new]
        end = stop
    return "".join([*pieces, text[end:]])


def _shift(place: int, edits: Sequence[Edit]) -> int:
    """Return the position after the edits of what was at `place`."""
    return place + sum(len(new) - (stop - begin) for begin, stop, new in edits if stop <= place)
