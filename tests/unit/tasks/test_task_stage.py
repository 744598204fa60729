"""The task stage on files: splits, budgets, checks across splits, the summary, and a bucket."""

import gzip
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sklearn.metrics import f1_score

from rungwise.core.errors import ConfigError, DataError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.tasks.config import input_digests
from rungwise.tasks.data.files import build_task, draw_examples, find_overlap, split_examples
from rungwise.tasks.interface import KINDS, task_kind
from rungwise.tasks.kinds.examples import (
    ExampleCounts,
    Question,
    TaskInfo,
    TaskSummary,
    Text,
    read_examples,
)
from rungwise.tasks.kinds.kind import TaskKind
from tests.conftest import s3_bucket
from tests.summaries import standing
from tests.task_cases import files_task
from tests.training_runs import Notes

TABLE = {"kind": "table", "columns": {"text": 0, "label": 1}, "header": False}
SCORES = TABLE | {"columns": {"text": 0, "score": 1}}


@pytest.fixture(autouse=True)
def baselines(monkeypatch: pytest.MonkeyPatch) -> list[tuple[TaskInfo, int, int]]:
    """A stand-in for the baselines, which have tests of their own: it keeps what it was given."""
    calls: list[tuple[TaskInfo, int, int]] = []

    def stand_in(kind: TaskKind, train: list[Any], test: list[Any]) -> dict[str, dict[str, float]]:
        calls.append((kind.info, len(train), len(test)))
        return {"majority": {"accuracy": 0.25}}

    for kind in KINDS.values():
        monkeypatch.setattr(kind, "baselines", stand_in)
    return calls


def rows(count: int, labels: str = "ab", name: str = "text") -> str:
    return "".join(f"{name} {n}\t{labels[n % len(labels)]}\n" for n in range(count))


def made(folder: Path, notes: Notes | None = None, **keys: Any) -> tuple[TaskSummary, Artifact]:
    """The summary and the artifact of a task; a split given as text becomes a file."""
    for split in ("train", "validation", "test"):
        if isinstance(keys.get(split), str):
            path = folder / f"{split}.tsv"
            path.write_text(keys[split])
            keys[split] = str(path)
    data = {"kind": "files", "format": TABLE, **keys}
    for split in ("validation", "test"):
        if split not in keys and f"{split}_fraction" not in keys:
            data[f"{split}_fraction"] = 0.2
    output = Folder.at(folder / "task")
    summary = build_task(files_task(data), {}, output, Context(report=notes or Notes()))
    return summary, standing("task", output, summary)


def test_the_summary_of_a_task(tmp_path: Path, baselines: list[tuple[TaskInfo, int, int]]) -> None:
    summary, task = made(
        tmp_path, train=rows(30), validation=rows(6, name="v"), test=rows(9, name="t")
    )
    info = TaskInfo("classification", ("a", "b"), False, "accuracy")
    assert summary == TaskSummary(
        info=info,
        overlap={"validation": 0, "test": 0},
        irregular={},
        examples=ExampleCounts(train=30, validation=6, test=9),
        baselines={"majority": {"accuracy": 0.25}},
        headline="classification  2 labels  30 to train on  6 to validate  9 to test",
    )
    assert baselines == [(info, 30, 9)]
    assert [e.where for e in read_examples(task, "test")][:2] == ["test.tsv:1", "test.tsv:2"]
    assert Counter(e.target for e in read_examples(task, "train")) == {"a": 15, "b": 15}


def test_budgets_cap_the_splits(tmp_path: Path, baselines: list[tuple[TaskInfo, int, int]]) -> None:
    keys: dict[str, Any] = {
        "train": rows(90, "aab"),
        "validation": rows(50, name="v"),
        "test": rows(50, name="t"),
    }
    summary, task = made(
        tmp_path, **keys, train_examples=20, max_validation_examples=7, max_test_examples=99
    )
    assert summary.examples == ExampleCounts(train=20, validation=7, test=50)
    assert Counter(e.target for e in read_examples(task, "train")) == {"a": 10, "b": 10}
    assert [call[1:] for call in baselines] == [(90, 50)]


