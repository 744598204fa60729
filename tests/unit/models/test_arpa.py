"""ARPA files: one by hand, what is written is what is read, and what is no ARPA."""

import math

import numpy as np
import pytest

from rungwise.core.errors import DataError
from rungwise.models.families import kneser_ney, ngram, ngram_model

START, END, UNKNOWN = 0, 1, 2
BY_HAND = """made by hand

\\data\\
ngram 1=5
ngram 2=3
ngram 3=1

\\1-grams:
-99\t<s>\t-0.5
-1.0\ta\t-0.25
-0.8\t</s>
-2.0\t<unk>
-1.5\tb\t-0.125

\\2-grams:
-0.3\t<s> a\t-0.0625
-0.4\ta </s>
-0.2\ta b\t-0.03125

\\3-grams:
-0.1\t<s> a b

\\end\\
"""


def test_scores_by_hand() -> None:
    """Behind `a b` nothing is known of </s>, nor behind b: both weights, and the unigram."""
    read = ngram.read_arpa(BY_HAND.splitlines())
    assert read.words == ("<s>", "a", "</s>", "<unk>", "b")
    texts = read.encode([["a", "b"], ["c"], ["a", "a"], []])
    expected = [
        [-0.3, -0.1, -0.03125 - 0.125 - 0.8],
        [-0.5 - 2.0, -0.8],  # <unk> begins nothing: its weights are 0
        [-0.3, -0.0625 - 0.25 - 1.0, -0.4],
        [-0.5 - 0.8],
    ]
    for scores, logs in zip(read.model.log_probabilities(texts), expected, strict=True):
        np.testing.assert_allclose(scores / math.log(10), logs, rtol=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_what_is_written_is_what_is_read(order: int) -> None:
    rng = np.random.default_rng(order)
    texts = [[*rng.integers(3, 12, rng.integers(9)).tolist(), END] for _ in range(60)]
    offsets = np.cumsum([0, *map(len, texts)])
    table = ngram_model.count_ngrams(np.concatenate(texts).astype(np.uint16), offsets, order, START)
    model = kneser_ney.estimate_model(table, 14, START, kneser_ney.Smoothing((0.5, 1.0, 1.5)))
    words = [ngram.START, ngram.END, ngram.UNKNOWN, *(f"w{n}" for n in range(11))]
    written = list(ngram.arpa_lines(model, words))
    read = ngram.read_arpa(written)
    assert read.words == tuple(words)
    fresh = [[*rng.integers(2, 14, 7).tolist(), END] for _ in range(50)]
    scores = read.model.log_probabilities(fresh)
    for ours, theirs in zip(model.log_probabilities(fresh), scores, strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-7)
    # Another order of lines is the same model.
    header = written.index(f"\\{order}-grams:") + 1
    backwards = [*written[:header], *written[header:-2][::-1], *written[-2:]]
    if order > 1:
        again = ngram.read_arpa(backwards).model.log_probabilities(fresh)
        assert np.concatenate(again).tolist() == np.concatenate(scores).tolist()


def test_what_is_no_arpa_is_refused() -> None:
    for damage, message in (
        (BY_HAND.replace("\\end\\\n", ""), r"ends with .end., found none"),
        (BY_HAND.replace("<s> a b", "<s> a"), r"line 21 .* a number, 3 words"),
        (BY_HAND.replace("-0.2\ta b", "O.2\ta b"), r"a number, 2 words .* found 'O.2"),
        (BY_HAND.replace("<s> a b", "<s> b b"), r"the beginning of each 3-gram"),
        (BY_HAND.replace("-0.2\ta b", "-0.2\ta c"), r"a 2-gram of the ARPA file has a word"),
        (BY_HAND.replace("-0.8\t</s>", "-0.8\tend"), r"expected </s> among the words"),
    ):
        with pytest.raises(DataError, match=message):
            ngram.read_arpa(damage.splitlines())
    without = ngram.read_arpa(BY_HAND.replace("-2.0\t<unk>", "-2.0\tc").splitlines())
    with pytest.raises(DataError, match="has no <unk>, found 'd'"):
        without.encode([["a", "d"]])
    for words, message in (
        (["<s>", "a", "</s>", "b", " "], "words without blanks .* found ' '"),
        (["<s>", "a", "</s>", "b", "a"], "each word once .* found 'a' twice"),
    ):
        with pytest.raises(DataError, match=message):
            list(ngram.arpa_lines(without.model, words))
