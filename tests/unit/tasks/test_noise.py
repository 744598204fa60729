"""Typing errors: one in a word that is altered, at the rate asked for; every target stays right."""

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rungwise.core.errors import DataError
from rungwise.tasks.data.files import add_errors
from rungwise.tasks.kinds.examples import Answer, ChoiceExample, Question, Tagged, Text

ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
TYPED = {a + b for row in ROWS for a, b in pairwise(row)}


def made_up(count: int, seed: int = 0) -> list[str]:
    """Words of small letters, of one letter to eleven."""
    rng = np.random.default_rng(seed)
    letters = [*"".join(ROWS)]
    return ["".join(rng.choice(letters, rng.integers(1, 12))) for _ in range(count)]


def distance(a: str, b: str) -> int:
    """Insertions, deletions, replacements and swaps of neighbours (optimal string alignment)."""
    rows = [list(range(len(b) + 1))]
    for i, x in enumerate(a, start=1):
        rows.append([i])
        for j, y in enumerate(b, start=1):
            ways = [rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + (x != y)]
            if i > 1 and j > 1 and (x, a[i - 2]) == (b[j - 2], y):
                ways.append(rows[i - 2][j - 2] + 1)
            rows[i].append(min(ways))
    return rows[-1][-1]


def way(word: str, changed: str) -> str:
    if len(word) != len(changed):
        return "drop" if len(word) > len(changed) else "insert"
    places = [n for n, (a, b) in enumerate(zip(word, changed, strict=True)) if a != b]
    return "swap" if len(places) == 2 else "replace"


def test_each_altered_word_has_one_error_inside_and_the_rate_is_that_asked_for() -> None:
    words = made_up(8000)
    texts = [Text(str(n), " ".join(words[n : n + 20])) for n in range(0, 8000, 20)]
    altered: dict[float, set[int]] = {}
    said: dict[float, list[str]] = {}
    for rate in (0.1, 0.3, 1.0):
        copies = add_errors(texts, rate, seed=3)
        assert copies == add_errors(texts, rate, seed=3)
        said[rate] = [word for copy in copies for word in copy.text.split(" ")]
        pairs = list(zip(words, said[rate], strict=True))
        altered[rate] = {n for n, (word, changed) in enumerate(pairs) if word != changed}
        can = sum(len(word) >= 4 for word in words)
        assert abs(len(altered[rate]) - rate * can) <= 4 * np.sqrt(rate * (1 - rate) * can)
        for n in altered[rate]:
            word, changed = pairs[n]
            assert distance(word, changed) == 1
            assert (word[0], word[-1], len(word) >= 4) == (changed[0], changed[-1], True)
    assert altered[0.1] < altered[0.3] < altered[1.0]
    assert all(said[0.1][n] == said[0.3][n] == said[1.0][n] for n in altered[0.1])
    ways = Counter(way(words[n], said[1.0][n]) for n in altered[1.0])
    assert all(abs(count / ways.total() - 0.25) < 0.04 for count in ways.values())
    assert len(ways) == 4
    for n in altered[1.0]:
        if way(words[n], said[1.0][n]) == "replace":
            [pair] = [a + b for a, b in zip(words[n], said[1.0][n], strict=True) if a != b]
            assert {pair, pair[::-1]} & TYPED, "the key beside it"
    other = add_errors(texts, 0.3, seed=4)
    assert " ".join(copy.text for copy in other).split(" ") != said[0.3]


LETTERS = st.text("abcdeLll 12,.é中文字是\n", max_size=60)


@settings(max_examples=150)
@given(LETTERS, st.integers(0, 60), st.integers(1, 20), st.integers(0, 9))
def test_an_answer_stays_where_it_says(context: str, start: int, length: int, seed: int) -> None:
    context = f"{context} enough words here"
    start = min(start, len(context) - 1)
    answer = Answer(context[start : start + length], start)
    asked = Question("a:1", "1", "Which words are here?", context, (answer,))
    [copy] = add_errors([asked], 1.0, seed)
    [moved] = copy.answers
    assert copy.context[moved.start : moved.start + len(moved.text)] == moved.text == answer.text
    assert copy.question != asked.question


def test_every_kind_keeps_its_targets_and_what_it_has_none_of() -> None:
    examples: list[Any] = [
        Text("a", "some words", None, "yes"),
        Text("a", "some words", "other words", 2.5),
        Text("a", "some words", None, ("a", "b")),
        Tagged("a", ("some", "of", "longer-words", "."), ("O", "O", "B-X", "O")),
        ChoiceExample("a", "some words", None, ("longer", "words"), 1),
        Question("a", "1", "some words", "other words", ()),
        Question("a", "1", "some words", "other words", None),
    ]
    for example in examples:
        [copy] = add_errors([example], 1.0, seed=0)
        assert copy != example
        for name in ("where", "second", "target", "tags", "answers", "id"):
            before, after = (getattr(each, name, None) for each in (example, copy))
            assert before == after or (name == "second" and before is not None)
        assert (getattr(copy, "question", 0) is None) == (getattr(example, "question", 0) is None)
        words = getattr(example, "words", None)
        assert words is None or len(copy.words) == len(words)


def test_a_copy_without_an_error_is_refused() -> None:
    with pytest.raises(DataError, match=r"evaluate\.noise: 0\.3 changes none of the 2 test"):
        add_errors([Text("a", "a 1234 the"), Text("b", "")], 0.3, seed=0)
