"""Metrics from sums over examples are those of the libraries, on the whole set and on resamples."""

import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics.chrf import CHRF
from scipy.stats import pearsonr, spearmanr
from seqeval.metrics.sequence_labeling import precision_recall_fscore_support
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from sklearn.preprocessing import MultiLabelBinarizer

from rungwise.core.errors import DataError
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import (
    Answer,
    ChoiceExample,
    Kind,
    Question,
    Tagged,
    TaskInfo,
    Text,
)
from rungwise.tasks.kinds.items import Item
from rungwise.tasks.kinds.kind import Outputs
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
TASKS: list[tuple[Kind, tuple[str, ...]]] = [
    ("classification", TWO),
    ("classification", FOUR),
    ("multilabel", FOUR),
    ("regression", ()),
    ("tagging", TAGS),
    ("span", ()),
    ("choice", ()),
    ("generation", ()),
]


def draw(rng: np.random.Generator, info: TaskInfo, count: int) -> Case:
    if info.kind in ("classification", "multilabel"):
        of_labels = classification if info.kind == "classification" else multilabel
        return of_labels(rng, count, info.labels)
    others = {"regression": regression, "tagging": tagging, "span": spans, "choice": choices}
    return {**others, "generation": written}[info.kind](rng, count)


def library_scores(
    predictions: list[dict[str, Any]], examples: list[Any], info: TaskInfo
) -> dict[str, float]:
    """Every metric as the usual libraries compute it; the rules of answers have own tests."""
    predicted = [prediction[task_kind(info).answer] for prediction in predictions]
    gold: list[Any] = [list(e.gold) if info.kind == "tagging" else e.gold for e in examples]
    f1 = partial(f1_score, zero_division=0)  # pyright: ignore[reportArgumentType]
    match info.kind:
        case "classification":
            two = {}
            if len(info.labels) == 2:
                two["f1"] = f1(*([x == info.labels[1] for x in each] for each in (gold, predicted)))
            several = len({*gold, *predicted}) > 1  # the library warns of a single label
            return two | {
                "accuracy": accuracy_score(gold, predicted),
                "macro_f1": f1(gold, predicted, average="macro"),
                "matthews": matthews_corrcoef(gold, predicted) if several else 0.0,
            }
        case "multilabel":
            binarizer = MultiLabelBinarizer(classes=info.labels)
            both = [np.asarray(binarizer.fit_transform(each)) for each in (gold, predicted)]
            scores = {f"{name}_f1": f1(*both, average=name) for name in ("micro", "macro")}
            return scores | {"exact_match": accuracy_score(*both)}
        case "regression":
            errors = np.mean((np.array(predicted) - gold) ** 2)
            constant = np.ptp(predicted) == 0 or np.ptp(gold) == 0
            results: list[Any] = [] if constant else [pearsonr(predicted, gold)]
            results += [] if constant else [spearmanr(predicted, gold)]
            values = [each.statistic for each in results] or [0.0, 0.0]
            return {
                "mean_squared_error": float(errors),
                "pearson": values[0],
                "spearman": values[1],
            }
        case "tagging":
            words = [
                w for tags in zip(gold, predicted, strict=True) for w in zip(*tags, strict=True)
            ]
            ways: dict[str, Any] = {"average": "micro", "zero_division": 0}
            scores: Any = precision_recall_fscore_support(gold, predicted, **ways)[:3]
            names = ("precision", "recall", "f1")
            right = sum(g == p for g, p in words) / max(1, len(words))
            return dict(zip(names, scores, strict=True)) | {"accuracy": right}
        case "span":
            pairs = zip(predicted, examples, strict=True)
            exact, f1s = np.array([metrics.score_answer(*pair) for pair in pairs]).T
            return {"exact_match": exact.mean(), "f1": f1s.mean()}
        case "choice":
            return {"accuracy": accuracy_score(gold, predicted)}
        case "generation":
            same = [
                "".join(p.split()) == "".join(g.split())
                for p, g in zip(predicted, gold, strict=True)
            ]
            chrf = CHRF().corpus_score(predicted, [gold]).score / 100
            return {"chrf": chrf, "exact_match": float(np.mean(same))}
    raise AssertionError(f"no library is asked about {info.kind}")