def test_labels_are_in_the_stated_order_or_sorted_by_number(tmp_path: Path) -> None:
    content = "".join(f"text {n}\t{n % 11}\n" for n in range(330))
    assert made(tmp_path, train=content)[0].info.labels == tuple(str(n) for n in range(11))
    labels = {"b": "second", "a": "first", "c": "third"}
    notes = Notes()
    summary, _ = made(tmp_path, notes, format=TABLE | {"labels": labels}, train=rows(90))
    assert summary.info.labels == ("second", "first", "third")
    assert notes.notes == ["no training example has the label third"]


def test_f1_is_that_of_the_second_label_and_this_is_said(tmp_path: Path) -> None:
    train = "".join(f"text {n}\t{['hateful', 'normal'][n % 3 > 0]}\n" for n in range(90))
    stated = TABLE | {"labels": ["normal", "hateful"]}
    for form, positive in ((TABLE, "normal"), (stated, "hateful")):
        notes = Notes()
        summary, task = made(tmp_path, notes, format=form, train=train, metric="f1")
        assert task_kind(summary.info).positive == positive
        assert f"f1 is that of the label '{positive}', the second one" in notes.notes
        test = read_examples(task, "test")
        gold = [example.target for example in test]
        predicted = [["normal", "hateful"][n % 2] for n in range(len(gold))]
        kind = task_kind(summary.info)
        scores = kind.score([{"label": label} for label in predicted], test)
        is_positive = [[label == positive for label in each] for each in (gold, predicted)]
        assert scores["f1"] == pytest.approx(f1_score(*is_positive))
    three = TaskInfo("classification", ("a", "b", "c"), False, "accuracy")
    assert task_kind(three).positive is None


def test_a_text_in_train_and_test_is_counted_and_noted(tmp_path: Path) -> None:
    notes = Notes()
    test = "text 0\tb\ntext 1\tb\nanother\ta\n"
    summary, _ = made(tmp_path, notes, train=rows(20), validation=rows(4, name="v"), test=test)
    assert summary.overlap == {"validation": 0, "test": 2}
    assert notes.notes == [
        "2 of 3 test examples have a text that stands in train too; their score says what was "
        "remembered"
    ]


UNSEEN: dict[str, Any] = {
    "train": rows(20),
    "validation": rows(4, name="v"),
    "test": "one\ta\ntwo\tbb\n",
}


def test_a_label_that_training_never_has_is_refused_with_its_place(tmp_path: Path) -> None:
    message = (
        r"data\.test: test\.tsv:2: the label 'bb' of this test example is on no training example "
        r"\(did you mean 'b'\?\); the labels there are a, b; .* data\.unseen_labels to keep"
    )
    with pytest.raises(DataError, match=message):
        made(tmp_path, **UNSEEN)
    train = "EU I-ORG\nsays O\n\n" * 9
    keys: dict[str, Any] = {"train": train, "validation": train, "test": "EU O\n\nBonn I-LOC\n"}
    with pytest.raises(DataError, match=r"data\.test: test\.tsv:3: the label 'B-LOC' of this test"):
        made(tmp_path, format={"kind": "conll"}, **keys)


def test_an_unseen_label_can_be_kept_and_is_counted(tmp_path: Path) -> None:
    notes = Notes()
    kept, _ = made(tmp_path, notes, **UNSEEN, unseen_labels="keep")
    assert kept.info.labels == ("a", "b", "bb")
    assert kept.examples.test == 2
    assert notes.notes == [
        "test: examples kept with a label unseen in training: 1",
        "no training example has the label bb",
    ]


