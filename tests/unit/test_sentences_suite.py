"""Similarity of sentences: layer by layer by hand, and of bags of words as scikit-learn has it."""

import unicodedata
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy import stats
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.metrics.pairwise import paired_cosine_distances
from tokenizers.pre_tokenizers import BertPreTokenizer

from rungwise.core.errors import DataError
from rungwise.evaluation.suites.items import estimate_items
from rungwise.evaluation.suites.sentences import SentencesSuite
from rungwise.models.families.gpt import GptConfig
from rungwise.tasks.formats.presets import SickFormat, StsFormat
from tests.toy_rungs import FIRST_WORD, toy_rung
from tests.unit.test_word_states import Recorder
from tests.unit.test_word_suites import of_words

PAIRS = StsFormat(layout="csv")


def test_each_layer_and_the_table_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "sts.csv"
    path.write_text("a b,b,4.5\na,b b a,2\n")
    rung = toy_rung(tmp_path, ["a", "b"], of_words([[1, 0], [0, 1]]), Recorder())
    rung.__dict__["summary"] = SimpleNamespace(model=GptConfig(), objective="causal")
    measured = SentencesSuite(path=(str(path),), format=PAIRS).measure(rung, "sts")
    parts = {each.part: each for each in measured.items}
    assert list(parts) == ["layer 0", "layer 1", "words"]
    assert parts["words"].names == ["sts.csv:1", "sts.csv:2"]
    root = np.sqrt(0.5)
    expected = [[4.5, root], [2, 1 / np.sqrt(5)]]
    np.testing.assert_allclose(parts["words"].numbers, expected, rtol=1e-12)
    # A state is the id and the place, behind the mark that opens a row.
    a, b = FIRST_WORD, FIRST_WORD + 1
    sentences = [[(a + b) / 2, 1.5], [b, 1], [a, 1], [(a + b + b) / 3, 2]]
    sizes = [np.hypot(*each) for each in sentences]
    cosines = [np.dot(sentences[i], sentences[i + 1]) / sizes[i] / sizes[i + 1] for i in (0, 2)]
    for layer in ("layer 0", "layer 1"):
        np.testing.assert_allclose(parts[layer].numbers[:, 1], cosines, rtol=1e-6)


def test_a_model_with_vectors_of_texts_alone_is_measured_by_them(tmp_path: Path) -> None:
    class Lengths:
        """The vector of a text of n tokens is (1, n)."""

        def sentence_vectors(self, texts: list[list[int]]) -> NDArray[np.float32]:
            return np.array([[1, len(ids)] for ids in texts], np.float32)

    path = tmp_path / "sts.csv"
    path.write_text("a b,b,4.5\n")
    rung = toy_rung(tmp_path, ["a", "b"], Lengths())
    suite = SentencesSuite(path=(str(path),), format=PAIRS)
    assert suite.serves(rung)
    [items, pearson] = suite.measure(rung, "sts").items
    assert (items.part, items.metric, pearson.metric) == ("own vector", "correlation", "pearson")
    np.testing.assert_allclose(items.numbers, [[4.5, 3 / np.sqrt(5 * 2)]])
    assert not suite.serves(toy_rung(tmp_path / "none", ["a", "b"], object()))


def test_bags_of_words_of_the_sts_benchmark(real_data: Path, tmp_path: Path) -> None:
    """With a vector of its own for each word a cosine is that of counts."""
    path = real_data / "tasks" / "en" / "STS-B" / "stsb-en-dev.csv"
    suite = SentencesSuite(path=(str(path),), format=PAIRS)
    pairs = suite._pairs("measure.sts.path", Counter())
    split = BertPreTokenizer().pre_tokenize_str

    def words_of(text: str) -> list[str]:
        return [word for word, _ in split(unicodedata.normalize("NFC", text))]

    counter = CountVectorizer(analyzer=words_of)  # pyright: ignore[reportArgumentType] its stub knows names
    counter.fit([text for pair in pairs for text in (pair.text, str(pair.second))])
    words = list(counter.vocabulary_)
    rung = toy_rung(tmp_path, words, of_words(np.eye(len(words))))
    [items, pearson] = suite.measure(rung, "sts").items
    first, second = (
        counter.transform(texts)
        for texts in ([pair.text for pair in pairs], [str(pair.second) for pair in pairs])
    )
    theirs = 1 - paired_cosine_distances(first, second)
    np.testing.assert_allclose(items.numbers[:, 1], theirs, atol=1e-6)
    expected: Any = stats.spearmanr([pair.target for pair in pairs], theirs)
    assert estimate_items([items]).mean == pytest.approx(expected.statistic, abs=1e-3)
    assert 0.5 < expected.statistic < 0.8
    gold = [float(str(pair.target)) for pair in pairs]
    assert estimate_items([pearson]).mean == pytest.approx(
        np.corrcoef(gold, theirs)[0, 1], abs=1e-4
    )


def test_damage_is_counted_on_the_terminal_and_named_by_the_key_of_the_suite(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.csv").write_text("a b,b a,1\na c,b,2\na,b,x\n")
    path = (str(tmp_path / "a.csv"),)
    with pytest.raises(DataError, match=r"a\.csv:3: .*change measure\.sts\.format\.columns\.score"):
        SentencesSuite(path=path, format=PAIRS)._pairs("measure.sts.path", Counter())
    counts = Counter[str]()
    dropping = PAIRS.model_copy(update={"on_error": "drop"})
    pairs = SentencesSuite(path=path, format=dropping)._pairs("measure.sts.path", counts)
    assert (len(pairs), counts["examples_dropped_for_their_score"]) == (2, 1)


def test_labels_and_rows_without_scores_are_refused(tmp_path: Path) -> None:
    path = (str(tmp_path / "sts.csv"),)
    with pytest.raises(ValidationError, match="found a format with labels"):
        SentencesSuite(path=path, format=SickFormat(target="entailment"))
    (tmp_path / "sts.csv").write_text("\n")
    with pytest.raises(DataError, match="expected pairs of sentences with scores, found 0 rows"):
        SentencesSuite(path=path, format=PAIRS)._pairs("measure.sts.path", Counter())
