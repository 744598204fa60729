"""The n-gram model against the slow one and against what kenlm gives for the Penn Treebank."""

import dataclasses
import gzip
from pathlib import Path

import numpy as np
import pytest

from rungwise.core.tokens import CLS_ID, SEP_ID
from rungwise.evaluation.suites.items import estimate_items
from rungwise.evaluation.suites.language_models import PerplexitySuite
from rungwise.models import ngram_model as ngram_tables
from rungwise.models.families import kneser_ney, ngram
from tests.reference.slow_ngram import SlowNgram
from tests.toy_rungs import FIRST_WORD, toy_rung

START, END, UNSEEN = 0, 1, 2
KENLM_FALLBACK = (0.5, 1.0, 1.5)


def toy_sentences(seed: int, number: int) -> list[list[int]]:
    """Closed sentences of 0 to 9 words, ids 3 to 44, the first much more frequent."""
    rng = np.random.default_rng(seed)
    return [
        [*np.minimum(rng.geometric(0.2, rng.integers(10)) + 2, 44).tolist(), END]
        for _ in range(number)
    ]


@pytest.mark.parametrize(
    ("order", "prune"), [(1, [0]), (2, [0]), (3, [0]), (4, [0]), (5, [0]), (4, [0, 0, 1, 3])]
)
def test_the_slow_model_gives_the_same_probabilities(order: int, prune: list[int]) -> None:
    smoothing = kneser_ney.Smoothing(KENLM_FALLBACK, tuple(prune))
    estimated = np.zeros(order)
    for seed, number in enumerate([1, 3, 10, 30, 100, 300, 800] * 2):
        sentences = toy_sentences(seed, number)
        slow = SlowNgram(sentences, order, 46, START, KENLM_FALLBACK, prune)
        offsets = np.cumsum([0] + [len(sentence) for sentence in sentences])
        ids = np.concatenate(sentences).astype(np.uint16)
        table = ngram_tables.count_ngrams(ids, offsets, order, START)
        model = kneser_ney.estimate_model(table, 46, START, smoothing)
        # Fallback discounts are round numbers.
        estimated[: model.order] += (model.discounts * 2 % 1 > 0).any(axis=1)
        texts = [*toy_sentences(seed + 1000, 20), *sentences[:10], [UNSEEN, 3, END], [3, END, 3]]
        for text, scores in zip(texts, model.log_probabilities(texts), strict=True):
            expected = [slow.probability(word, text[:i]) for i, word in enumerate(text)]
            np.testing.assert_allclose(np.exp(scores), expected, rtol=1e-12, atol=0)
    assert (estimated > 0).all(), "an order had fallback discounts only"


def test_kenlm_reads_the_arpa_and_scores_every_word_the_same(
    real_data: Path, tmp_path: Path
) -> None:
    """A 5-gram model of one part of the Penn Treebank, on another with unknown words."""
    kenlm = pytest.importorskip("kenlm", reason="kenlm is not installed; it needs a compiler")
    folder = real_data / "corpora" / "en" / "ptb"
    corpus, asked = (
        [line.split() for line in (folder / name).read_text("utf-8").splitlines()]
        for name in ("ptb.valid.txt", "ptb.test.txt")
    )
    vocabulary = {word: i for i, word in enumerate(sorted({w for line in corpus for w in line}), 3)}
    texts = [[*(vocabulary[word] for word in line), END] for line in corpus]
    offsets = np.cumsum([0, *map(len, texts)])
    table = ngram_tables.count_ngrams(np.concatenate(texts).astype(np.uint16), offsets, 5, START)
    model = kneser_ney.estimate_model(table, len(vocabulary) + 3, START)
    # `<unk>` is a word of this text, and what the vocabulary lacks is taken for it.
    path = tmp_path / "ptb.arpa"
    lines = ngram.arpa_lines(model, [ngram.START, ngram.END, "[unseen]", *vocabulary])
    path.write_text("\n".join(lines) + "\n", "utf-8")
    ours = model.log_probabilities(
        [[*(vocabulary.get(word, vocabulary["<unk>"]) for word in line), END] for line in asked]
    )
    theirs = kenlm.Model(str(path))
    for line, scores in zip(asked, ours, strict=True):
        expected = [log * np.log(10) for log, _, _ in theirs.full_scores(" ".join(line))]
        np.testing.assert_allclose(scores, expected, rtol=1e-4)


def test_kenlm_has_the_same_perplexities(real_data: Path, tmp_path: Path) -> None:
    """As the suite asks for them. The vocabulary of kenlm has the words, `</s>` and an <unk> that
    never occurs; the `<unk>` of the text is a word like any other."""
    folder = real_data / "corpora" / "en" / "ptb"
    text = gzip.decompress((folder / "ptb.train.txt.gz").read_bytes()).decode()
    words = sorted(set(text.split()))
    ids = {word: FIRST_WORD + number for number, word in enumerate(words)}
    lines = [[*(ids[word] for word in line.split()), SEP_ID] for line in text.splitlines()]
    offsets = np.cumsum([0, *map(len, lines)])
    flat = np.concatenate(lines).astype(np.uint16)
    rung = toy_rung(tmp_path, words, None, split_punctuation=False)

    table = ngram_tables.count_ngrams(flat, offsets, 5, CLS_ID)
    model = kneser_ney.estimate_model(table, FIRST_WORD + len(words), CLS_ID)
    rung.__dict__["model"] = dataclasses.replace(model, end_id=SEP_ID)

    def perplexity(split: str, contiguous: bool) -> tuple[float, float]:
        path = (str(folder / f"ptb.{split}.txt"),)
        items = PerplexitySuite(path=path, contiguous=contiguous).measure(rung, split)[0]
        return items.numbers[:, 1].sum(), estimate_items([items]).mean

    assert perplexity("test", False) == (82_430, pytest.approx(141.19, abs=0.1))
    assert perplexity("valid", True) == (73_760, pytest.approx(148.01, abs=0.1))