@pytest.mark.parametrize(("kind", "labels"), TASKS)
def test_metrics_are_those_of_the_libraries(kind: Kind, labels: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    task = task_kind(TaskInfo(kind, labels, kind == "regression", ""))
    for count in (2, 40):
        predictions, examples = draw(rng, task.info, count)
        expected = library_scores(predictions, examples, task.info)
        assert task.score(predictions, examples) == pytest.approx(expected, abs=1e-9)
        drawn_N = [np.arange(count), *(rng.integers(0, count, count) for _ in range(2))]
        for metric in expected:
            task = task_kind(replace(task.info, metric=metric))
            rows = task.sums(predictions, examples)
            assert len(rows) == count
            totals = np.stack([rows[draw].sum(axis=0) for draw in drawn_N])
            values = task.value(totals)
            assert values.shape == (3,)
            for draw_N, value in zip(drawn_N, values, strict=True):
                if metric == "spearman" and draw_N is not drawn_N[0]:
                    continue  # ranks are those of the whole set
                resample = [predictions[n] for n in draw_N], [examples[n] for n in draw_N]
                library = library_scores(*resample, task.info)
                assert value == pytest.approx(library[metric], abs=1e-9)


@pytest.mark.parametrize("metric", ["micro_f1", "macro_f1", "exact_match"])
def test_the_threshold_of_labels_is_the_best_on_validation(metric: str) -> None:
    rng = np.random.default_rng(6)
    info = TaskInfo("multilabel", FOUR, False, metric)
    gold_NC = rng.random((80, 4)) < [0.5, 0.2, 0.1, 0.05]
    logits_NC = rng.normal(size=(80, 4)) + 2 * gold_NC - 2
    names = [tuple(n for n, has in zip(FOUR, row, strict=True) if has) for row in gold_NC]
    examples = [Text("a", "a", target=each) for each in names]
    items = [Item((), n) for n in range(80)]
    found = task_kind(info).calibrate(Outputs(list(logits_NC), items, examples))
    score = {
        "micro_f1": partial(f1_score, average="micro"),
        "macro_f1": partial(f1_score, average="macro"),
        "exact_match": accuracy_score,
    }[metric]
    tried = [score(gold_NC, 1 / (1 + np.exp(-logits_NC)) > t / 100) for t in range(1, 100)]
    said = task_kind(info).decode(Outputs(list(logits_NC), items, examples), found)
    assert task_kind(info).score(said, examples)[metric] == pytest.approx(max(tried), abs=1e-9)
    assert max(tried) > tried[49], "half is too high"
    equal = 1 + np.flatnonzero(np.array(tried) == max(tried))
    assert found["label_threshold"] == min(equal, key=lambda t: abs(t - 50)) / 100


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
@pytest.mark.parametrize("constant", [0.0, 3.7, 1e9])
def test_a_constant_correlates_with_nothing(metric: str, constant: float) -> None:
    info = TaskInfo("regression", (), True, metric)
    examples = [Text("a", "a", "b", n / 3) for n in range(7)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predictions = [{"score": constant}] * 7
        assert task_kind(info).score(predictions, examples)[metric] == 0
        rows = task_kind(info).sums(predictions, examples)
        assert task_kind(info).value(rows.sum(axis=0)) == 0
        # A resample that holds one example only.
        moving = task_kind(info).sums([{"score": float(n)} for n in range(7)], examples)
        assert (task_kind(info).value(7 * moving) == 0).all()


def test_predictions_that_nearly_agree_keep_their_correlation() -> None:
    rng = np.random.default_rng(3)
    info = TaskInfo("regression", (), True, "pearson")
    predictions, examples = regression(rng, 200, scale=1e-6)
    value = task_kind(info).value(task_kind(info).sums(predictions, examples).sum(axis=0))
    assert value == pytest.approx(library_scores(predictions, examples, info)["pearson"], abs=1e-6)
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
                scored = task_kind(info).score(predictions, examples)[metric]
            rows = task_kind(info).sums(predictions, examples)
            assert task_kind(info).value(rows.sum(axis=0)) == pytest.approx(scored)


def test_what_cannot_be_measured_is_refused() -> None:
    task = task_kind(TaskInfo("classification", FOUR, False, "accuracy"))
    with pytest.raises(DataError, match="t:1: there is no target"):
        task.score([{"label": "a"}], [Text("t:1", "a")])
    with pytest.raises(DataError, match="t:2: label 'e' is none of the task's"):
        task.sums([{"label": "a"}], [Text("t:2", "a", target="e")])
