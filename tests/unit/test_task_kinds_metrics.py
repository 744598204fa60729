"""A metric from summed rows is the library's, on the whole set and on resamples of it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score
from sklearn.preprocessing import MultiLabelBinarizer

from rungwise.core.errors import ConfigError, DataError
from rungwise.tasks import interface as kinds
from rungwise.tasks.kinds.examples import Answer, ChoiceExample, Question, Tagged, TaskInfo, Text
from rungwise.tasks.kinds.items import Item
from rungwise.tasks.scoring import metrics

TAGS = ("O", "B-X", "I-X", "B-Y", "I-Y")
Case = tuple[list[dict[str, Any]], list[Any]]


def classification(rng: np.random.Generator, count: int, labels: tuple[str, ...]) -> Case:
    drawn = rng.choice(labels, size=(count, 2), p=rng.dirichlet(np.ones(len(labels))))
    return (
        [{"label": str(predicted), "probability": 1.0} for predicted, _ in drawn],
        [Text("a", "a", target=str(wanted)) for _, wanted in drawn],
    )


def multilabel(rng: np.random.Generator, count: int, labels: tuple[str, ...]) -> Case:
    """Some texts have no label, and some labels are on no text."""
    said, gold = rng.random((2, count, len(labels))) < rng.random((2, 1, len(labels)))

    def names(row: Any) -> list[str]:
        return sorted(label for label, has in zip(labels, row, strict=True) if has)

    return (
        [{"labels": names(row)} for row in said],
        [Text("a", "a", target=tuple(names(row))) for row in gold],
    )


def regression(rng: np.random.Generator, count: int, scale: float = 1.0) -> Case:
    targets = rng.integers(0, 6, count).astype(float)
    return (
        [{"score": float(3.7 + scale * (t + rng.normal()))} for t in targets],
        [Text("a", "a", "b", float(t)) for t in targets],
    )


def tagging(rng: np.random.Generator, count: int) -> Case:
    predictions, examples = [], []
    for length in rng.integers(0, 12, count):
        wanted = rng.choice(TAGS, length)
        tags = np.where(rng.random(length) < 0.4, rng.choice(TAGS, length), wanted)
        predictions.append({"tags": tags.tolist()})
        examples.append(Tagged("a", ("w",) * length, tuple(wanted.tolist())))
    return predictions, examples


def spans(rng: np.random.Generator, count: int) -> Case:
    words = np.array(["red", "green", "blue", "the", "a"])

    def text(least: int) -> str:
        return " ".join(words[rng.integers(0, 5, rng.integers(least, 4))])

    examples = [
        Question("a", "a", "?", "red", tuple(Answer(text(1), 0) for _ in range(rng.integers(0, 3))))
        for _ in range(count)
    ]
    return [{"text": text(0)} for _ in examples], examples


def choices(rng: np.random.Generator, count: int) -> Case:
    return (
        [{"option": int(n)} for n in rng.integers(0, 3, count)],
        [ChoiceExample("a", "a", None, ("a", "b", "c"), int(n)) for n in rng.integers(0, 3, count)],
    )


def written(rng: np.random.Generator, count: int) -> Case:
    """Some are shorter than the longest runs of chrF, some are empty, and some are right."""

    def text() -> str:
        return "".join(rng.choice(list("ab c"), rng.integers(0, 9)))

    golds = [f"{text()}a" for _ in range(count)]
    said = [gold if rng.random() < 0.2 else text() for gold in golds]
    return [{"text": each} for each in said], [Text("a", "a", target=gold) for gold in golds]


TWO, FOUR = ("no", "yes"), ("a", "b", "c", "d")
CASES = [
    *[("classification", TWO, name) for name in ("accuracy", "macro_f1", "f1", "matthews")],
    *[("classification", FOUR, name) for name in ("accuracy", "macro_f1", "matthews")],
    *[("multilabel", FOUR, name) for name in ("micro_f1", "macro_f1", "exact_match")],
    ("regression", (), "pearson"),
    *[("tagging", TAGS, name) for name in ("accuracy", "precision", "recall", "f1")],
    *[("span", (), n) for n in ("f1", "exact_match", "answerable_f1", "unanswerable_accuracy")],
    ("choice", (), "accuracy"),
    *[("generation", (), name) for name in ("chrf", "exact_match")],
]


def drawn(rng: np.random.Generator, info: TaskInfo, count: int) -> Case:
    if info.kind in ("classification", "multilabel"):
        of_kind = classification if info.kind == "classification" else multilabel
        return of_kind(rng, count, info.labels)
    made = {"regression": regression, "tagging": tagging, "span": spans, "choice": choices}
    return {**made, "generation": written}[info.kind](rng, count)


@pytest.mark.parametrize(("kind", "labels", "metric"), CASES)
def test_the_value_of_the_sums_is_the_librarys_metric(
    kind: Any, labels: tuple[str, ...], metric: str
) -> None:
    rng = np.random.default_rng(0)
    info = TaskInfo(kind, labels, kind == "regression", metric)
    for count in (2, 5, 40):
        predictions, examples = drawn(rng, info, count)
        rows = metrics.sums(predictions, examples, info)
        assert len(rows) == count
        times = rng.multinomial(count, np.ones(count) / count, size=3)
        totals = np.concatenate([rows.sum(axis=0, keepdims=True), times @ rows])
        values = metrics.value(totals, info)
        assert values.shape == (4,)
        for counts, value in zip([np.ones(count, int), *times], values, strict=True):
            taken = np.repeat(np.arange(count), counts)
            scored = kinds.score(
                [predictions[n] for n in taken], [examples[n] for n in taken], info
            )
            if metric in scored:  # the two of SQuAD 2.0 are told only where there are both
                assert value == pytest.approx(scored[metric], abs=1e-9)


def test_several_labels_are_scored_as_scikit_learn_binarises_them() -> None:
    rng = np.random.default_rng(5)
    binarizer = MultiLabelBinarizer(classes=FOUR)
    for count in (1, 7, 60):
        predictions, examples = multilabel(rng, count, FOUR)
        gold, said = (
            np.asarray(binarizer.fit_transform(names))
            for names in ([e.target for e in examples], [p["labels"] for p in predictions])
        )
        expected = {
            "micro_f1": f1_score(gold, said, average="micro", zero_division=0),  # pyright: ignore[reportArgumentType]
            "macro_f1": f1_score(gold, said, average="macro", zero_division=0),  # pyright: ignore[reportArgumentType]
            "exact_match": accuracy_score(gold, said),
        }
        for metric in expected:
            info = TaskInfo("multilabel", FOUR, False, metric)
            assert kinds.score(predictions, examples, info) == pytest.approx(expected, abs=1e-9)
            rows = metrics.sums(predictions, examples, info)
            value = metrics.value(rows.sum(axis=0), info)
            assert value == pytest.approx(expected[metric], abs=1e-9)


@pytest.mark.parametrize("metric", ["micro_f1", "macro_f1", "exact_match"])
def test_the_threshold_of_labels_is_the_best_on_validation(metric: str) -> None:
    rng = np.random.default_rng(6)
    info = TaskInfo("multilabel", FOUR, False, metric)
    gold_NC = rng.random((80, 4)) < [0.5, 0.2, 0.1, 0.05]
    logits_NC = rng.normal(size=(80, 4)) + 2 * gold_NC - 2
    names = [tuple(n for n, has in zip(FOUR, row, strict=True) if has) for row in gold_NC]
    examples = [Text("a", "a", target=each) for each in names]
    items = [Item((), n) for n in range(80)]
    found = kinds.calibrate(list(logits_NC), items, examples, info)
    score = {
        "micro_f1": partial(f1_score, average="micro"),
        "macro_f1": partial(f1_score, average="macro"),
        "exact_match": accuracy_score,
    }[metric]
    tried = [score(gold_NC, 1 / (1 + np.exp(-logits_NC)) > t / 100) for t in range(1, 100)]
    said = kinds.decode(list(logits_NC), items, examples, info, found)
    assert kinds.score(said, examples, info)[metric] == pytest.approx(max(tried), abs=1e-9)
    assert max(tried) > tried[49], "half is too high"
    equal = 1 + np.flatnonzero(np.array(tried) == max(tried))
    assert found["label_threshold"] == min(equal, key=lambda t: abs(t - 50)) / 100


def test_totals_of_any_shape_have_values_of_that_shape() -> None:
    rng = np.random.default_rng(1)
    for kind, labels, metric in CASES:
        info = TaskInfo(kind, labels, False, metric)
        rows = metrics.sums(*drawn(rng, info, 6), info)
        assert metrics.value(np.stack([rows] * 2), info).shape == (2, 6)
        assert np.isfinite(metrics.value(np.zeros_like(rows), info)).all()


def test_spearman_is_the_librarys_on_the_whole_set() -> None:
    rng = np.random.default_rng(2)
    info = TaskInfo("regression", (), True, "spearman")
    for count in (3, 50):
        predictions, examples = regression(rng, count)
        value = metrics.value(metrics.sums(predictions, examples, info).sum(axis=0), info)
        assert value == pytest.approx(kinds.score(predictions, examples, info)["spearman"])


def test_the_other_regression_metrics_are_as_by_hand() -> None:
    info = TaskInfo("regression", (), True, "pearson")
    examples = [Text("a", "a", "b", float(n)) for n in (1, 2, 3, 4)]
    scores = kinds.score([{"score": float(n)} for n in (1, 4, 9, 16)], examples, info)
    assert scores["spearman"] == pytest.approx(1)
    assert scores["mean_squared_error"] == pytest.approx((0 + 4 + 36 + 144) / 4)
    assert scores["pearson"] == pytest.approx(0.984374, abs=1e-6)


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
@pytest.mark.parametrize("constant", [0.0, 3.7, 1e9])
def test_a_constant_correlates_with_nothing(metric: str, constant: float) -> None:
    info = TaskInfo("regression", (), True, metric)
    examples = [Text("a", "a", "b", n / 3) for n in range(7)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predictions = [{"score": constant}] * 7
        assert kinds.score(predictions, examples, info)[metric] == 0
        rows = metrics.sums(predictions, examples, info)
        assert metrics.value(rows.sum(axis=0), info) == 0
        # A resample that holds one example only.
        moving = metrics.sums([{"score": float(n)} for n in range(7)], examples, info)
        assert (metrics.value(7 * moving, info) == 0).all()


def test_predictions_that_nearly_agree_keep_their_correlation() -> None:
    rng = np.random.default_rng(3)
    info = TaskInfo("regression", (), True, "pearson")
    predictions, examples = regression(rng, 200, scale=1e-6)
    value = metrics.value(metrics.sums(predictions, examples, info).sum(axis=0), info)
    assert value == pytest.approx(kinds.score(predictions, examples, info)["pearson"], abs=1e-6)
    assert value > 0.5


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1", "f1", "matthews"])
def test_a_single_class_scores_without_a_warning(metric: str) -> None:
    info = TaskInfo("classification", TWO, False, metric)
    for label in TWO:
        examples = [Text("a", "a", target=label)] * 4
        for predicted in TWO:
            predictions = [{"label": predicted}] * 4
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                scored = kinds.score(predictions, examples, info)[metric]
            rows = metrics.sums(predictions, examples, info)
            assert metrics.value(rows.sum(axis=0), info) == pytest.approx(scored)


def test_the_f1_of_two_labels_is_that_of_the_second() -> None:
    info = TaskInfo("classification", TWO, False, "f1")
    wanted = ["yes", "yes", "yes", "no", "no"]
    labels = ["yes", "no", "no", "yes", "no"]
    examples = [Text("a", "a", target=label) for label in wanted]
    scored = kinds.score([{"label": label} for label in labels], examples, info)
    assert scored["f1"] == pytest.approx(2 * 1 / (2 + 3))
    assert scored["accuracy"] == pytest.approx(2 / 5)
    assert scored["macro_f1"] == pytest.approx((2 / 5 + 2 / 5) / 2)


def test_spans_are_counted_as_seqeval_does_by_default() -> None:
    from seqeval.metrics import f1_score

    info = TaskInfo("tagging", TAGS, False, "f1")
    rng = np.random.default_rng(4)
    predictions, examples = tagging(rng, 60)
    expected = f1_score([list(e.tags) for e in examples], [p["tags"] for p in predictions])
    rows = metrics.sums(predictions, examples, info)
    assert metrics.value(rows.sum(axis=0), info) == pytest.approx(expected)
    # An I- after nothing begins a span there; by the strict scheme it would be none.
    one = [Tagged("a", ("w", "w"), ("B-X", "I-X"))]
    assert kinds.score([{"tags": ["I-X", "I-X"]}], one, info)["f1"] == 1


def test_answerable_and_unanswerable_questions_are_told_apart() -> None:
    info = TaskInfo("span", (), False, "f1")
    answer = (Answer("red cat", 0),)
    examples = [
        Question("a", "a", "?", "red cat", answers) for answers in (answer, answer, (), (), ())
    ]
    predictions = [{"text": text} for text in ("red", "", "", "", "cat")]
    assert kinds.score(predictions, examples, info) == pytest.approx(
        {
            "exact_match": 2 / 5,
            "f1": (2 / 3 + 2) / 5,
            "answerable_f1": 1 / 3,
            "unanswerable_accuracy": 2 / 3,
        }
    )
    assert set(kinds.score(predictions[:2], examples[:2], info)) == {"exact_match", "f1"}


def test_what_cannot_be_measured_is_refused() -> None:
    info = TaskInfo("classification", FOUR, False, "f1")
    right = [{"label": "a"}]
    with pytest.raises(ConfigError, match=r"data.metric is 'f1'.*accuracy, macro_f1, matthews"):
        metrics.sums(right, [Text("t:1", "a", target="a")], info)
    info = replace(info, metric="accuracy")
    with pytest.raises(DataError, match="t:1: there is no target"):
        kinds.score(right, [Text("t:1", "a")], info)
    with pytest.raises(DataError, match="t:2: label 'e' is none of the task's"):
        metrics.sums(right, [Text("t:2", "a", target="e")], info)
    tagged = TaskInfo("tagging", ("NOUN", "O"), False, "f1")
    with pytest.raises(ConfigError, match=r"choose one of accuracy$"):
        metrics.sums([{"tags": ["O"]}], [Tagged("a", ("w",), ("O",))], tagged)
