"""Floors of sentence vectors on public data, beside another implementation's figures."""

import gzip
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rungwise.evaluation.suites import vectors as suites
from rungwise.evaluation.suites.items import estimate_items
from rungwise.evaluation.suites.vectors import RANDOM, SentenceProbeSuite, SentencesSuite
from rungwise.tasks.formats.texts import ColumnsConfig, FoldersFormat, TableFormat
from tests.corpora import corpus_of_sentences
from tests.toy_rungs import toy_rung

pytestmark = pytest.mark.slow
EXPECTED = {"MR": 0.615, "MPQA": 0.736}


class Lengths:
    """A model with a vector for each text that says little."""

    def sentence_vectors(self, texts: list[list[int]]) -> NDArray[np.float32]:
        return np.array([[1, len(ids)] for ids in texts], np.float32)


@pytest.fixture(scope="module")
def rung(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A rung whose tokens are the lower-cased words of Brown and Reuters, punctuation split off."""
    folder, sentences = tmp_path_factory.mktemp("floors"), []
    for name in ("brown", "reuters21578"):
        for path in sorted((real_data / "corpora" / "en" / name).glob("*.txt*")):
            opened: Any = gzip.open if path.suffix == ".gz" else open
            with opened(path, "rt", encoding="utf-8") as lines:
                sentences += [" ".join(re.findall(r"\w+|[^\w\s]", line.lower())) for line in lines]
    sentences = [sentence for sentence in sentences if sentence]
    counts = Counter(word for sentence in sentences for word in sentence.split())
    words = [word for word, count in counts.most_common() if count >= 5]
    corpus = corpus_of_sentences(folder / "corpus", sentences)
    return toy_rung(folder, words, Lengths(), corpus=corpus, lowercase=True)


@pytest.mark.parametrize("name", ["MR", "MPQA"])
def test_floors_of_classification_are_within_a_point(name: str, rung: Any, real_data: Path) -> None:
    tests = FoldersFormat(label="file", example="line", encoding="cp1252")
    paths = (str(real_data / "tasks" / "en" / name / "*"),)
    measured = SentenceProbeSuite(train=paths, format=tests).measure(rung, name)
    for items in measured:
        if items.part == RANDOM:
            assert estimate_items([items]).mean == pytest.approx(EXPECTED[name], abs=0.01)


def test_random_words_order_the_pairs_of_2014_as_well_as_published_encoders(
    rung: Any, real_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean of six draws, since one draw differs from another by a point; a set counts by its
    size."""
    form = TableFormat(
        columns=ColumnsConfig(text=1, second=2, score=0), header=False, skip_labels=("",)
    )
    suite = SentencesSuite(
        path=(str(real_data / "tasks" / "en" / "STS12-16" / "2014"),), format=form
    )
    size, values = rung.splitter.get_vocab_size(), []
    for seed in range(6):
        table = suites.draw_vectors(size, seed)
        monkeypatch.setattr(suites, "draw_vectors", lambda _, table=table: table)
        for items in suite.measure(rung, "STS14"):
            if (items.part, items.metric) == (RANDOM, "pearson"):
                sets = [items.select_group(each).numbers for each in sorted({*items.groups})]
                rs = [np.corrcoef(*each.T)[0, 1] for each in sets]
                values.append(np.average(rs, weights=[*map(len, sets)]))
                assert len(items.names) == 3750
    assert len(values) == 6
    assert np.mean(values) == pytest.approx(0.5, abs=0.01)
