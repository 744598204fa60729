"""Sentences, pairs, choices and tagged words become rows; baselines read no text."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from rungwise.core.errors import DataError
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import Answer, ChoiceExample, Question, Tagged, TaskInfo, Text
from rungwise.tasks.kinds.items import Frame, Item, longest_first
from rungwise.tasks.kinds.kind import Outputs, Pairs, Reading
from rungwise.tasks.kinds.labels import marks_spans
from rungwise.tokenizer.building import train
from rungwise.tokenizer.config import ByteBpeConfig
from rungwise.tokenizer.files import wordpiece
from tests.task_cases import NUMBERED, SPAN, words

FRAME = Frame(start=101, between=102, end=103, sequence_length=8)
LABELS = TaskInfo("classification", ("no", "yes"), False, "accuracy")
PAIRS = TaskInfo("classification", ("no", "yes"), True, "accuracy")
NUMBERS = TaskInfo("regression", (), True, "pearson")
OPTIONS = TaskInfo("choice", (), False, "accuracy")


def rows(item: Item) -> list[tuple[int, ...]]:
    return [row.ids for row in item.rows]


def test_a_sentence_is_framed_and_cut_at_its_end() -> None:
    examples = [
        Text("a", words(1, 2), target="yes"),
        Text("b", words(*range(1, 9)), target="no"),
        Text("c", ""),
    ]
    items = task_kind(LABELS).encode(examples, NUMBERED, FRAME)
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


def test_both_orders_hold_the_same_tokens() -> None:
    pair = [Text("a", words(1, 2, 3, 4), words(5, 6, 7, 8), 2.5)]
    [one] = task_kind(NUMBERS).encode(pair, NUMBERED, FRAME)
    [item] = task_kind(NUMBERS, Reading(pairs="both_orders")).encode(pair, NUMBERED, FRAME)
    assert rows(item) == [(101, 1, 2, 102, 5, 6, 103), (101, 5, 6, 102, 1, 2, 103)]
    assert rows(one) == [(101, 1, 2, 3, 102, 5, 6, 103)]
    assert item.rows[0].segments == (0, 0, 0, 0, 1, 1, 1)
    assert [row.second for row in item.rows] == [4, 4]
    assert item.target == 2.5


@given(
    st.lists(st.integers(1, 9), max_size=14),
    st.lists(st.integers(1, 9), max_size=14),
    st.integers(5, 13),
)
def test_in_both_orders_it_does_not_matter_which_text_is_the_first(
    a: list[int], b: list[int], length: int
) -> None:
    frame = replace(FRAME, sequence_length=length)
    kind = task_kind(NUMBERS, Reading(pairs="both_orders"))
    texts = words(*a), words(*b)
    one, other = (
        kind.encode([Text("t", first, second, 2.5)], NUMBERED, frame)
        for first, second in (texts, texts[::-1])
    )
    assert [sorted(rows(item)) for item in one] == [sorted(rows(item)) for item in other]


def test_texts_apart_have_a_row_each_and_are_cut_each_for_itself() -> None:
    pair = [Text("a", words(*range(1, 10)), words(5, 6), 2.5)]
    [item] = task_kind(NUMBERS, Reading(pairs="apart")).encode(pair, NUMBERED, FRAME)
    assert rows(item) == [(101, 1, 2, 3, 4, 5, 6, 103), (101, 5, 6, 103)]
    assert {segment for row in item.rows for segment in row.segments} == {0}
    assert item.cut


def test_what_does_not_fit_the_task_is_refused_with_its_place() -> None:
    def refused(example: Text | Tagged, info: TaskInfo) -> None:
        task_kind(info).encode([example], NUMBERED, FRAME)

    with pytest.raises(DataError, match=r"t:3: label 'maybe' is none of the task's \(no, yes\)"):
        refused(Text("t:3", "one", target="maybe"), LABELS)
    with pytest.raises(DataError, match="t:4: expected a pair"):
        refused(Text("t:4", "one", target="no"), PAIRS)
    with pytest.raises(DataError, match="t:5: expected one text, found a pair"):
        refused(Text("t:5", "one", "two", "no"), LABELS)
    with pytest.raises(DataError, match=r"t:9: tag 'B-Y' is none of the task's \(O, B-X, I-X\)"):
        refused(Tagged("t:9", ("1",), ("B-Y",)), INFO)


def test_logits_become_a_label_with_its_share_or_a_number() -> None:
    items = task_kind(LABELS).encode([Text("a", "one"), Text("b", "two")], NUMBERED, FRAME)
    outputs = [np.array([0.0, np.log(3.0)]), np.array([1000.0, -1000.0])]
    predictions = task_kind(LABELS).decode(Outputs(outputs, items, [None, None]), {})
    assert predictions == [
        {"label": "yes", "probability": pytest.approx(0.75)},
        {"label": "no", "probability": 1.0},
    ]
    pair = [Text("a", "one", "two")]
    items = task_kind(NUMBERS).encode(pair, NUMBERED, FRAME)
    assert task_kind(NUMBERS).decode(Outputs([np.array(2.5, np.float32)], items, pair), {}) == [
        {"score": 2.5}
    ]
    assert task_kind(NUMBERS).calibrate(Outputs([np.array(2.5, np.float32)], items, pair)) == {}


def test_all_options_of_an_example_see_the_same_end_of_the_context() -> None:
    example = ChoiceExample("a", words(1, 2, 3), words(4, 5), (words(6), words(7, 8), words(9)), 1)
    [item] = task_kind(OPTIONS).encode([example], NUMBERED, FRAME)
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
    option: tuple[int, ...], row: tuple[int, ...]
) -> None:
    example = ChoiceExample("a", words(1, 2, 3), words(4, 5), (words(*option),))
    [item] = task_kind(OPTIONS).encode([example], NUMBERED, FRAME)
    assert rows(item) == [row]


@settings(max_examples=50)
@given(
    st.lists(st.integers(0, 9), max_size=9), st.integers(4, 30), st.sampled_from(get_args(Pairs))
)
def test_no_row_is_longer_than_its_frame(lengths: list[int], longest: int, way: Pairs) -> None:
    texts = ["1 " * (length * length) for length in lengths]
    frame = Frame(101, 102, 103, longest)
    pairs = [Text("", text, texts[0]) for text in texts]
    choices = [ChoiceExample("", texts[0], text, tuple(texts)) for text in texts]
    for examples, info in ((pairs, NUMBERS), (choices, OPTIONS)):
        items = task_kind(info, Reading(pairs=way if info is NUMBERS else "joined")).encode(
            examples, NUMBERED, frame
        )
        assert [item.example for item in items] == list(range(len(texts)))
        assert all(len(row.ids) <= longest for item in items for row in item.rows)


PIECES = ["[UNK]", "play", "##ing", "##s", "a", "b", "c", "中", "文", "."]
INFO = TaskInfo("tagging", ("O", "B-X", "I-X"), False, "f1")


@pytest.fixture(scope="module")
def cased_tokenizer() -> Tokenizer:
    """The id of a piece is its place in PIECES."""
    return wordpiece({piece: number for number, piece in enumerate(PIECES)}, lowercase=True)


def test_the_last_piece_stands_for_its_word_if_none_follows(cased_tokenizer: Tokenizer) -> None:
    sentence = Tagged("a", ("playings", "a", "中文"))
    frame = Frame(101, 102, 103, 8, reads_ahead=False)
    [item] = task_kind(INFO).encode([sentence], cased_tokenizer, frame)
    assert (item.places, item.target) == ((3, 4, 6), None)


def test_a_word_without_pieces_is_the_unknown_token(cased_tokenizer: Tokenizer) -> None:
    sentence = Tagged("a", ("a", "\u200b", "", "b"), ("O", "B-X", "I-X", "O"))
    [item] = task_kind(INFO).encode([sentence], cased_tokenizer, FRAME)
    assert item.rows[0].ids == (101, 4, 0, 0, 5, 103)
    assert item.places == (1, 2, 3, 4)


def test_long_sentences_are_cut_between_words_long_words_not(cased_tokenizer: Tokenizer) -> None:
    words = ("a", "b", "playing", "playings", "c", "中" * 9, ".")
    tags = ("O", "O", "B-X", "I-X", "O", "B-X", "O")
    items = task_kind(INFO).encode([Tagged("a", words, tags)], cased_tokenizer, FRAME)
    assert [item.rows[0].ids[1:-1] for item in items] == [
        (4, 5, 1, 2),
        (1, 2, 3, 6),
        (7,) * 6,
        (9,),
    ]
    assert [item.places for item in items] == [(1, 2, 3), (1, 4), (1,), (1,)]
    assert [item.target for item in items] == [(0, 0, 1), (2, 0), (1,), (0,)]


@settings(max_examples=60)
@given(
    st.lists(st.text(st.sampled_from("abc中文. \u200b\u0301é😀"), max_size=7), max_size=25),
    st.integers(3, 12),
    st.booleans(),
)
def test_every_word_gets_its_tag_back(words: list[str], longest: int, reads_ahead: bool) -> None:
    made = wordpiece({piece: number for number, piece in enumerate(PIECES)}, lowercase=True)
    tags = tuple(INFO.labels[number % 3] for number in range(len(words)))
    examples = [Tagged("a", tuple(words), tags), Tagged("b", ("a", "b"), ("O", "B-X"))]
    items = task_kind(INFO).encode(examples, made, Frame(101, 102, 103, longest, reads_ahead))
    for item in items:
        ids = item.rows[0].ids
        assert len(ids) <= longest
        assert list(item.places) == sorted(set(item.places))
        assert all(0 < place < len(ids) - 1 for place in item.places)
    outputs = [np.eye(3)[list(item.target)].reshape(-1, 3) for item in items]
    predictions = task_kind(INFO).decode(Outputs(outputs, items, examples), {})
    assert [prediction["tags"] for prediction in predictions] == [
        list(e.tags or ()) for e in examples
    ]


def test_words_of_byte_level_bpe_have_the_tokens_they_have_inside_a_text() -> None:
    text = "the lower the slower"
    made = train(ByteBpeConfig(kind="byte_bpe", vocab_size=290, min_frequency=1), [text] * 3)
    inside = made.encode(f" {text}", add_special_tokens=False).ids
    frame = Frame(101, 102, 103, 60)
    [item] = task_kind(INFO).encode([Tagged("a", tuple(text.split()))], made, frame)
    assert list(item.rows[0].ids[1:-1]) == inside
    # Chinese has no blanks: its words are taken as they are.
    [item] = task_kind(INFO).encode([Tagged("a", ("中", "文"))], made, frame)
    assert list(item.rows[0].ids[1:-1]) == made.encode("中文", add_special_tokens=False).ids


def test_tag_schemes_that_mark_spans_are_told_from_parts_of_speech() -> None:
    assert marks_spans(("B-PER", "I-PER", "O"))
    assert marks_spans(("B-NP", "E-NP", "S-NP", "O"))
    assert not marks_spans(("NOUN", "VERB", "O"))
    assert not marks_spans(("O",))
    assert not marks_spans(("B-", "O"))


def test_the_majority_is_that_of_the_training_split() -> None:
    train = [Text("a", "a", target=label) for label in ("yes", "no", "yes")]
    test = [Text("a", "a", target=label) for label in ("no", "no", "yes", "no")]
    scores = task_kind(LABELS).baselines(train, test)
    assert scores["majority"] == pytest.approx(
        {"accuracy": 1 / 4, "macro_f1": 0.4 / 2, "matthews": 0, "f1": 0.4}
    )


def test_of_several_labels_the_best_that_needs_no_text_is_found() -> None:
    info = TaskInfo("multilabel", ("a", "b", "c"), False, "micro_f1")
    train = [Text("a", "a", target=t) for t in ((), ("a", "b"), ("a", "b"), ("a",), (), ("c",), ())]
    test = [Text("a", "a", target=t) for t in ((), ("a",), ("a", "b"))]
    # Of seven texts three have a, two b: F1 of a is 6/13, of a and b 10/20, of all 12/27.
    assert task_kind(info).baselines(train, test) == {
        "majority": {"micro_f1": 0, "macro_f1": 0, "exact_match": pytest.approx(1 / 3)},
        "most_frequent": pytest.approx(
            {"micro_f1": 6 / 9, "macro_f1": (4 / 5 + 2 / 4) / 3, "exact_match": 1 / 3}
        ),
    }


def test_the_mean_score_correlates_with_nothing() -> None:
    train = [Text("a", "a", "b", score) for score in (1.0, 3.0)]
    test = [Text("a", "a", "b", score) for score in (0.0, 4.0)]
    assert task_kind(NUMBERS).baselines(train, test) == {
        "mean": {"pearson": 0, "spearman": 0, "mean_squared_error": 4}
    }


def test_each_word_has_its_commonest_tag() -> None:
    info = TaskInfo("tagging", ("O", "B-X"), False, "f1")
    train = [
        Tagged("a", ("a", "b", "b", "b"), ("O", "B-X", "B-X", "O")),
        Tagged("b", ("a",), ("O",)),
    ]
    test = [Tagged("c", ("a", "b", "new"), ("O", "B-X", "O"))]
    scores = task_kind(info).baselines(train, test)
    assert scores["word_majority"] == {"accuracy": 1, "precision": 1, "recall": 1, "f1": 1}
    assert scores["majority"] == pytest.approx(
        {"accuracy": 2 / 3, "precision": 0, "recall": 0, "f1": 0}
    )


def test_answers_are_guessed_from_where_contexts_begin() -> None:
    def asked(context: str, *answers: str) -> Question:
        return Question("a", "a", "?", context, tuple(Answer(text, 0) for text in answers))

    train = [asked("a", "two words"), asked("a", "here two"), asked("a", "one more two three")]
    test = [
        asked("Big cats sleep. They do.", "Big cats sleep"),
        asked(" Red 1.5 it is?", "Red 1.5"),
    ]
    scores = task_kind(SPAN).baselines(train, test)
    assert scores["first_sentence"]["exact_match"] == 1 / 2
    assert scores["no_answer"] == {"exact_match": 0, "f1": 0}
    chinese = [asked("猫在睡觉。狗不睡。", "猫在睡觉")]
    assert task_kind(SPAN).baselines(train, chinese)["first_sentence"]["exact_match"] == 1
    with_none = task_kind(SPAN).baselines(train, [*test, asked("a"), asked("")])
    assert with_none["no_answer"]["exact_match"] == 1 / 2


def test_options_are_guessed_by_place_and_by_length() -> None:
    train = [ChoiceExample("a", "a", None, ("b", "c"), target) for target in (1, 1, 0)]
    test = [
        ChoiceExample("a", "a", None, ("long", "b"), 0),
        ChoiceExample("a", "a", None, ("b", "c", "long", "d"), 1),
    ]
    assert task_kind(OPTIONS).baselines(train, test) == {
        "majority": {"accuracy": 1 / 2},
        "longest": {"accuracy": 1 / 2},
    }
