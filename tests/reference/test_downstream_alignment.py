"""Rows of real sentences and questions beside those of transformers; real answers."""

import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import Question, Tagged, TaskInfo
from rungwise.tasks.kinds.items import Frame
from rungwise.tasks.kinds.kind import Outputs, Reading
from rungwise.tasks.scoring import metrics
from rungwise.tokenizer import special_ids
from tests.task_cases import SPAN, perfect_logits, questions, vocabulary

VOCABULARIES = ("bert-base-uncased", "bert-base-cased")
ENGLISH, CHINESE = "tasks/en/SQuAD-v1.1/xquad.en.json", "tasks/zh/SQuAD-v1.1/xquad.zh.json"
SECOND, CMRC = "tasks/en/SQuAD-v2.0/dev-v2.0.json", "tasks/zh/CMRC2018/cmrc2018_dev.json.gz"
LONGEST = 400  # longer than any answer


def frame_of(data: Path, name: str, length: int) -> Frame:
    special = special_ids(vocabulary(data, name))
    # GPT-2 has no such marks; here any ids will do.
    start, end = special.cls or 0, special.sep or 1
    return Frame(start, end, end, length)


def theirs(data: Path, name: str) -> Any:
    path = str(data / "vocab" / name / "vocab.txt")
    library: Any = transformers  # which makes the names of classes when they are asked for
    return library.BertTokenizerFast(path, do_lower_case=name.endswith("-uncased"))


def conll(path: Path) -> Iterator[tuple[str, ...]]:
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        words = tuple(line.split()[0] for line in block.splitlines() if line.strip())
        if words and words[0] != "-DOCSTART-":
            yield words


@pytest.mark.parametrize("name", VOCABULARIES)
def test_words_are_aligned_as_transformers_aligns_them(name: str, real_data: Path) -> None:
    sentences = list(conll(real_data / "tasks/en/CoNLL-2003/eng.testb"))[:600]
    info = TaskInfo("tagging", ("O",), False, "accuracy")
    examples = [Tagged("a", words) for words in sentences]
    items = task_kind(info).encode(
        examples, vocabulary(real_data, name), frame_of(real_data, name, 512)
    )
    expected = theirs(real_data, name)([list(s) for s in sentences], is_split_into_words=True)
    assert len(items) == len(sentences)
    for number, item in enumerate(items):
        assert list(item.rows[0].ids) == expected["input_ids"][number]
        assert list(item.rows[0].segments) == expected["token_type_ids"][number]
        words = expected.word_ids(number)
        assert item.places == tuple(words.index(word) for word in range(len(sentences[number])))


@pytest.mark.parametrize("name", VOCABULARIES)
def test_windows_are_those_of_transformers(name: str, real_data: Path) -> None:
    length, stride = 160, 40
    examples = questions(real_data / ENGLISH)[::6]
    frame = frame_of(real_data, name, length)
    items = task_kind(SPAN, Reading(stride=stride)).encode(
        examples, vocabulary(real_data, name), frame
    )
    tokenizer = theirs(real_data, name)
    several = 0
    for number, example in enumerate(examples):
        mine = [item for item in items if item.example == number]
        asked = mine[0].rows[0].second - 2
        expected = tokenizer(
            example.question,
            example.context,
            truncation="only_second",
            max_length=length,
            stride=length - 3 - asked - stride,  # theirs is what two windows share
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        assert [list(item.rows[0].ids) for item in mine] == expected["input_ids"]
        assert [list(item.rows[0].segments) for item in mine] == expected["token_type_ids"]
        several += len(mine) > 1
        for item, offsets in zip(mine, expected["offset_mapping"], strict=True):
            second = item.rows[0].second
            for (start, end), place in zip(offsets[second:-1], item.places, strict=True):
                # Ours may be longer by accents that stand after their letter.
                after = example.context[end : place[1]]
                assert place == (start, end + len(after))
                assert all(unicodedata.category(mark)[0] == "M" for mark in after)
    assert several > 30


def inside_a_token(name: str, examples: list[Question], data: Path, length: int) -> list[str]:
    """The answers that a perfect model does not give back exactly; its scores are checked."""
    tokenizer = vocabulary(data, name)
    items = task_kind(SPAN, Reading(stride=128)).encode(
        examples, tokenizer, frame_of(data, name, length)
    )
    outputs = perfect_logits(items)
    calibration = task_kind(SPAN, Reading(max_answer_tokens=LONGEST)).calibrate(
        Outputs(outputs, items, examples)
    )
    predictions = task_kind(SPAN, Reading(max_answer_tokens=LONGEST)).decode(
        Outputs(outputs, items, examples), calibration
    )
    other = []
    for prediction, example in zip(predictions, examples, strict=True):
        text = prediction["text"]
        assert text == example.context[prediction["start"] : prediction["end"]]
        wanted = example.answers[0].text if example.answers else ""
        if text != wanted:
            # Only by what is left of a token on either side.
            assert wanted in text
            other.append(wanted)
        else:
            assert metrics.score_answer(text, example) == (1, 1) or not metrics.normalise(text)
    scores = task_kind(SPAN).score(predictions, examples)
    assert scores["f1"] > 0.999
    assert scores["exact_match"] >= 1 - len(other) / len(examples)
    return other


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("file", "name", "count", "inside"),
    [
        (ENGLISH, "bert-base-uncased", 778, 1),  # 7,000,000 square kilometres (2,70
        (CHINESE, "bert-base-chinese", 778, 0),
        slow(SECOND, "bert-base-uncased", 3708, 1),
        slow(SECOND, "bert-base-cased", 3708, 1),
        slow(SECOND, "gpt2", 3708, 17),
        slow(ENGLISH, "gpt2", 778, 10),
        slow(CHINESE, "gpt2", 778, 1),
        slow(CHINESE, "bert-base-uncased", 778, 0),
        slow(CMRC, "bert-base-chinese", 3043, 1),
    ],
)
def test_answers_come_back(file: str, name: str, count: int, inside: int, real_data: Path) -> None:
    """But for those whose boundary is in the middle of a token."""
    examples = questions(real_data / file)
    assert len(examples) == count
    assert len(inside_a_token(name, examples, real_data, 384)) == inside


@pytest.mark.parametrize(
    ("file", "empty"), [(ENGLISH, 0), (CHINESE, 0), slow(SECOND, 1), slow(CMRC, 0)]
)
def test_every_marked_answer_scores_in_full(file: str, empty: int, real_data: Path) -> None:
    nothing_left = set()  # the official script leaves these out
    for example in questions(real_data / file):
        for answer in example.answers or ():
            if not metrics.normalise(answer.text):
                nothing_left.add(example.id)
            else:
                scored = metrics.score_answer(answer.text, example)
                assert scored == (1, 1), (example.where, answer.text)
    assert len(nothing_left) == empty


def test_the_language_of_a_context_is_told_by_its_characters(real_data: Path) -> None:
    for file, chinese in ((ENGLISH, False), (SECOND, False), (CHINESE, True), (CMRC, True)):
        contexts = {example.context for example in questions(real_data / file)}
        assert all(metrics.is_chinese(context) == chinese for context in contexts)
