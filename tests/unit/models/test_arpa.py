"""ARPA files: what is written scores as the model does, and what cannot be written."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from rungwise.core.errors import DataError
from rungwise.models import ngram_model
from rungwise.models.families import kneser_ney, ngram

START, END, UNKNOWN = 0, 1, 2


def arpa_scores(lines: Iterable[str], sentence: Sequence[str]) -> list[float]:
    """The natural log-probability of each word and of the end, by the definition of back-off."""
    known: dict[tuple[str, ...], tuple[float, float]] = {}
    order = 0
    for line in lines:
        order += line.endswith("-grams:")
        if order and "\t" in line:
            log, words, *weight = line.split("\t")
            known[tuple(words.split(" "))] = float(log), float(weight[0]) if weight else 0.0

    def score(words: tuple[str, ...]) -> float:
        if words in known:
            return known[words][0]
        return known.get(words[:-1], (0.0, 0.0))[1] + score(words[1:])

    words = ["<s>", *(word if (word,) in known else "<unk>" for word in sentence), "</s>"]
    contexts = [tuple(words[max(0, end - order) : end]) for end in range(2, len(words) + 1)]
    return [score(each) * math.log(10) for each in contexts]


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_what_is_written_scores_as_the_model_does(order: int) -> None:
    rng = np.random.default_rng(order)
    texts = [[*rng.integers(3, 12, rng.integers(9)).tolist(), END] for _ in range(60)]
    offsets = np.cumsum([0, *map(len, texts)])
    table = ngram_model.count_ngrams(np.concatenate(texts).astype(np.uint16), offsets, order, START)
    model = kneser_ney.estimate_model(table, 14, START, kneser_ney.Smoothing((0.5, 1.0, 1.5)))
    words = [ngram.START, ngram.END, ngram.UNKNOWN, *(f"w{n}" for n in range(11))]
    written = list(ngram.arpa_lines(model, words))
    fresh = [[*rng.integers(2, 14, 7).tolist(), END] for _ in range(50)]
    for text, scores in zip(fresh, model.log_probabilities(fresh), strict=True):
        expected = arpa_scores(written, [words[index] for index in text[:-1]])
        np.testing.assert_allclose(scores, expected, rtol=1e-7)


def test_words_that_an_arpa_file_cannot_hold_are_refused() -> None:
    one = ngram_model.NgramLanguageModel(5, 0, np.zeros((1, 3)), (), (np.zeros(5),), ())
    for words, message in (
        (["<s>", "a", "</s>", "b", " "], "words without blanks .* found ' '"),
        (["<s>", "a", "</s>", "b", "a"], "each word once .* found 'a' twice"),
    ):
        with pytest.raises(DataError, match=message):
            list(ngram.arpa_lines(one, words))
