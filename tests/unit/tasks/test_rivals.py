"""Rivals without pretraining: plain scikit-learn gives the same, and odd data break none."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy.stats import pearsonr
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline

from rungwise.core.storage.folder import Folder
from rungwise.evaluation.comparison.compare import RivalRun, run_rival
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import Tagged, TaskInfo, Text, write_examples
from rungwise.tasks.kinds.rivals import STRENGTHS
from tests.summaries import task_of

LABELS = ("a", "b", "c")
Splits = dict[str, Sequence[Any]]


def run(folder: Folder, info: TaskInfo, splits: Splits, number: int = 0) -> RivalRun:
    task = task_of(folder, info)
    for split, examples in splits.items():
        write_examples(examples, task.folder, split)
    return run_rival(task, number, [])


@pytest.fixture
def folder(tmp_path: Any) -> Folder:
    return Folder.at(tmp_path)


def noisy_texts(count: int, seed: int, pair: bool = False) -> list[Text]:
    """Texts whose words lean towards those of their class."""
    rng, words = np.random.default_rng(seed), [f"w{n}x{n * n}" for n in range(30)]

    def text(number: int) -> str:
        near = 10 * number + rng.integers(10, size=4)
        return " ".join(words[n] for n in [*near, *rng.integers(30, size=5)])

    numbers = rng.integers(3, size=(count, 2))
    return [
        Text(str(n), text(i), text(j) if pair else None, abs(float(i - j)) if pair else LABELS[i])
        for n, (i, j) in enumerate(numbers)
    ]


@pytest.mark.parametrize(
    ("number", "settings"), [(0, {}), (1, {"analyzer": "char", "ngram_range": (2, 5)})]
)
def test_a_plain_pipeline_agrees(folder: Folder, number: int, settings: dict[str, Any]) -> None:
    splits: Splits = {
        split: noisy_texts(count, seed)
        for seed, (split, count) in enumerate({"train": 40, "validation": 60, "test": 80}.items())
    }
    result = run(folder, TaskInfo("classification", LABELS, False, "accuracy"), splits, number)
    train, validation, test = (
        ([each.text for each in examples], [each.target for each in examples])
        for examples in splits.values()
    )
    by_strength = {}
    for strength in STRENGTHS:
        model = make_pipeline(
            TfidfVectorizer(sublinear_tf=True, **settings),
            LogisticRegression(C=strength, max_iter=1000),
        ).fit(*train)
        by_strength[strength] = model.score(*validation), model
    score, best = by_strength[result.strength]
    assert score == max(score for score, _ in by_strength.values())
    assert result.scores["validation"]["accuracy"] == pytest.approx(score)
    assert result.scores["test"]["accuracy"] == pytest.approx(best.score(*test))
    assert 0.5 < best.score(*test) < 1, "the task is neither too hard nor too easy to tell"
    shares = [each["probabilities"] for each in result.predictions]
    np.testing.assert_allclose(shares, best.predict_proba(test[0]), atol=1e-6)


def test_a_pair_is_scored_by_ridge_on_both_their_distance_and_overlap(folder: Folder) -> None:
    splits: Splits = {
        split: noisy_texts(count, seed, pair=True)
        for seed, (split, count) in enumerate({"train": 60, "validation": 40, "test": 50}.items())
    }
    result = run(folder, TaskInfo("regression", (), True, "pearson"), splits)
    vectorizer: Any = TfidfVectorizer(sublinear_tf=True)
    vectorizer.fit([text for each in splits["train"] for text in (each.text, each.second)])

    def features(examples: Sequence[Text]) -> np.ndarray:
        a, b = (
            np.asarray(vectorizer.transform(texts).todense())
            for texts in ([e.text for e in examples], [e.second or "" for e in examples])
        )
        cosine = np.sum(a * b, axis=1, keepdims=True)
        return np.concatenate([a, b, np.abs(a - b), a * b, cosine], axis=1)

    model = Ridge(alpha=1 / result.strength)
    model.fit(features(splits["train"]), [each.target for each in splits["train"]])
    expected = model.predict(features(splits["test"]))
    scores = [each["score"] for each in result.predictions]
    np.testing.assert_allclose(scores, expected, atol=1e-3)
    right, _ = pearsonr(expected, [each.target for each in splits["test"]])
    assert result.scores["test"]["pearson"] == pytest.approx(right, abs=1e-3)


def text_of(text: str, target: Any) -> Text:
    return Text("x", text, None, target)


def test_odd_texts_and_rare_classes_break_nothing(folder: Folder) -> None:
    info = TaskInfo("classification", ("once", "often", "unseen"), False, "macro_f1")
    train = [text_of("", "once"), text_of("z", "often"), text_of("far away", "often")]
    splits: Splits = {
        "train": train,
        "validation": [text_of("away", "often"), text_of("", "often")],
        "test": [text_of("", "once"), text_of("far", "often"), text_of("new", "unseen")],
    }
    for number in range(2):
        result = run(folder, info, splits, number)
        shares = np.array([each["probabilities"] for each in result.predictions])
        np.testing.assert_allclose(shares.sum(axis=1), 1)
        assert not shares[:, 2].any(), "no training example has this label"
        assert shares[1, 1] > shares[0, 1]
    nothing: Splits = {split: [text_of("", "once"), text_of("z", "often")] for split in splits}
    assert run(folder, info, nothing).scores["test"]["accuracy"] == 0.5, "there is nothing to read"


def test_words_of_a_text_without_blanks_are_its_characters(folder: Folder) -> None:
    splits: Splits = {
        split: [text_of(f"我们{a}{b}了", a) for a in "好坏" for b in others]
        for split, others in (("train", "天人"), ("validation", "地"), ("test", "山水火"))
    }
    info = TaskInfo("classification", ("坏", "好"), False, "accuracy")
    assert run(folder, info, splits).scores["test"]["accuracy"] == 1


def test_a_label_that_all_texts_have_or_none_is_certain(folder: Folder) -> None:
    info = TaskInfo("multilabel", ("all", "none", "some"), False, "micro_f1")
    texts = [
        text_of(f"{word} thing", ("all", *more)) for word, *more in (["red", "some"], ["blue"])
    ]
    result = run(folder, info, {"train": texts * 3, "validation": texts, "test": texts})
    assert [each["labels"] for each in result.predictions] == [["all", "some"], ["all"]]
    assert result.predictions[0]["probabilities"][:2] == [1, 0]


def test_a_word_is_tagged_by_its_suffix_and_its_neighbours(folder: Folder) -> None:
    def sentence(noun: str, verb: str) -> Tagged:
        words = ("the", f"{noun}ness", f"{verb}ed", "to", "run", "a", "run")
        return Tagged("x", words, ("D", "N", "V", "P", "V", "D", "N"))

    train = [sentence(noun, verb) for noun in ("kind", "dark", "sad") for verb in ("jump", "walk")]
    test = [sentence("good", "talk"), Tagged("x", (), ())]
    info = TaskInfo("tagging", ("D", "N", "P", "V"), False, "accuracy")
    result = run(folder, info, {"train": train, "validation": train, "test": test})
    assert result.scores["test"]["accuracy"] == 1, "of words never seen, and of one that is two"
    assert [len(each["tags"]) for each in result.predictions] == [7, 0]


@pytest.mark.parametrize("kind", ["span", "choice", "generation"])
def test_kinds_that_nobody_solves_by_counts_have_no_rival(kind: str) -> None:
    assert task_kind(TaskInfo(kind, (), False, "f1")).rivals() == ()
