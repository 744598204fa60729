"""Sentences, pairs and choices become rows that fit, and logits become labels, scores, options."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from rungwise.core.errors import ConfigError, DataError
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import ChoiceExample, TaskInfo, Text
from rungwise.tasks.kinds.items import Frame, Item, longest_first
from rungwise.tasks.kinds.kind import Outputs, Pairs, Reading

WORDS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "11",
]
FRAME = Frame(start=101, between=102, end=103, sequence_length=8)
LABELS = TaskInfo("classification", ("no", "yes"), False, "accuracy")
PAIRS = TaskInfo("classification", ("no", "yes"), True, "accuracy")
NUMBERS = TaskInfo("regression", (), True, "pearson")
OPTIONS = TaskInfo("choice", (), False, "accuracy")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """The id of a word is its number."""
    ids = {word: number for number, word in enumerate(WORDS)}
    made = Tokenizer(models.WordLevel(ids, unk_token="zero"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made


def words(*numbers: int) -> str:
    return " ".join(WORDS[number] for number in numbers)


def rows(item: Item) -> list[tuple[int, ...]]:
    return [row.ids for row in item.rows]


def test_a_sentence_is_framed_and_cut_at_its_end(tokenizer: Tokenizer) -> None:
    examples = [
        Text("a", words(1, 2), target="yes"),
        Text("b", words(*range(1, 9)), target="no"),
        Text("c", ""),
    ]
    items = task_kind(LABELS).encode(examples, tokenizer, FRAME)
    assert [rows(item) for item in items] == [
        [(101, 1, 2, 103)],
        [(101, 1, 2, 3, 4, 5, 6, 103)],
        [(101, 103)],
    ]
    assert [(item.example, item.target) for item in items] == [(0, 1), (1, 0), (2, None)]


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_a_pair_loses_tokens_one_by_one_where_it_is_longer(a: int, b: int, room: int) -> None:
    first, second = list(range(a)), list(range(b))
    expected = (list(first), list(second))
    while sum(map(len, expected)) > room:  # the rule as the paper's code states it
        expected[0 if len(expected[0]) > len(expected[1]) else 1].pop()
    assert longest_first(first, second, room) == expected


def test_both_orders_hold_the_same_tokens(tokenizer: Tokenizer) -> None:
    pair = [Text("a", words(1, 2, 3, 4), words(5, 6, 7, 8), 2.5)]
    [one] = task_kind(NUMBERS).encode(pair, tokenizer, FRAME)
    [item] = task_kind(NUMBERS, Reading(pairs="both_orders")).encode(pair, tokenizer, FRAME)
    assert rows(item) == [(101, 1, 2, 102, 5, 6, 103), (101, 5, 6, 102, 1, 2, 103)]
    assert rows(one) == [(101, 1, 2, 3, 102, 5, 6, 103)]
    assert item.rows[0].segments == (0, 0, 0, 0, 1, 1, 1)
    assert [row.second for row in item.rows] == [4, 4]
    assert item.target == 2.5


@given(
    st.lists(st.integers(1, 9), max_size=14),
    st.lists(st.integers(1, 9), max_size=14),
    st.integers(5, 13),
    st.booleans(),
)
def test_in_both_orders_it_does_not_matter_which_text_is_the_first(
    tokenizer: Tokenizer, a: list[int], b: list[int], length: int, windows: bool
) -> None:
    frame = replace(FRAME, sequence_length=length)
    kind = task_kind(NUMBERS, Reading(pairs="both_orders", windows=windows, stride=2))
    texts = words(*a), words(*b)
    one, other = (
        kind.encode([Text("t", first, second, 2.5)], tokenizer, frame)
        for first, second in (texts, texts[::-1])
    )
    assert [sorted(rows(item)) for item in one] == [sorted(rows(item)) for item in other]


def test_texts_apart_have_a_row_each_and_are_cut_each_for_itself(tokenizer: Tokenizer) -> None:
    pair = [Text("a", words(*range(1, 10)), words(5, 6), 2.5)]
    [item] = task_kind(NUMBERS, Reading(pairs="apart")).encode(pair, tokenizer, FRAME)
    assert rows(item) == [(101, 1, 2, 3, 4, 5, 6, 103), (101, 5, 6, 103)]
    assert {segment for row in item.rows for segment in row.segments} == {0}
    assert item.needs == 9 + 2
    assert [(cut.begin, cut.end) for cut in item.cut] == [(0, 6)]


def test_what_does_not_fit_the_task_is_refused_with_its_place(tokenizer: Tokenizer) -> None:
    def refused(example: Text | ChoiceExample, info: TaskInfo) -> None:
        task_kind(info).encode([example], tokenizer, FRAME)

    with pytest.raises(DataError, match=r"t:3: label 'maybe' is none of the task's \(no, yes\)"):
        refused(Text("t:3", "one", target="maybe"), LABELS)
    with pytest.raises(DataError, match="t:4: expected a pair"):
        refused(Text("t:4", "one", target="no"), PAIRS)
    with pytest.raises(DataError, match="t:5: expected one text, found a pair"):
        refused(Text("t:5", "one", "two", "no"), LABELS)
    with pytest.raises(DataError, match="t:6: expected a number as target, found 'high'"):
        refused(Text("t:6", "one", "two", "high"), NUMBERS)
    with pytest.raises(DataError, match="t:7: option 2 is the answer, but there are 2 options"):
        refused(ChoiceExample("t:7", "one", None, ("two", "three"), 2), OPTIONS)
    with pytest.raises(ConfigError, match="both_orders, which is for pairs"):
        task_kind(LABELS, Reading(pairs="both_orders")).encode(
            [Text("t:8", "one")], tokenizer, FRAME
        )


def test_logits_become_a_label_with_its_share_or_a_number(tokenizer: Tokenizer) -> None:
    items = task_kind(LABELS).encode([Text("a", "one"), Text("b", "two")], tokenizer, FRAME)
    outputs = [np.array([0.0, np.log(3.0)]), np.array([1000.0, -1000.0])]
    predictions = task_kind(LABELS).decode(Outputs(outputs, items, [None, None]), {})
    assert predictions == [
        {"label": "yes", "probability": pytest.approx(0.75)},
        {"label": "no", "probability": 1.0},
    ]
    pair = [Text("a", "one", "two")]
    items = task_kind(NUMBERS).encode(pair, tokenizer, FRAME)
    assert task_kind(NUMBERS).decode(Outputs([np.array(2.5, np.float32)], items, pair), {}) == [
        {"score": 2.5}
    ]
    assert task_kind(NUMBERS).calibrate(Outputs([np.array(2.5, np.float32)], items, pair)) == {}


def test_all_options_of_an_example_see_the_same_end_of_the_context(tokenizer: Tokenizer) -> None:
    example = ChoiceExample("a", words(1, 2, 3), words(4, 5), (words(6), words(7, 8), words(9)), 1)
    [item] = task_kind(OPTIONS).encode([example], tokenizer, FRAME)
    assert rows(item) == [
        (101, 3, 4, 5, 102, 6, 103),
        (101, 3, 4, 5, 102, 7, 8, 103),
        (101, 3, 4, 5, 102, 9, 103),
    ]
    assert (item.target, item.example) == (1, 0)


@pytest.mark.parametrize(
    ("option", "row"),
    [
        ((6, 7, 8, 9), (101, 5, 102, 6, 7, 8, 9, 103)),  # the question's front goes
        ((6, 7, 8, 9, 10, 11), (101, 102, 6, 7, 8, 9, 10, 103)),  # the option's end too
        ((), (101, 1, 2, 3, 4, 5, 102, 103)),
    ],
)
def test_an_option_is_cut_only_if_it_does_not_fit_alone(
    tokenizer: Tokenizer, option: tuple[int, ...], row: tuple[int, ...]
) -> None:
    example = ChoiceExample("a", words(1, 2, 3), words(4, 5), (words(*option),))
    [item] = task_kind(OPTIONS).encode([example], tokenizer, FRAME)
    assert rows(item) == [row]


def test_examples_with_different_numbers_of_options_stay_apart(tokenizer: Tokenizer) -> None:
    examples = [
        ChoiceExample("a", "one", None, ("two", "three")),
        ChoiceExample("b", "four", None, ("five", "six", "seven")),
    ]
    items = task_kind(OPTIONS).encode(examples, tokenizer, FRAME)
    assert rows(items[1])[0] == (101, 4, 102, 5, 103)
    predictions = task_kind(OPTIONS).decode(
        Outputs([np.array([0.0, 1.0]), np.array([2.0, 0.0, 0.0])], items, examples), {}
    )
    assert [prediction["option"] for prediction in predictions] == [1, 0]
    assert [len(prediction["probabilities"]) for prediction in predictions] == [2, 3]
    assert sum(predictions[1]["probabilities"]) == pytest.approx(1)


@settings(max_examples=50)
@given(
    st.lists(st.integers(0, 9), max_size=9), st.integers(4, 30), st.sampled_from(get_args(Pairs))
)
def test_no_row_is_longer_than_its_frame(lengths: list[int], longest: int, way: Pairs) -> None:
    made = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    texts = ["a " * (length * length) for length in lengths]
    frame = Frame(101, 102, 103, longest)
    pairs = [Text("", text, texts[0]) for text in texts]
    choices = [ChoiceExample("", texts[0], text, tuple(texts)) for text in texts]
    for examples, info in ((pairs, NUMBERS), (choices, OPTIONS)):
        items = task_kind(info, Reading(pairs=way if info is NUMBERS else "joined")).encode(
            examples, made, frame
        )
        assert [item.example for item in items] == list(range(len(texts)))
        assert all(len(row.ids) <= longest for item in items for row in item.rows)
