"""Typing errors: one in a word that is altered, at the rate asked for; every target stays right."""

from typing import Any

import numpy as np
import pytest

from rungwise.core.errors import DataError
from rungwise.tasks.data.files import add_errors
from rungwise.tasks.kinds.examples import Answer, ChoiceExample, Question, Tagged, Text


def made_up(count: int, seed: int = 0) -> list[str]:
    """Words of small letters, of one letter to eleven."""
    rng = np.random.default_rng(seed)
    letters = [*"abcdefghijklmnopqrstuvwxyz"]
    return ["".join(rng.choice(letters, rng.integers(1, 12))) for _ in range(count)]


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
        can = sum(len(word) >= 4 and len({*word[1:-1]}) > 1 for word in words)
        assert abs(len(altered[rate]) - rate * can) <= 4 * np.sqrt(rate * (1 - rate) * can)
        for n in altered[rate]:
            word, changed = pairs[n]
            first, second = (m for m in range(len(word)) if word[m] != changed[m])
            assert 0 < first == second - 1 < len(word) - 2
            assert (word[first], word[second]) == (changed[second], changed[first])
    assert altered[0.1] < altered[0.3] < altered[1.0]
    assert all(said[0.1][n] == said[0.3][n] == said[1.0][n] for n in altered[0.1])
    other = add_errors(texts, 0.3, seed=4)
    assert " ".join(copy.text for copy in other).split(" ") != said[0.3]


def test_every_kind_keeps_its_targets_and_what_it_has_none_of() -> None:
    examples: list[Any] = [
        Text("a", "some words", None, "yes"),
        Text("a", "some words", "other words", 2.5),
        Text("a", "some words", None, ("a", "b")),
        Tagged("a", ("some", "of", "longer-words", "."), ("O", "O", "B-X", "O")),
        ChoiceExample("a", "some words", None, ("longer", "words"), 1),
        Question("a", "1", "some words", "other words", (Answer("other", 0),)),
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
        if isinstance(example, Question):
            assert copy.context == example.context, "its answers are places in it"


def test_a_copy_without_an_error_is_refused() -> None:
    with pytest.raises(DataError, match=r"evaluate\.noise: 0\.3 changes none of the 2 test"):
        add_errors([Text("a", "a 1234 the"), Text("b", "")], 0.3, seed=0)
