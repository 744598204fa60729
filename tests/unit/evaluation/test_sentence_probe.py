"""Probes of sentence vectors: heads as scikit-learn and SciPy have them, floors by hand."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from rungwise.core.errors import DataError
from rungwise.evaluation.suites import classifiers
from rungwise.evaluation.suites.items import Items, contrast, estimate_items
from rungwise.evaluation.suites.vectors import (
    MAJORITY,
    RANDOM,
    SentenceProbeSuite,
    SentencePropertiesSuite,
    lengths,
    order,
    pair_features,
)
from rungwise.tasks.formats.texts import ColumnsConfig, TableFormat
from tests.corpora import corpus_of_sentences
from tests.toy_rungs import FIRST_WORD, toy_rung

WORDS = [*"abcdefghijkl"]
RNG = np.random.default_rng(0)
TABLE = RNG.standard_normal((FIRST_WORD + len(WORDS) + 16, 5)).astype(np.float32)
LABELLED = TableFormat(columns=ColumnsConfig(text=0, label=1), header=False)


class Sums:
    """The vector of a text is the sum of its tokens' vectors."""

    def sentence_vectors(self, texts: list[list[int]]) -> NDArray[np.float32]:
        return np.stack([TABLE[ids].sum(axis=0) for ids in texts])


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Sentences of which one in three is of class 1; its words are later ones, mostly."""
    draw, path = random.Random(1), tmp_path / "texts.tsv"
    lines = []
    for number in range(120):
        words = draw.choices(WORDS[3:] if number % 3 else WORDS[:8], k=draw.randint(2, 6))
        lines.append(f"{' '.join(words)}\t{int(number % 3 == 0)}\n")
    path.write_text("".join(lines))
    return path


def vectors_of(path: Path) -> tuple[NDArray[np.float64], list[str]]:
    """The vectors of the first column of a file, and the last column."""
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    ids = [[FIRST_WORD + WORDS.index(word) for word in row[0].split()] for row in rows]
    return Sums().sentence_vectors(ids).astype(np.float64), [row[-1] for row in rows]


@pytest.mark.parametrize("head", ["ridge", "logistic"])
def test_scikit_learn_gives_the_same_scores(head: Any, texts: Path, tmp_path: Path) -> None:
    corpus = corpus_of_sentences(tmp_path / "corpus", [" ".join(WORDS)] * 3)
    rung = toy_rung(tmp_path, WORDS, Sums(), corpus=corpus)
    suite = SentenceProbeSuite(train=(str(texts),), format=LABELLED, head=head, folds=3)
    items = {each.part: each for each in suite.measure(rung, "texts")}
    assert set(items) == {MAJORITY, "vectors", RANDOM}
    vectors, labels = vectors_of(texts)
    outer = StratifiedKFold(3, shuffle=True, random_state=1111)
    if head == "ridge":
        penalty = 0.01 * 80  # of 80 training vectors
        model: Any = make_pipeline(StandardScaler(), RidgeClassifier(alpha=penalty))
    else:
        grid = {"C": [2.0**power for power in range(-2, 4)]}
        model = GridSearchCV(LogisticRegression(max_iter=1000), grid, cv=outer)
    # Classes are numbered by frequency, and the folds follow the numbers.
    numbers = np.array([int(label == "1") for label in labels])
    predicted = cross_val_predict(model, vectors, numbers, cv=outer)
    right = {f"train texts.tsv:{n + 1}": ok for n, ok in enumerate(predicted == numbers)}
    ours = items["vectors"]
    assert dict(zip(ours.names, ours.numbers[:, 0] == 1, strict=True)) == right
    assert 0.7 < np.mean([*right.values()]) < 1
    assert estimate_items([items[MAJORITY]]).mean == pytest.approx(2 / 3)


def test_scores_of_pairs_are_those_of_ridge() -> None:
    u, v, w, x = RNG.standard_normal((4, 60, 3))
    train, test = pair_features(u, v), pair_features(w, x)
    scores = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    ours = classifiers.to_scores(train, scores, test)
    mean, spread = train.mean(axis=0), train.std(axis=0)
    train, test = ((each - mean) / spread for each in (train, test))
    weights = np.linalg.solve(train.T @ train + 0.6 * np.eye(6), train.T @ (scores - scores.mean()))
    np.testing.assert_allclose(ours, test @ weights + scores.mean(), rtol=1e-6)


def test_pairs_with_scores_have_a_test_file_and_pearsons_r(tmp_path: Path) -> None:
    draw, lines = random.Random(2), ["pair_ID\tsentence_A\tsentence_B\trelatedness_score"]
    for number in range(80):
        first, second = (draw.choices(WORDS, k=3) for _ in range(2))
        score = 1 + 4 * len({*first} & {*second}) / 3
        lines.append(f"{number}\t{' '.join(first)}\t{' '.join(second)}\t{score:.1f}")
    for split, rows in (("train", lines[:50]), ("test", [lines[0], *lines[50:]])):
        (tmp_path / f"{split}.tsv").write_text("\n".join(rows))
    rung = toy_rung(tmp_path, WORDS, Sums())
    paths: dict[str, Any] = {
        split: (str(tmp_path / f"{split}.tsv"),) for split in ("train", "test")
    }
    columns = ColumnsConfig(text="sentence_A", second="sentence_B", score="relatedness_score")
    suite = SentenceProbeSuite(format=TableFormat(columns=columns), **paths)
    items, floor = suite.measure(rung, "sick")
    assert floor.part == RANDOM
    assert (items.metric, len(items.names), items.names[0]) == ("pearson", 31, "test test.tsv:2")
    r = np.corrcoef(*items.numbers.T)[0, 1]
    assert estimate_items([items]).mean == pytest.approx(r, abs=1e-12)


def test_the_mean_of_pearsons_r_over_sets() -> None:
    groups = [*["a"] * 10, *["b"] * 40]
    numbers = RNG.standard_normal((50, 2)) + np.arange(50)[:, None] / 20
    rs = [np.corrcoef(*rows.T)[0, 1] for rows in np.split(numbers, [10])]
    items = Items("sts", "pearson", [str(n) for n in range(50)], groups, numbers)
    estimate = estimate_items([items])
    assert estimate.mean == pytest.approx(sum(rs) / 2, abs=1e-12)
    assert estimate.low < estimate.mean < estimate.high
    none = contrast([(1.0, [items]), (-1.0, [items])]).estimate()
    assert (none.mean, none.low, none.high) == (0, 0, 0)


def test_properties_of_held_out_sentences_by_hand(tmp_path: Path) -> None:
    sentences = [["a"] * n for n in (1, 2, 3, 4, 5, 6)]
    assert [label for _, label in lengths(sentences)] == list("012345")
    long = [[f"w{n}" for n in range(5)]] * 20
    for number, (row, label) in enumerate(order([["short"], *long])):
        moved = [n for n, word in enumerate(row) if word != f"w{n}"]
        assert label == ("swapped" if number % 2 else "as written")
        assert moved == ([moved[0], moved[0] + 1] if number % 2 else [])
    draw = random.Random(4)
    held_out = [" ".join(draw.choices(WORDS, range(12, 0, -1), k=n % 9 + 3)) for n in range(200)]
    corpus = corpus_of_sentences(tmp_path / "corpus", held_out)
    rung = toy_rung(tmp_path, WORDS, Sums(), corpus=corpus)
    suite = SentencePropertiesSuite(folds=3)
    scores = {each.part: estimate_items([each]) for each in suite.measure(rung, "own")}
    assert {part.split()[0] for part in scores} == {"length", "order"}
    # A sum of vectors has the length of a sentence, and nothing of the order of its words.
    assert scores["length vectors"].low > scores[f"length {MAJORITY}"].high
    assert scores["order vectors"].low < 0.5
    few = corpus_of_sentences(tmp_path / "few", ["a b"] * 4)
    with pytest.raises(DataError, match=r"raise corpus\.held_out_fraction"):
        suite.measure(toy_rung(tmp_path, WORDS, Sums(), corpus=few), "own")
