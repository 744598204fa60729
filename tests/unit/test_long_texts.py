"""Long texts in windows: every token is in one, and the windows of a text are one answer."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import gmean
from tokenizers import Tokenizer, models, pre_tokenizers

from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import TaskInfo, Text
from rungwise.tasks.kinds.items import Frame, Item
from rungwise.tasks.kinds.kind import Outputs, Reading

LABELS = TaskInfo("classification", ("a", "b", "c"), False, "accuracy")
PAIRS = TaskInfo("classification", ("a", "b", "c"), True, "accuracy")
NUMBERS = TaskInfo("regression", (), True, "pearson")
FRAME = Frame(start=101, between=102, end=103, sequence_length=8)


@pytest.fixture(scope="module")
def numbers() -> Tokenizer:
    """The id of a word, which is a number, is that number."""
    made = Tokenizer(models.WordLevel({str(n): n for n in range(100)}, unk_token="0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return made


def words(*each: int) -> str:
    return " ".join(map(str, each))


def rows(items: list[Item]) -> list[list[tuple[int, ...]]]:
    return [[row.ids for row in item.rows] for item in items]


def test_windows_of_a_text_and_of_the_longer_one_of_a_pair(numbers: Tokenizer) -> None:
    texts = [Text("1", words(*range(1, 9)), target="b"), Text("2", words(1, 2), target="a")]
    items = task_kind(LABELS, Reading(windows=True, stride=2)).encode(texts, numbers, FRAME)
    assert rows(items) == [
        [(101, 1, 2, 3, 4, 5, 6, 103)],
        [(101, 3, 4, 5, 6, 7, 8, 103)],
        [(101, 1, 2, 103)],
    ]
    assert [(item.example, item.target, item.cut) for item in items] == [
        (0, 1, ()),
        (0, 1, ()),
        (1, 0, ()),
    ]
    pair = [Text("3", words(1, 2, 3), words(4, 5, 6, 7, 8), 0.5)]
    items = task_kind(NUMBERS, Reading(windows=True, pairs="both_orders")).encode(
        pair, numbers, FRAME
    )
    assert rows(items) == [
        [(101, 1, 2, 102, *longer, 103), (101, *longer, 102, 1, 2, 103)]
        for longer in ((4, 5, 6), (5, 6, 7), (6, 7, 8))
    ]
    assert [len(item.cut) for item in items] == [1, 0, 0], "the third word of the shorter one"


@settings(max_examples=60)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(5, 30), st.integers(1, 20))
def test_every_token_is_read_and_what_fits_is_as_without_windows(
    first: int, second: int, longest: int, stride: int
) -> None:
    made = Tokenizer(models.WordLevel({str(n): n for n in range(100)}, unk_token="0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    pair = [Text("1", words(*range(first)), words(*range(50, 50 + second)))]
    frame = Frame(101, 102, 103, longest)
    items = task_kind(PAIRS, Reading(windows=True, stride=stride)).encode(pair, made, frame)
    assert all(len(row.ids) <= longest for item in items for row in item.rows)
    read = {token for item in items for row in item.rows for token in row.ids if token < 100}
    half = (longest - 3) // 2
    whole = [*range(first), *range(50, 50 + second)]
    lost = max(0, min(first, second) - half) if first + second > longest - 3 else 0
    assert len(read) == len(whole) - lost
    assert bool(items[0].cut) == bool(lost)
    if first + second <= longest - 3:
        assert items == task_kind(PAIRS).encode(pair, made, frame)


def test_the_answer_for_a_text_is_the_geometric_mean_of_its_windows(numbers: Tokenizer) -> None:
    rng = np.random.default_rng(0)
    texts = [Text("1", words(*range(20))), Text("2", words(1))]
    items = task_kind(LABELS, Reading(windows=True)).encode(texts, numbers, FRAME)
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
    pair = [Text("3", words(*range(20)), words(1, 2))]
    items = task_kind(NUMBERS, Reading(windows=True)).encode(pair, numbers, FRAME)
    scores = rng.normal(size=len(items)).astype(np.float32)
    [said] = task_kind(NUMBERS).decode(Outputs(list(scores), items, pair), {})
    assert said["score"] == pytest.approx(scores.astype(np.float64).mean(), rel=1e-9)
