"""Speed of reading, of models whose clock is known."""

import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from rungwise.evaluation.comparison.claim_comparisons import compare
from rungwise.evaluation.comparison.claims import registered_claims
from rungwise.evaluation.suites import speed
from rungwise.evaluation.suites.items import Items
from rungwise.evaluation.suites.speed import SpeedSuite
from rungwise.tokenizer import SpecialIds


class Reader:
    """Reads a text in the seconds that `takes` says for its length; the first one takes longer."""

    vocab_size, is_exact = 50, True

    def __init__(self, takes: Callable[[int], float]) -> None:
        self.takes, self.now, self.warm = takes, 0.0, 10.0
        self.lengths: list[int] = []

    def log_probabilities(self, texts: Sequence[Sequence[int]]) -> list[np.ndarray]:
        (text,) = texts
        assert not {0, 1} & set(text), "an end within a text begins another"
        self.lengths.append(len(text))
        self.now += self.takes(len(text)) + self.warm
        self.warm = 0.0
        return [np.zeros(len(text))]


def items(monkeypatch: pytest.MonkeyPatch, takes: Callable[[int], float]) -> list[Items]:
    reader: Any = Reader(takes)
    monkeypatch.setattr(speed.time, "perf_counter", lambda: reader.now)
    rung: Any = SimpleNamespace(model=reader, special=SpecialIds(end=0, ids=(0, 1)))
    suite = SpeedSuite(rounds=4)
    assert suite.serves(rung)
    found = suite.measure(rung, "speed").items
    assert reader.lengths == list(itertools.chain.from_iterable([[16, 128]] * 5))  # in turns
    return found


def test_tokens_a_second_of_each_length_without_the_first_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short, long = items(monkeypatch, lambda length: length / 100)
    assert (short.part, long.part) == ("length 16", "length 128")
    for each in (short, long):
        assert each.numbers[:, 0] / each.numbers[:, 1] == pytest.approx([100] * 4)


@pytest.mark.parametrize("lengths", [(0, 16), (16, 16)])
def test_lengths_that_cannot_be_told_apart_or_read_are_refused(lengths: tuple[int, ...]) -> None:
    with pytest.raises(ValidationError, match="expected different numbers from 1"):
        SpeedSuite(lengths=lengths)


def test_the_claim_is_of_what_length_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = items(monkeypatch, lambda _: 0.01)
    by_word = items(monkeypatch, lambda length: length / 1000)
    measured = {
        rung: {each.key: [each] for each in read}
        for rung, read in (("gpt", at_once), ("lstm", by_word))
    }
    (comparison,) = registered_claims().claims["K21"].comparisons
    judged = compare(comparison, measured, {}, ())
    assert judged.value == pytest.approx(np.log(128 / 16))
    assert judged.verdict == "confirmed"
