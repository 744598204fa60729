"""What `sequence_length` cuts off, counted by hand; windows over what is longer."""

import random
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import gmean
from tokenizers import Tokenizer, models, pre_tokenizers

from rungwise.tasks.data import cutting
from rungwise.tasks.data.cutting import CutShare, cut_share
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import (
    Answer,
    ChoiceExample,
    Example,
    Kind,
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


share = partial(CutShare, windowed_examples=0)


def share_of(
    name: str, examples: list[Example], tokenizer: Tokenizer, length: int, windows: bool = False
) -> CutShare:
    frame = Frame(101, 102, 103, length)
    items = task_kind(INFO[name], Reading(stride=4, windows=windows)).encode(
        examples, tokenizer, frame
    )
    return cut_share(examples, items, tokenizer, INFO[name].kind)


def test_words_that_are_lost_or_torn_are_counted(letters: Tokenizer) -> None:
    # Five tokens are read of `aa bbb cc`: two words are whole. A Han character is a word.
    texts = ("aa bbb cc", "aa", "aa bbbb", "猫狗猫狗猫狗")
    examples: list[Example] = [Text(text, text) for text in texts]
    assert share_of("one", examples, letters, 7) == share(
        examples=4, cut_examples=3, words=3 + 1 + 2 + 6, cut_words=1 + 1 + 1, length=9
    )
    assert share_of("one", examples, letters, 9).cut_examples == 0
    read = share_of("one", examples, letters, 7, windows=True)
    assert (read.cut_examples, read.cut_words, read.windowed_examples) == (0, 0, 3)


def test_of_a_pair_in_windows_only_the_shorter_text_is_cut(letters: Tokenizer) -> None:
    # Room for nine: four tokens of the shorter text beside windows over the longer one.
    pairs: list[Example] = [Text("1", "aa bb cc", "dd " * 9), Text("2", "dd " * 9, "aa bb")]
    assert share_of("pair", pairs, letters, 12, windows=True) == CutShare(
        examples=2, cut_examples=1, windowed_examples=2, words=23, cut_words=1, length=15
    )


def test_a_choice_loses_the_front_of_its_context_then_its_question(letters: Tokenizer) -> None:
    example = ChoiceExample("1", "aa bb cc", "dd", ("ee", "ff ff"))
    assert share_of("choice", [example], letters, 12) == CutShare(
        examples=1, cut_examples=1, windowed_examples=0, words=7, cut_words=2, length=15
    )  # room for nine: three of the context's six tokens go, which tears its second word
    assert share_of("choice", [example], letters, 8).cut_words == 4


def test_windows_and_rows_go_on_and_only_questions_and_words_are_cut(letters: Tokenizer) -> None:
    asked = Question("1", "1", "aa bb", "cc " * 40, (Answer("cc", 0),))
    assert share_of("span", [asked], letters, 12).cut_examples == 0
    assert share_of("span", [asked], letters, 10) == CutShare(
        examples=1, cut_examples=1, windowed_examples=1, words=42, cut_words=1, length=11
    )
    tagged = Tagged("1", ("aaaa",) * 30, ("O",) * 30)
    assert share_of("tagging", [tagged], letters, 8).cut_examples == 0
    assert share_of("tagging", [tagged], letters, 5).cut_words == 30


@pytest.mark.parametrize(("name", "windows"), [*((name, False) for name in INFO), ("pair", True)])
def test_the_length_named_is_the_smallest_that_cuts_at_most_5_percent(
    name: str, windows: bool, letters: Tokenizer
) -> None:
    rng = random.Random(0)

    def text(most: int) -> str:
        return " ".join("abcdefgh"[: rng.randint(1, 8)] for _ in range(rng.randint(1, most)))

    def example(number: int) -> Example:
        kind: Kind = INFO[name].kind
        match kind:
            case "tagging":
                words = tuple(text(9).split())
                return Tagged(str(number), words, ("O",) * len(words))
            case "span":
                return Question(str(number), str(number), text(4), text(30), ())
            case "choice":
                return ChoiceExample(str(number), text(20), text(5), (text(5), text(5)))
            case "generation":
                return Text(str(number), text(9), target=text(4))
            case _:
                return Text(str(number), text(30), text(30) if name == "pair" else None)

    examples = [example(number) for number in range(120)]
    length = share_of(name, examples, letters, 9, windows).length
    assert length is not None
    assert share_of(name, examples, letters, length, windows).of_examples <= 0.05
    assert share_of(name, examples, letters, length - 1, windows).of_examples > 0.05


def test_no_length_is_named_where_another_limit_cuts(letters: Tokenizer) -> None:
    # A target is written up to 30 tokens, a question read up to 64.
    written: list[Example] = [
        Text("1", "aa bb", target="cc " * 20),
        Text("2", "aa", target="cc dd"),
    ]
    assert share_of("generation", written, letters, 100) == CutShare(
        examples=2, cut_examples=1, windowed_examples=0, words=25, cut_words=5, length=None
    )
    asked = Question("1", "1", "aa " * 33, "cc", (Answer("cc", 0),))
    found = share_of("span", [asked], letters, 300)
    assert (found.cut_examples, found.cut_words, found.length) == (1, 1, None)


def test_a_note_is_made_of_more_than_5_percent() -> None:
    little = share(examples=100, cut_examples=5, words=1000, cut_words=9, length=60)
    much = share(examples=200, cut_examples=159, words=1000, cut_words=412, length=143)
    cut = cutting.note(64, {"train": much, "test": little}) or ""
    assert cut.startswith("finetune.sequence_length 64 cuts 79.5% of the train examples (41.2% of")
    assert "143 would cut at most 5%" in cut
    assert cutting.note(64, {"test": little}) is None
    # Long rows do not help where another key limits a text.
    limited = much.model_copy(update={"length": None})
    assert "no finetune.sequence_length" in (cutting.note(64, {"train": limited}) or "")
    windowed = little.model_copy(update={"cut_examples": 0, "windowed_examples": 25})
    note = cutting.note(64, {"train": little, "test": windowed}) or ""
    assert note.startswith("25.0% of the test examples do not fit into finetune.sequence_length 64")


LABELS = TaskInfo("classification", ("a", "b", "c"), False, "accuracy")
PAIRS = TaskInfo("classification", ("a", "b", "c"), True, "accuracy")
NUMBERS = TaskInfo("regression", (), True, "pearson")
FRAME = Frame(start=101, between=102, end=103, sequence_length=8)


def rows(items: list[Item]) -> list[list[tuple[int, ...]]]:
    return [[row.ids for row in item.rows] for item in items]


def test_windows_of_a_text_and_of_the_longer_one_of_a_pair() -> None:
    texts = [Text("1", words(*range(1, 9)), target="b"), Text("2", words(1, 2), target="a")]
    items = task_kind(LABELS, Reading(windows=True, stride=2)).encode(texts, NUMBERED, FRAME)
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
        pair, NUMBERED, FRAME
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
    pair = [Text("1", words(*range(first)), words(*range(50, 50 + second)))]
    frame = Frame(101, 102, 103, longest)
    items = task_kind(PAIRS, Reading(windows=True, stride=stride)).encode(pair, NUMBERED, frame)
    assert all(len(row.ids) <= longest for item in items for row in item.rows)
    read = {token for item in items for row in item.rows for token in row.ids if token < 100}
    half = (longest - 3) // 2
    whole = [*range(first), *range(50, 50 + second)]
    lost = max(0, min(first, second) - half) if first + second > longest - 3 else 0
    assert len(read) == len(whole) - lost
    assert bool(items[0].cut) == bool(lost)
    if first + second <= longest - 3:
        assert items == task_kind(PAIRS).encode(pair, NUMBERED, frame)


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
    pair = [Text("3", words(*range(20)), words(1, 2))]
    items = task_kind(NUMBERS, Reading(windows=True)).encode(pair, NUMBERED, FRAME)
    scores = rng.normal(size=len(items)).astype(np.float32)
    [said] = task_kind(NUMBERS).decode(Outputs(list(scores), items, pair), {})
    assert said["score"] == pytest.approx(scores.astype(np.float64).mean(), rel=1e-9)
