"""Each word of a sentence has one place in one row, and gets its own tag back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from rungwise.core.errors import DataError
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import Tagged, TaskInfo
from rungwise.tasks.kinds.items import Frame
from rungwise.tasks.kinds.kind import Outputs
from rungwise.tasks.kinds.tagging import marks_spans
from rungwise.tokenizer import ByteBpeConfig, WordPieceConfig, train
from rungwise.tokenizer.training import wordpiece

PIECES = ["[UNK]", "play", "##ing", "##s", "a", "b", "c", "中", "文", "."]
INFO = TaskInfo("tagging", ("O", "B-X", "I-X"), False, "f1")
FRAME = Frame(start=101, between=102, end=103, sequence_length=8)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """The id of a piece is its place in PIECES."""
    return wordpiece({piece: number for number, piece in enumerate(PIECES)}, lowercase=True)


def test_the_first_piece_stands_for_its_word(tokenizer: Tokenizer) -> None:
    sentence = Tagged("a", ("Playings", "a", "中文"), ("B-X", "O", "I-X"))
    [item] = task_kind(INFO).encode([sentence], tokenizer, FRAME)
    assert item.rows[0].ids == (101, 1, 2, 3, 4, 7, 8, 103)
    assert (item.places, item.target, item.first) == ((1, 4, 5), (1, 0, 2), 0)


def test_the_last_piece_stands_for_its_word_where_nothing_later_is_seen(
    tokenizer: Tokenizer,
) -> None:
    sentence = Tagged("a", ("playings", "a", "中文"))
    frame = Frame(101, 102, 103, 8, reads_ahead=False)
    [item] = task_kind(INFO).encode([sentence], tokenizer, frame)
    assert (item.places, item.target) == ((3, 4, 6), None)


def test_a_word_without_pieces_is_the_unknown_token(tokenizer: Tokenizer) -> None:
    sentence = Tagged("a", ("a", "\u200b", "", "b"), ("O", "B-X", "I-X", "O"))
    [item] = task_kind(INFO).encode([sentence], tokenizer, FRAME)
    assert item.rows[0].ids == (101, 4, 0, 0, 5, 103)
    assert item.places == (1, 2, 3, 4)


def test_long_sentences_are_cut_between_words_and_too_long_words_inside(
    tokenizer: Tokenizer,
) -> None:
    words = ("a", "b", "playing", "playings", "c", "中" * 9, ".")
    tags = ("O", "O", "B-X", "I-X", "O", "B-X", "O")
    items = task_kind(INFO).encode([Tagged("a", words, tags)], tokenizer, FRAME)
    assert [item.rows[0].ids[1:-1] for item in items] == [
        (4, 5, 1, 2),
        (1, 2, 3, 6),
        (7,) * 6,
        (9,),
    ]
    assert [(item.first, item.places) for item in items] == [
        (0, (1, 2, 3)),
        (3, (1, 4)),
        (5, (1,)),
        (6, (1,)),
    ]
    assert [item.target for item in items] == [(0, 0, 1), (2, 0), (1,), (0,)]


def test_a_sentence_without_words_has_an_item_and_no_tags(tokenizer: Tokenizer) -> None:
    examples = [Tagged("a", ()), Tagged("b", ("a",))]
    items = task_kind(INFO).encode(examples, tokenizer, FRAME)
    predictions = task_kind(INFO).decode(
        Outputs([np.zeros((0, 3)), np.array([[0, 1, 0]])], items, examples), {}
    )
    assert predictions == [{"tags": []}, {"tags": ["B-X"]}]


@settings(max_examples=60)
@given(
    st.lists(st.text(st.sampled_from("abc中文. \u200b\u0301é😀"), max_size=7), max_size=25),
    st.integers(3, 12),
    st.booleans(),
)
def test_every_word_gets_its_tag_back_at_any_length_of_row(
    words: list[str], longest: int, reads_ahead: bool
) -> None:
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


def test_tags_that_do_not_fit_are_refused_with_their_place() -> None:
    made = train(WordPieceConfig(kind="wordpiece", vocab_size=40, min_frequency=1), ["a b c"])
    with pytest.raises(DataError, match="ner:7: 2 words, but 1 tags"):
        task_kind(INFO).encode([Tagged("ner:7", ("a", "b"), ("O",))], made, FRAME)
    with pytest.raises(DataError, match=r"ner:9: tag 'B-Y' is none of the task's \(O, B-X, I-X\)"):
        task_kind(INFO).encode([Tagged("ner:9", ("a",), ("B-Y",))], made, FRAME)


def test_tag_schemes_that_mark_spans_are_told_from_parts_of_speech() -> None:
    assert marks_spans(("B-PER", "I-PER", "O"))
    assert marks_spans(("B-NP", "E-NP", "S-NP", "O"))
    assert not marks_spans(("NOUN", "VERB", "O"))
    assert not marks_spans(("O",))
    assert not marks_spans(("B-", "O"))
