"""ARPA files: what is written scores as the model does, and what cannot be written."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from rungwise.core.errors import DataError
from rungwise.core.tokens import SpecialIds
from rungwise.models import ngram_model
from rungwise.models.families import kneser_ney, ngram

START, END, UNKNOWN = 0, 1, 2
SPECIAL = SpecialIds(cls=START, end=END, unk=UNKNOWN)
# As SRILM writes it: in any order of lines, with blanks between words, <unk> among them.
THEIRS = """made by a program

\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-99\t<s>\t-0.5
-0.30103\t</s>
-0.60206\t<unk>
-0.90309\tcat\t-0.25
-0.90309\tthe\t-1

\\2-grams:
-0.1\tthe cat
-0.2\t<s> the
-0.4\tcat </s>

\\end\\
"""


def to_bytes(lines: Iterable[str]) -> list[bytes]:
    return [f"{line}\n".encode() for line in lines]


def read(text: str, words: Sequence[str] = ("<s>", "</s>", "<unk>", "the", "cat")) -> Any:
    return ngram.read_arpa("their.arpa", to_bytes(text.splitlines()), words, SPECIAL)


def test_counts_of_another_program_are_read() -> None:
    words = ("<s>", "</s>", "<unk>", "the", "cat", "dog", "bird")
    model = read(THEIRS, words)
    [scores] = model.log_probabilities([[3, 4, 5, END]])
    # <unk>, whose quarter the two tokens that the file lacks share with it, after a back-off.
    dog = math.log10(0.25 / 3) - 0.25
    np.testing.assert_allclose(scores, np.array([-0.2, -0.1, dog, -0.30103]) * math.log(10), 1e-6)
    assert sum(math.exp(logs) for logs in model.ngram_log_probabilities[0]) == pytest.approx(
        1, 1e-4
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("the cat", "the bat", r"line 15: 'bat' is no token of the tokenizer"),
        ("-0.1\tthe cat", "x\tthe cat", "line 15: expected a number, found 'x'"),
        ("-0.1\tthe cat", "nan\tthe cat", "line 15: expected a number, found 'nan'"),
        ("-0.1\tthe cat", "1.5\tthe cat", "line 15: expected the logarithm of a prob.* found 1.5"),
        ("ngram 2=3", "ngram 2=inf", "line 5: expected a number, found 'inf'"),
        ("-0.1\tthe cat", "the cat", "line 15: expected a logarithm, 2 words"),
        ("\t<s> the", "\tthe cat", "each n-gram once, found 'the cat' twice"),
        ("-0.4\tcat </s>\n", "", "line 18: expected a logarithm, 2 words"),
        ("\\2-grams:", "\\3-grams:", r"line 14: expected \\2-grams:, found"),
        ("ngram 2=3", "ngram 2=2", r"line 17: expected \\3-grams:, found '-0.4"),
        ("-0.30103\t</s>", "-2\t</s>", "sum to 1, found 0.510"),
        ("-0.60206\t<unk>", "-0.60206\tcat", "neither '<unk>' nor <unk>"),
        ("\\data\\", "data", "expected an ARPA file .* found 0 of no sections"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(old: str, new: str, message: str) -> None:
    assert old in THEIRS
    with pytest.raises(DataError, match=message):
        read(THEIRS.replace(old, new))


def test_a_context_without_a_line_is_named() -> None:
    longer = THEIRS.replace("ngram 2=3", "ngram 2=3\nngram 3=1")
    longer = longer.replace("\\end\\", "\\3-grams:\n-0.1\tcat the cat\n\n\\end\\")
    with pytest.raises(DataError, match="begins with 'cat the', which has no line of its own"):
        read(longer)


def test_an_order_without_lines_is_none() -> None:
    longer = THEIRS.replace("ngram 2=3", "ngram 2=3\nngram 3=0")
    longer = longer.replace("\\end\\", "\\3-grams:\n\n\\end\\")
    text = [[3, 4, END]]
    np.testing.assert_array_equal(
        read(longer).log_probabilities(text), read(THEIRS).log_probabilities(text)
    )


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
    again = ngram.read_arpa("a.arpa", to_bytes(written), words, SPECIAL)
    for scores, expected in zip(
        again.log_probabilities(fresh), model.log_probabilities(fresh), strict=True
    ):
        np.testing.assert_allclose(scores, expected, rtol=1e-7)


def test_words_that_an_arpa_file_cannot_hold_are_refused() -> None:
    one = ngram_model.NgramLanguageModel(5, 0, np.zeros((1, 3)), (), (np.zeros(5),), ())
    for words, message in (
        (["<s>", "a", "</s>", "b", " "], "words without blanks .* found ' '"),
        (["<s>", "a", "</s>", "b", "a"], "each word once .* found 'a' twice"),
    ):
        with pytest.raises(DataError, match=message):
            list(ngram.arpa_lines(one, words))