def test_a_split_may_have_a_format_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("label,text\nb,one\na,two\n")
    other = {"kind": "table", "columns": {"text": "text", "label": "label"}, "delimiter": ","}
    test = str(tmp_path / "other.csv")
    _, task = made(tmp_path, train=rows(30), test=[test], formats={"test": other})
    assert [(e.text, e.target) for e in read_examples(task, "test")] == [("one", "b"), ("two", "a")]
    with pytest.raises(ConfigError, match=r"formats\.test: expected files of classification, as"):
        made(tmp_path, train=rows(30), test=[test], formats={"test": {"kind": "conll"}})
    with pytest.raises(ConfigError, match=r"formats\.test: there is no file that is test"):
        made(tmp_path, train=rows(30), formats={"test": other})


def test_a_mistyped_tag_is_named_and_does_not_change_the_metric(tmp_path: Path) -> None:
    train = "EU B-ORG\nin O\nBonn B-LOC\n\n" * 9
    keys: dict[str, Any] = {
        "format": {"kind": "conll"},
        "train": train + "Rio BLOC\n",
        "test": train,
    }
    with pytest.raises(DataError) as error:
        made(tmp_path, validation=train, **keys)
    assert str(error.value) == (
        f"{tmp_path}/train.tsv:37: expected a tag that marks a span, as most do (did you mean "
        "'B-LOC'?), found 'BLOC'; rewrite the tag, or set data.format.scheme to as_is to take the "
        "tags as labels of words"
    )
    keys["format"] = {"kind": "conll", "scheme": "as_is"}
    summary, _ = made(tmp_path, validation=train, **keys)
    assert summary.info.metric == "accuracy"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"train": rows(20), "test": "\n"},
            r"data\.test: expected test examples, found none in .*tsv",
        ),
        (
            {"train": rows(4), "validation_fraction": 0.0001},
            r"data\.validation_fraction: expected validation examples, found none in .*train\.tsv",
        ),
        ({"train": rows(90, "a")}, r"data\.train: expected two labels or more, found only a"),
        ({"train": rows(90), "train_examples": 91}, r"examples is 91, but train has \d+ examples"),
        (
            {
                "train": "a O\n\nb B-X\n\n" * 5 + "w\n\n" * 11,
                "format": {"kind": "conll", "on_error": "drop"},
            },
            r"data\.train: expected most examples to be sound, found 10 that are and 11 that are",
        ),
        ({"train": rows(90, "abc"), "train_examples": 2}, r"2, but there are 3 labels \(a, b, c\)"),
        (
            {"train": rows(90, "12"), "format": SCORES, "metric": "mean_squared_error"},
            r"data\.metric: mean_squared_error does not fit .*; use pearson or spearman",
        ),
        (
            {"train": rows(90, "abc"), "metric": "f1"},
            r"data\.metric: f1 does not fit the labels of this task \(.*\); use accuracy or macro",
        ),
        (
            {
                "train": "a NN\nb IN\n\nc NN\nd IN\n\n" * 5,
                "format": {"kind": "conll"},
                "validation": "x NN\n",
                "test": "x IN\n",
                "metric": "f1",
            },
            r"data\.metric: f1 does not fit the labels of this task \(IN, NN\); use accuracy",
        ),
    ],
)
def test_an_untrainable_task_is_refused(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        made(tmp_path, **keys)


@pytest.mark.parametrize(
    ("form", "row", "metric"),
    [
        (TABLE, "text {n}\t{label}", "accuracy"),
        (SCORES, "text {n}\t3.5", "pearson"),
        ({"kind": "conll"}, "word{n} I-A\nword O\n", "f1"),
        ({"kind": "conll"}, "word{n} B-A\nword E-A\n", "f1"),
        ({"kind": "conll"}, "word{n} B\nword E\nword S\n", "f1"),
        ({"kind": "conll"}, "word{n} NN\nword IN\n", "accuracy"),
    ],
)
def test_the_metric_of_a_kind(tmp_path: Path, form: dict[str, Any], row: str, metric: str) -> None:
    content = "\n".join(row.format(n=n, label="ab"[n % 2]) for n in range(60))
    summary, _ = made(tmp_path, format=form, train=content)
    assert summary.info.metric == metric


def test_a_task_is_read_from_a_bucket_and_written_to_it() -> None:
    import s3fs

    with s3_bucket("tasks") as bucket:
        store = s3fs.S3FileSystem()
        store.pipe(f"{bucket}/data/train.tsv.gz", gzip.compress(rows(60).encode(), mtime=0))
        store.pipe(f"{bucket}/data/test.tsv", rows(10, name="t").encode())
        data = {
            "kind": "files",
            "format": TABLE,
            "train": f"{bucket}/data/train.tsv.gz",
            "validation_fraction": 0.3,
            "test": f"{bucket}/data/*.tsv",
        }
        config = files_task(data)
        digests = input_digests(config)
        output = Folder.at(f"{bucket}/task")
        summary = build_task(config, {}, output, Context())
        task = standing("task", output, summary)
        assert [e.text for e in read_examples(task, "test")] == [f"t {n}" for n in range(10)]
        assert summary.examples.total + summary.examples.test == 70
        store.pipe(f"{bucket}/data/test.tsv", b"broken\n")
        assert input_digests(config)["train"] == digests["train"]
        assert input_digests(config)["test"] != digests["test"]
        with pytest.raises(DataError, match=r"s3://tasks/data/test\.tsv:1: expected 2 columns"):
            build_task(config, {}, output, Context())


def texts(count: int, labels: str = "abc") -> list[Text]:
    return [Text(f"f:{n}", f"text {n}", None, labels[n % len(labels)]) for n in range(count)]


def test_shares_are_about_the_fractions_and_a_partition() -> None:
    examples = texts(4000)
    splits = split_examples(examples, {"validation": 0.1, "test": 0.3}, seed=0)
    assert sorted(e.where for split in splits.values() for e in split) == sorted(
        e.where for e in examples
    )
    # Four standard deviations of a binomial: 76 of 400, 116 of 1200.
    assert abs(len(splits["validation"]) - 400) < 76
    assert abs(len(splits["test"]) - 1200) < 116


def test_a_share_depends_neither_on_the_order_nor_on_the_other_examples() -> None:
    examples = texts(300)
    first = split_examples(examples, {"test": 0.5}, seed=3)["test"]
    shuffled = examples[:]
    random.Random(0).shuffle(shuffled)
    again = split_examples(shuffled[:200], {"test": 0.5}, seed=3)["test"]
    assert {e.where for e in again} == {e.where for e in first} & {e.where for e in shuffled[:200]}
    other = split_examples(examples, {"test": 0.5}, seed=4)["test"]
    assert {e.where for e in other} != {e.where for e in first}


def test_questions_about_one_context_stay_together() -> None:
    examples = [Question(f"f:{n}", str(n), f"q{n}?", f"context {n // 5}", ()) for n in range(200)]
    splits = split_examples(examples, {"test": 0.5}, seed=0)
    places = [{e.context for e in split if isinstance(e, Question)} for split in splits.values()]
    assert all(places)
    assert not places[0] & places[1]


def test_a_budget_is_balanced_and_holds_the_smaller_ones() -> None:
    examples = [*texts(300, "a"), *texts(30, "b"), *texts(4, "c")]
    budgets = {n: draw_examples(examples, n, 0, balanced=True) for n in (3, 9, 30, 60)}
    assert Counter(e.gold for e in budgets[9]) == {"a": 3, "b": 3, "c": 3}
    # The third label has run out, the other two go on taking turns.
    assert Counter(e.gold for e in budgets[30]) == {"a": 13, "b": 13, "c": 4}
    for smaller, larger in ((3, 9), (9, 30), (30, 60)):
        assert {id(e) for e in budgets[smaller]} <= {id(e) for e in budgets[larger]}


def test_overlap_counts_inputs_and_not_labels() -> None:
    train = [Text("a", "one", "two", "x"), Text("b", "three", None, "x")]
    other = [Text("c", "one", "two", "y"), Text("d", "one", None, "x"), Text("e", "two", "one")]
    assert find_overlap(train, other).sum() == 1
    assert find_overlap(train, [Text("f", "three", None, "y")] * 3).all()
