"""What `sequence_length` cuts off, counted by hand; windows over a long text."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import gmean
from tokenizers import Tokenizer, models, pre_tokenizers

from rungwise.tasks.data import cutting
from rungwise.tasks.data.cutting import measure_cut
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import (
    Answer,
    ChoiceExample,
    Example,
    Question,
    Tagged,
    TaskInfo,
    Text,
)
from rungwise.tasks.kinds.items import Frame, Item
from rungwise.tasks.kinds.kind import Outputs, Reading
from tests.task_cases import NUMBERED, words

INFO: dict[str, TaskInfo] = {
    "one": TaskInfo("classification", ("a", "b"), False, "accuracy"),
    "pair": TaskInfo("classification", ("a", "b"), True, "accuracy"),
    "tagging": TaskInfo("tagging", ("O", "B-X"), False, "f1"),
    "span": TaskInfo("span", (), False, "f1"),
    "choice": TaskInfo("choice", (), False, "accuracy"),
    "generation": TaskInfo("generation", (), False, "chrf"),
}


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    """A token a letter, so that words have as many tokens as letters."""
    made = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate("abcdefgh猫狗")}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return made


def cut_of(
    name: str, examples: list[Example], tokenizer: Tokenizer, length: int, windows: bool = False
) -> float:
    """The share of the examples that are cut."""
    frame = Frame(101, 102, 103, length)
    reading = Reading(stride=4, windows=windows)
    items = task_kind(INFO[name], reading).encode(examples, tokenizer, frame)
    return measure_cut(examples, items)


def test_examples_that_lose_something_are_counted(letters: Tokenizer) -> None:
    texts = ("aa bbb cc", "aa", "aa bbbb", "猫狗猫狗猫狗")
    examples: list[Example] = [Text(text, text) for text in texts]
    assert cut_of("one", examples, letters, 7) == 3 / 4
    assert cut_of("one", examples, letters, 9) == 0
    assert cut_of("one", examples, letters, 7, windows=True) == 0
    # Room for nine, of which a shorter text of four leaves five.
    pairs: list[Example] = [Text("1", "aa bb", "dd " * 9), Text("2", "aa bb", "dd dd c")]
    assert cut_of("pair", pairs, letters, 12) == 1 / 2
    # The longest option decides what there is room for.
    example = ChoiceExample("1", "aa bb cc", "dd", ("ee", "ff ff"))
    assert cut_of("choice", [example], letters, 14) == 1
    assert cut_of("choice", [example], letters, 15) == 0
    assert cut_of("choice", [replace(example, context="", question="")], letters, 6) == 1


def test_windows_and_rows_go_on_and_only_questions_and_words_are_cut(letters: Tokenizer) -> None:
    asked = Question("1", "1", "aa bb", "cc " * 40, (Answer("cc", 0),))
    assert cut_of("span", [asked], letters, 12) == 0
    assert cut_of("span", [asked], letters, 10) == 1
    tagged = Tagged("1", ("aaaa",) * 30, ("O",) * 30)
    assert cut_of("tagging", [tagged], letters, 8) == 0
    assert cut_of("tagging", [tagged], letters, 5) == 1


def test_other_limits_cut_too(letters: Tokenizer) -> None:
    # A target is written up to 30 tokens, a question read up to 64.
    written: list[Example] = [
        Text("1", "aa bb", target="cc " * 20),
        Text("2", "aa", target="cc dd"),
    ]
    assert cut_of("generation", written, letters, 100) == 1 / 2
    asked = Question("1", "1", "aa " * 33, "cc", (Answer("cc", 0),))
    assert cut_of("span", [asked], letters, 300) == 1


def test_a_note_is_made_of_more_than_5_percent() -> None:
    assert cutting.note(64, {"train": 0.795, "test": 0.05}) == (
        "finetune.sequence_length 64 cuts 79.5% of the train examples; a longer one cuts fewer"
    )
    assert cutting.note(64, {"test": 0.05}) is None


LABELS = TaskInfo("classification", ("a", "b", "c"), False, "accuracy")
NUMBERS = TaskInfo("regression", (), False, "pearson")
FRAME = Frame(start=101, between=102, end=103, sequence_length=8)


def rows(items: list[Item]) -> list[list[tuple[int, ...]]]:
    return [[row.ids for row in item.rows] for item in items]


def test_windows_of_a_text_begin_a_stride_apart() -> None:
    texts = [Text("1", words(*range(1, 9)), target="b"), Text("2", words(1, 2), target="a")]
    items = task_kind(LABELS, Reading(windows=True, stride=2)).encode(texts, NUMBERED, FRAME)
    assert rows(items) == [
        [(101, 1, 2, 3, 4, 5, 6, 103)],
        [(101, 3, 4, 5, 6, 7, 8, 103)],
        [(101, 1, 2, 103)],
    ]
    assert [(item.example, item.target, item.cut) for item in items] == [
        (0, 1, False),
        (0, 1, False),
        (1, 0, False),
    ]


@settings(max_examples=60)
@given(st.integers(0, 60), st.integers(3, 30), st.integers(1, 20))
def test_every_token_is_read_and_what_fits_is_as_without_windows(
    length: int, longest: int, stride: int
) -> None:
    texts = [Text("1", words(*range(length)))]
    frame = Frame(101, 102, 103, longest)
    items = task_kind(LABELS, Reading(windows=True, stride=stride)).encode(texts, NUMBERED, frame)
    assert all(len(row.ids) <= longest for item in items for row in item.rows)
    read = {token for item in items for row in item.rows for token in row.ids if token < 100}
    assert read == {*range(length)}
    assert not any(item.cut for item in items)
    if length <= longest - 2:
        assert items == task_kind(LABELS).encode(texts, NUMBERED, frame)


def test_the_answer_for_a_text_is_the_geometric_mean_of_its_windows() -> None:
    rng = np.random.default_rng(0)
    texts = [Text("1", words(*range(20))), Text("2", words(1))]
    items = task_kind(LABELS, Reading(windows=True)).encode(texts, NUMBERED, FRAME)
    outputs = [4 * rng.normal(size=3).astype(np.float32) for _ in items]
    shares = np.exp(outputs[:-1]) / np.exp(outputs[:-1]).sum(axis=1, keepdims=True)
    assert len(shares) > 3
    mean = gmean(shares, axis=0)
    first, second = task_kind(LABELS).probabilities(Outputs(outputs, items, texts))
    np.testing.assert_allclose(first, mean / mean.sum(), rtol=1e-5)
    np.testing.assert_allclose(second, np.exp(outputs[-1]) / np.exp(outputs[-1]).sum(), rtol=1e-5)
    said = task_kind(LABELS).decode(Outputs(outputs, items, texts), {})
    assert [each["label"] for each in said] == [
        LABELS.labels[np.argmax(each)] for each in (first, second)
    ]
    assert [each["probability"] for each in said] == [max(first), max(second)]
    items = task_kind(NUMBERS, Reading(windows=True)).encode(texts[:1], NUMBERED, FRAME)
    scores = rng.normal(size=len(items)).astype(np.float32)
    [said] = task_kind(NUMBERS).decode(Outputs(list(scores), items, texts[:1]), {})
    assert said["score"] == pytest.approx(scores.astype(np.float64).mean(), rel=1e-9)
