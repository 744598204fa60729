"""Where a model errs: every number against scikit-learn and seqeval, from the file alone."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from seqeval.metrics import classification_report
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support
from sklearn.preprocessing import MultiLabelBinarizer

from rungwise.core.storage.folder import Folder
from rungwise.evaluation.comparison import errors as predictions
from rungwise.evaluation.comparison.errors import analyse_errors
from rungwise.report.page import environment
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import Answer, Example, Question, Tagged, TaskInfo, Text
from rungwise.tasks.kinds.items import Item
from rungwise.tasks.kinds.kind import Outputs

LABELS = ("no", "maybe", "yes")
TAGS = ("O", "B-A", "I-A", "B-B", "I-B")
COUNT = 60


def made(kind: str, seed: int) -> tuple[TaskInfo, list[Example], list[dict[str, Any]]]:
    """A task with examples of many lengths, and predictions by random logits."""
    rng = np.random.default_rng(seed)
    numbers = [int(n) for n in np.random.default_rng(0).integers(0, 3, COUNT)]
    lengths = [1 + n % 13 for n in range(COUNT)]
    examples: list[Example] = []
    outputs = []
    for n, (gold, length) in enumerate(zip(numbers, lengths, strict=True)):
        text = " ".join(["word"] * length)
        if kind == "classification":
            examples.append(Text(f"a:{n}", text, None, LABELS[gold]))
            outputs.append(rng.normal(size=3) + np.eye(3)[gold])
        elif kind == "multilabel":
            has = np.random.default_rng(n).random(3) < 0.4
            examples.append(Text(f"a:{n}", text, None, tuple(sorted(np.array(LABELS)[has]))))
            outputs.append(rng.normal(size=3) + 2 * has - 1)
        else:
            tags = [int(t) for t in np.random.default_rng(n).integers(0, 5, length)]
            named = tuple(TAGS[t] for t in tags)
            examples.append(Tagged(f"a:{n}", ("w",) * length, named))
            outputs.append(rng.normal(size=(length, 5)) + 2 * np.eye(5)[tags])
    labels = {"classification": LABELS, "multilabel": LABELS, "tagging": TAGS}.get(kind, ())
    info = TaskInfo(kind, labels, False, "accuracy")  # pyright: ignore[reportArgumentType]
    items = [Item((), n, places=(1,) * lengths[n]) for n in range(COUNT)]
    said = task_kind(info).decode(Outputs(outputs, items, examples), {})
    shares = task_kind(info).probabilities(Outputs(outputs, items, examples))
    return info, examples, [{**a, "probabilities": b} for a, b in zip(said, shares, strict=True)]


def kept(folder: Path, kind: str) -> tuple[TaskInfo, list[dict[str, Any]]]:
    """The rows of two variants and two seeds, as they are read from the file."""
    written, info = [], None
    for number, (variant, seed) in enumerate([("a", 1), ("a", 2), ("b", 1), ("b", 2)]):
        info, examples, said = made(kind, number + 1)
        written += predictions.prediction_rows(
            variant, seed, examples, said, task_kind(info).answer
        )
    output = Folder.at(folder)
    predictions.write_predictions(written, output)
    assert info is not None
    return info, predictions.read_predictions(output)


def columns(folder: Path) -> dict[str, list[Any]]:
    """The columns of variant a, by pyarrow alone."""
    table = pq.read_table(folder / "predictions.parquet").to_pydict()
    return {
        name: [v for v, variant in zip(each, table["variant"], strict=True) if variant == "a"]
        for name, each in table.items()
    }


def test_classes_and_confusion_are_scikit_learns(tmp_path: Path) -> None:
    info, rows = kept(tmp_path, "classification")
    found, of = analyse_errors(rows, "a", task_kind(info)), columns(tmp_path)
    shares = precision_recall_fscore_support(of["gold"], of["prediction"], labels=LABELS)
    ours = [(c.precision, c.recall, c.f1, c.gold) for c in found.classes]
    np.testing.assert_allclose(ours, np.array(shares).T, atol=1e-9)
    matrix = confusion_matrix(of["gold"], of["prediction"], labels=LABELS)
    for gold, said, count in found.confusions:
        assert gold != said
        assert matrix[LABELS.index(gold), LABELS.index(said)] == count
    assert sum(count for *_, count in found.confusions) == matrix.sum() - matrix.trace()


def test_each_of_several_labels_is_scikit_learns(tmp_path: Path) -> None:
    info, rows = kept(tmp_path, "multilabel")
    found, of = analyse_errors(rows, "a", task_kind(info)), columns(tmp_path)
    binarizer = MultiLabelBinarizer(classes=LABELS)
    gold, said = (np.asarray(binarizer.fit_transform(of[name])) for name in ("gold", "prediction"))
    shares = np.array(precision_recall_fscore_support(gold, said))
    ours = {c.name: (c.precision, c.recall, c.f1, c.gold) for c in found.classes}
    np.testing.assert_allclose([ours[name] for name in LABELS], shares.T, atol=1e-9)
    assert found.confusions == ()
    assert {each.gold for each in found.wrong} >= {"no label"}


def test_types_of_spans_are_seqevals(tmp_path: Path) -> None:
    info, rows = kept(tmp_path, "tagging")
    found, of = analyse_errors(rows, "a", task_kind(info)), columns(tmp_path)
    report = classification_report(of["gold"], of["prediction"], output_dict=True)
    assert isinstance(report, dict)
    assert [each.name for each in found.classes] == ["A", "B"]
    for each in found.classes:
        expected = [report[each.name][k] for k in ("precision", "recall", "f1-score", "support")]
        np.testing.assert_allclose(
            [each.precision, each.recall, each.f1, each.gold], expected, atol=1e-9
        )


def test_answers_and_texts_have_no_confidence(tmp_path: Path) -> None:
    asked = [
        Question("a:1", "1", "Why?", "It rains.", (Answer("rains", 3),)),
        Question("a:2", "2", "Who?", "It rains.", ()),
    ]
    said = [{"text": "It rains", "start": 0, "no_answer_score": 0.0}] * 2
    rows = predictions.prediction_rows("a", 0, asked, said, "text")
    predictions.write_predictions(rows, Folder.at(tmp_path))
    found = analyse_errors(
        predictions.read_predictions(Folder.at(tmp_path)),
        "a",
        task_kind(TaskInfo("span", (), False, "f1")),
    )
    assert {each.confidence for each in found.wrong} == {None}
    assert {each.gold for each in found.wrong} == {"rains", "no answer"}
    texts = [Text(f"a:{n}", "x", target="今 天") for n in range(4)]
    rows = predictions.prediction_rows(
        "a", 0, texts, [{"text": each} for each in ("今天", "明天", "", "今 天")], "text"
    )
    predictions.write_predictions(rows, Folder.at(tmp_path))
    written = TaskInfo("generation", (), False, "chrf")
    found = analyse_errors(
        predictions.read_predictions(Folder.at(tmp_path)), "a", task_kind(written)
    )
    assert [each.prediction for each in found.wrong] == ["明天", ""]


def test_texts_and_labels_are_shown_in_their_own_direction_and_break(tmp_path: Path) -> None:
    """As `dir` does, for which the style sheet breaks words of any length."""
    info, rows = kept(tmp_path, "classification")
    page = environment().get_template("errors.html.j2")
    html = page.render(errors={"t": analyse_errors(rows, "a", task_kind(info))})
    cells = re.findall(r"<td([^>]*)>(word|no|maybe|yes)", html)
    assert {text for _, text in cells} == {"word", *LABELS}
    assert all('dir="auto"' in attributes for attributes, _ in cells)
    style = environment().get_template("style.css").render()
    assert "[dir] { overflow-wrap: anywhere; }" in style
