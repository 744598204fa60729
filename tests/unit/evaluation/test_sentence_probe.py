"""Probes of sentence vectors: heads as scikit-learn and SciPy have them, floors by hand."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from rungwise.core.errors import DataError
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.suites import classifiers, measure
from rungwise.evaluation.suites.items import Items, contrast, estimate_items
from rungwise.evaluation.suites.sentences import (
    MAJORITY,
    PPMI,
    RANDOM,
    SentenceProbeSuite,
    SentencePropertiesSuite,
    content,
    lengths,
    order,
    pair_features,
    ppmi_vectors,
)
from rungwise.models.word_vectors.paragraph_vectors import ParagraphModel
from rungwise.tasks.formats.table import ColumnsConfig, TableFormat
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
    suite = SentenceProbeSuite(train=(str(texts),), format=LABELLED, head=head, folds=4)
    items = {each.part: each for each in suite.measure(rung, "texts").items}
    assert set(items) == {MAJORITY, "vectors", RANDOM, PPMI}
    vectors, labels = vectors_of(texts)
    outer = StratifiedKFold(4, shuffle=True, random_state=1111)
    if head == "ridge":
        penalty = 0.01 * 90  # of 90 training vectors
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


@pytest.mark.parametrize("head", ["ridge", "logistic"])
def test_scores_of_pairs_are_those_of_ridge_and_of_the_two_hot_softmax(head: Any) -> None:
    u, v, w, x = RNG.standard_normal((4, 60, 3))
    train, test = pair_features(u, v), pair_features(w, x)
    cosine = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    scores = np.round(2 * cosine + 3, 1)
    ours = classifiers.to_scores(train, scores, test, two_hot=head == "logistic")
    scaler = StandardScaler().fit(train)
    train, test = (np.asarray(scaler.transform(each)) for each in (train, test))
    if head == "ridge":
        expected = Ridge(alpha=0.01 * 60).fit(train, scores).predict(test)
        np.testing.assert_allclose(ours, expected, rtol=1e-6)
        return
    whole = np.arange(1, 6)
    shares = np.array([[max(0.0, 1 - abs(score - k)) for k in whole] for score in scores])
    np.testing.assert_allclose(shares.sum(1), 1)
    np.testing.assert_allclose(shares @ whole, scores)

    def softmax(weights: NDArray[np.float64], features: NDArray[np.float64]) -> Any:
        logits = features @ weights[:30].reshape(6, 5) + weights[30:]
        powers = np.exp(logits - logits.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)

    def loss(weights: NDArray[np.float64]) -> float:
        penalty = 0.01 * (weights[:30] ** 2).sum() / 5
        return float(((softmax(weights, train) - shares) ** 2).sum(1).mean() + penalty)

    best = optimize.minimize(loss, np.zeros(35)).x
    np.testing.assert_allclose(ours, softmax(best, test) @ whole, atol=0.02)


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
    [items] = suite.measure(rung, "sick").items
    assert (items.metric, len(items.names), items.names[0]) == ("pearson", 31, "test test.tsv:2")
    r = np.corrcoef(*items.numbers.T)[0, 1]
    assert estimate_items([items]).mean == pytest.approx(r, abs=1e-12)


class Documents(Sums):
    learns_documents = ParagraphModel.learns_documents


@pytest.mark.parametrize(
    ("model", "files", "count"),
    [
        (Documents(), ["tested"], 25),
        (Documents(), ["new", "tested"], 25),
        (Documents(), ["tested", "new"], 0),
        (Sums(), ["tested"], 0),
    ],
)
def test_tested_texts_that_paragraph_vectors_were_trained_on_are_counted_in_the_record(
    model: Any, files: list[str], count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(3)
    tested, new = ([" ".join(draw.choices(WORDS, k=12)) for _ in range(60)] for _ in range(2))
    # Of the others, training has some runs and not all.
    read = [*tested[:25], *(text[:-8] for text in tested[25:])]
    corpus = corpus_of_sentences(tmp_path / "corpus", read)
    for name, texts in (("tested", tested), ("new", new)):
        rows = [f"{text}\t{number % 2}\n" for number, text in enumerate(texts)]
        (tmp_path / f"{name}.tsv").write_text("".join(rows))
    keys = zip(("train", "test"), files, strict=False)
    paths: dict[str, Any] = {key: (str(tmp_path / f"{name}.tsv"),) for key, name in keys}
    suite = SentenceProbeSuite(format=LABELLED, folds=3, **paths)
    rung = toy_rung(tmp_path, WORDS, model, corpus=corpus)
    monkeypatch.setattr(measure, "Rung", lambda *_: rung)
    inputs = {"pretrain": corpus, "tokens": corpus, "tokenizer": corpus, "corpus": corpus}
    record = measure.measure(
        measure.MeasureConfig(suites={"own": suite}), inputs, Folder.at(tmp_path), Context()
    )
    assert record.transductive == ({"own": count} if count else {})


def test_means_of_pearsons_r_over_sets_plain_and_weighted() -> None:
    sizes = {"a": 10, "b": 40}
    groups = [name for name, size in sizes.items() for _ in range(size)]
    numbers = RNG.standard_normal((50, 2)) + np.arange(50)[:, None] / 20
    rs = {name: np.corrcoef(*numbers[[g == name for g in groups]].T)[0, 1] for name in sizes}
    names = [str(n) for n in range(50)]
    for metric, expected in (
        ("pearson", (rs["a"] + rs["b"]) / 2),
        ("weighted_pearson", (10 * rs["a"] + 40 * rs["b"]) / 50),
    ):
        items = Items("sts", metric, names, groups, numbers)
        estimate = estimate_items([items])
        assert estimate.mean == pytest.approx(expected, abs=1e-12)
        assert estimate.low < estimate.mean < estimate.high
        none = contrast([(1.0, [items]), (-1.0, [items])]).estimate()
        assert (none.mean, none.low, none.high) == (0, 0, 0)


def test_ppmi_vectors_give_back_the_matrix_worked_by_hand() -> None:
    sentences = [[0, 1, 2], [1, 2], [3, 0, 1], [2]]
    counts = np.zeros((5, 5))
    for row in sentences:
        for i, first in enumerate(row):
            for j, second in enumerate(row):
                counts[first, second] += i != j
    context = counts.sum(0) ** 0.75 / (counts.sum(0) ** 0.75).sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        ppmi = np.log(counts / counts.sum(1, keepdims=True) / context)
    ppmi = np.where(np.isfinite(ppmi) & (ppmi > 0), ppmi, 0)
    ids = np.array([token for row in sentences for token in row], np.uint16)
    ours = ppmi_vectors(ids, np.array([len(row) for row in sentences]), 5, size=5)
    left, values, _ = np.linalg.svd(ppmi)
    np.testing.assert_allclose(ours @ ours.T, (left * values) @ left.T, atol=1e-8)
    assert not ours[4].any()


def test_properties_of_held_out_sentences_by_hand(tmp_path: Path) -> None:
    sentences = [["a"] * n for n in (1, 2, 3, 4, 5, 6)]
    assert [label for _, label in lengths(sentences, 9)] == list("012345")
    frequent, middle = ["of", "the"], ["sea", "sky"]
    rows = [[*frequent, middle[n % 2]] for n in range(6)] + [[*frequent, *middle], frequent]
    told = content(rows, 2)
    assert told == [([*frequent, middle[n % 2]], middle[n % 2]) for n in range(6)]
    long = [[f"w{n}" for n in range(5)]] * 20
    for number, (row, label) in enumerate(order([["short"], *long], 9)):
        moved = [n for n, word in enumerate(row) if word != f"w{n}"]
        assert label == ("swapped" if number % 2 else "as written")
        assert moved == ([moved[0], moved[0] + 1] if number % 2 else [])
    draw = random.Random(4)
    held_out = [" ".join(draw.choices(WORDS, range(12, 0, -1), k=n % 9 + 3)) for n in range(200)]
    corpus = corpus_of_sentences(tmp_path / "corpus", held_out)
    rung = toy_rung(tmp_path, WORDS, Sums(), corpus=corpus)
    suite = SentencePropertiesSuite(words=3, folds=3)
    scores = {each.part: estimate_items([each]) for each in suite.measure(rung, "own").items}
    assert {part.split()[0] for part in scores} == {"length", "content", "order"}
    # A sum of vectors has the length and the words of a sentence, and nothing of their order.
    assert scores["length vectors"].low > scores[f"length {MAJORITY}"].high
    assert scores["content vectors"].low > scores[f"content {MAJORITY}"].high
    assert scores["order vectors"].low < 0.5
    few = corpus_of_sentences(tmp_path / "few", ["a b"] * 4)
    with pytest.raises(DataError, match=r"raise corpus\.held_out_fraction"):
        suite.measure(toy_rung(tmp_path, WORDS, Sums(), corpus=few), "own")
