"""Answers are exact slices of the original text, whatever the tokenizer, text or stride."""

import unicodedata
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.answers import NO_ANSWER
from rungwise.tasks.kinds.examples import Answer, Question
from rungwise.tasks.kinds.items import Frame, Item, Row, locate, windows
from rungwise.tasks.kinds.kind import Outputs, Reading
from rungwise.tasks.scoring import metrics
from rungwise.tokenizer.building import train
from rungwise.tokenizer.config import ByteBpeConfig, CharacterConfig, WordConfig, WordPieceConfig
from tests import toy_tokenizers
from tests.conftest import made_up_sentences
from tests.task_cases import SPAN, perfect_logits

# Letters, composed and combined accents, han characters, a ligature, blanks of many kinds, emoji
# joined to one, characters of four bytes, marks that are not seen, and wide forms.
ODD = (
    "aabcé\u0301\u0327İßﬁ中文र्हि'.,-(  \u00a0\u3000\n\t"
    "😀👩\u200d👧𐍈\u200b\ufeff\u200f\u00ad\x07\uff21\uff11"
)
KINDS = ["wordpiece", "wordpiece_cased", "byte_bpe", "unigram", "character", "word"]


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    text = [*made_up_sentences(1, 40), "aé bc İß 中文 \uff21\uff11 ﬁ", *"abc"]
    return {
        "wordpiece": train(WordPieceConfig(vocab_size=120, min_frequency=1), text),
        "wordpiece_cased": train(
            WordPieceConfig(vocab_size=120, min_frequency=1, lowercase=False), text
        ),
        "byte_bpe": train(ByteBpeConfig(vocab_size=300, min_frequency=1), text),
        "unigram": toy_tokenizers.unigram(text, 70),
        "character": train(CharacterConfig(vocab_size=60), text),
        "word": train(WordConfig(vocab_size=60, min_frequency=1), text),
    }


def frame(length: int) -> Frame:
    return Frame(start=101, between=102, end=103, sequence_length=length)


def asked(context: str, *answers: Answer, question: str = "a b c") -> Question:
    return Question("a", "a", question, context, answers)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(data=st.data())
def test_an_answer_between_tokens_comes_back_exactly(
    kind: str, tokenizers: dict[str, Tokenizer], data: st.DataObject
) -> None:
    context = data.draw(st.text(st.sampled_from(ODD), min_size=1, max_size=60))
    tokenizer = tokenizers[kind]
    [text] = locate(tokenizer, [context])
    held = [n for n in range(len(text.ids)) if text.starts[n] < text.ends[n]]
    assume(held)
    first, last = sorted(data.draw(st.tuples(*[st.sampled_from(held)] * 2)))
    start, end = text.starts[first], text.ends[last]
    example = asked(context, Answer(context[start:end], start))
    length, stride = data.draw(st.integers(6, 40)), data.draw(st.integers(1, 50))
    items = task_kind(SPAN, Reading(stride=stride)).encode([example], tokenizer, frame(length))
    assert all(len(item.rows[0].ids) <= length for item in items)
    if all(item.target == NO_ANSWER for item in items):
        # Only what is longer than half a window may stand whole in none.
        covered = text.covering(start, end)
        assert covered is not None
        assert covered[1] - covered[0] + 1 > (length - 6) // 2
        return
    [prediction] = task_kind(SPAN, Reading(max_answer_tokens=99)).decode(
        Outputs(perfect_logits(items), items, [example]), {}
    )
    assert (
        prediction["text"] == context[start:end] == context[prediction["start"] : prediction["end"]]
    )
    assert (prediction["start"], prediction["end"]) == (start, end)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(context=st.text(st.sampled_from(ODD), max_size=60))
def test_tokens_hold_all_text(kind: str, tokenizers: dict[str, Tokenizer], context: str) -> None:
    [text] = locate(tokenizers[kind], [context])
    assert text.starts == sorted(text.starts)
    assert text.ends == sorted(text.ends)
    held: set[int] = set()
    for start, end in zip(text.starts, text.ends, strict=True):
        assert start <= end
        assert context[start:end] == context[start:end].strip()
        held.update(range(start, end))
    for place, character in enumerate(context):
        kind_of = unicodedata.category(character)
        # A mark without a letter before it, and what cannot be seen, may belong to no token.
        if kind_of[0] not in "MCZ" or (kind_of[0] == "M" and place - 1 in held):
            assert place in held
    places = sorted(set(zip(text.starts, text.ends, strict=True)))
    assert all(before[1] <= after[0] for before, after in pairwise(places))


def test_windows_step_by_the_stride_and_end_with_the_text() -> None:
    # As run_squad.py does at its own sizes: 300 of 700 tokens, 128 further each.
    assert windows(700, 300, 128) == [(0, 300), (128, 428), (256, 556), (384, 684), (512, 700)]
    assert windows(300, 300, 128) == [(0, 300)]
    assert windows(0, 300, 128) == [(0, 0)]
    assert windows(5, 2, 64) == [(0, 2), (1, 3), (2, 4), (3, 5)]  # half a window at most
    assert windows(3, 1, 64) == [(0, 1), (1, 2), (2, 3)]


def test_the_target_is_the_answer_in_whole_windows(tokenizers: dict[str, Tokenizer]) -> None:
    context = "abcabcabcabc"
    example = asked(context, Answer("abc", 3), Answer("a", 0), question="ab")
    items = task_kind(SPAN, Reading(stride=2)).encode([example], tokenizers["character"], frame(13))
    assert [item.places[0][0] for item in items] == [0, 2, 4]
    assert [item.rows[0].second for item in items] == [4, 4, 4]
    assert [item.target for item in items] == [(7, 9), (5, 7), NO_ANSWER]
    assert items[1].rows[0].ids[5:8] == tuple(
        tokenizers["character"].encode("abc", add_special_tokens=False).ids
    )
    [item] = task_kind(SPAN).encode([asked(context)], tokenizers["character"], frame(40))
    assert item.target == NO_ANSWER
    [item] = task_kind(SPAN).encode(
        [replace(example, answers=None)], tokenizers["character"], frame(40)
    )
    assert item.target is None


def test_a_question_takes_at_most_half_of_the_row(tokenizers: dict[str, Tokenizer]) -> None:
    example = asked("abc", question="a" * 80)
    for length, kept in ((43, 20), (80, 38), (200, 64)):
        items = task_kind(SPAN).encode([example], tokenizers["character"], frame(length))
        assert items[0].rows[0].second == kept + 2


@pytest.mark.parametrize("context", ["", " \n\u3000", "\u200b"])
def test_a_blank_context_has_no_answer(context: str, tokenizers: dict[str, Tokenizer]) -> None:
    items = task_kind(SPAN).encode([asked(context)], tokenizers["wordpiece"], frame(20))
    [item] = items
    assert (item.places, item.target) == ((), NO_ANSWER)
    logits = [np.ones((len(item.rows[0].ids), 2))]
    [prediction] = task_kind(SPAN).decode(Outputs(logits, items, [asked(context)]), {})
    assert (prediction["text"], prediction["start"], prediction["end"]) == ("", 0, 0)


def window(example: int, places: list[tuple[int, int]]) -> Item:
    """An item whose row is start, between, the tokens at `places`, end."""
    row = Row(tuple(range(len(places) + 3)), (0,) * (len(places) + 3), 2)
    return Item((row,), example, NO_ANSWER, tuple(places))


def by_search(
    outputs: list[NDArray[Any]], items: list[Item], longest: int
) -> tuple[float, tuple[int, int], float]:
    spans = []
    for output, item in zip(outputs, items, strict=True):
        for first, (start, begin) in enumerate(item.places):
            for last in range(first, min(first + longest, len(item.places))):
                if begin > start and item.places[last][1] > item.places[last][0]:
                    score = output[2 + first, 0] + output[2 + last, 1]
                    spans.append((score, (start, item.places[last][1])))
    null = min(output[0].sum() for output in outputs)
    score, places = max(spans)
    return score, places, null - score


def test_the_best_span_over_all_windows_is_the_one_a_search_finds() -> None:
    rng = np.random.default_rng(0)
    context = "abcdefghijklmnopqrst"
    for _ in range(100):
        items = []
        for begin in (0, 5, 10):
            places = [(n, n + int(rng.random() < 0.8)) for n in range(begin, begin + 10)]
            items.append(window(0, places))
        outputs = [rng.normal(size=(13, 2)) for _ in items]
        longest = int(rng.integers(1, 12))
        _, (start, end), difference = by_search(outputs, items, longest)
        [prediction] = task_kind(SPAN, Reading(max_answer_tokens=longest)).decode(
            Outputs(outputs, items, [asked(context)]), {}
        )
        assert (prediction["start"], prediction["end"]) == (start, end)
        assert prediction["text"] == context[start:end]
        assert prediction["no_answer_score"] == pytest.approx(difference)


def test_no_answer_is_validationabove_the_threshold_only() -> None:
    items = [window(0, [(0, 1), (1, 2)]), window(0, [(1, 2)])]
    outputs = [np.array([[3, 4], [9, 9], [1, 0], [0, 1], [9, 9.0]]), np.full((4, 2), 4.0)]
    outputs[1][2] = 0
    examples = [asked("ab")]
    for threshold, text in ((4.9, ""), (5.0, "ab")):  # (3 + 4) - (1 + 1)
        [prediction] = task_kind(SPAN).decode(
            Outputs(outputs, items, examples), {"null_threshold": threshold}
        )
        assert prediction["text"] == text
        assert prediction["no_answer_score"] == 5


@pytest.mark.parametrize("longest", [30, 1])
@pytest.mark.parametrize("metric", ["f1", "exact_match"])
def test_the_calibrated_threshold_is_the_best_there_is(metric: str, longest: int) -> None:
    """Also of answers of one token: a longer span that scores higher could not be given."""
    rng = np.random.default_rng(1)
    kind = task_kind(replace(SPAN, metric=metric), Reading(max_answer_tokens=longest))
    context = "red green blue"
    places = [(0, 3), (4, 9), (10, 14)]
    for trial in range(15):
        examples = [
            asked(context, *([Answer("green blue", 4)] if rng.random() < 0.6 else []))
            for _ in range(12)
        ]
        items = [window(number, places) for number in range(12)]
        # Few different logits, so that scores tie.
        outputs = [rng.integers(0, 3, (6, 2)).astype(float) for _ in items]
        calibration = kind.calibrate(Outputs(outputs, items, examples))
        if all(example.answers for example in examples):
            assert calibration == {}
            continue

        scores = []
        for threshold in (calibration["null_threshold"], *np.arange(-4.5, 5)):
            tried = {"null_threshold": threshold}
            predictions = kind.decode(Outputs(outputs, items, examples), tried)
            scores.append(kind.score(predictions, examples)[metric])
        assert scores[0] == pytest.approx(max(scores)), trial


def test_answers_of_the_same_characters_score_as_the_official_rules_say() -> None:
    # By hand, from the rules that the official scripts apply.
    def of(predicted: str, *answers: str, context: str = "some words") -> tuple[float, float]:
        return metrics.score_answer(
            predicted, asked(context, *(Answer(text, 0) for text in answers))
        )

    assert of("The  cat's, tail!", "a cats tail") == (1, 1)
    assert of("black cat", "the cat") == (0, pytest.approx(2 / 3))
    assert of("cat cat dog", "cat dog dog") == (0, pytest.approx(2 / 3))
    assert of("cat", "dog", "cat") == (1, 1)
    assert of("", "cat") == of("dog", "cat") == (0, 0)
    assert of("") == (1, 1)
    assert of("cat") == (0, 0)
    assert of("the", "The") == (1, 1)  # nothing is left of either
    assert of("İzmir", "i\u0307zmir") == (1, 1)
    # U+2013 is no ASCII punctuation, so it stays.
    assert of("1939\u20131945", "19391945") == (0, 0)


def test_chinese_answers_score_by_longest_common_stretch_of_characters() -> None:
    def of(predicted: str, *answers: str) -> tuple[float, float]:
        context = "《战国无双3》是由光荣和ω-force开发的。"
        return metrics.score_answer(
            predicted, asked(context, *(Answer(text, 0) for text in answers))
        )

    assert of("《光荣》", "光荣。") == (1, 1)
    # 光荣和 is 3 of 4 and 3 of 3; ω-force is one word without its sign.
    assert of("光荣和", "光荣和ω-force") == (0, pytest.approx(6 / 7))
    # In common are 甲乙丙 as a bag, but only 乙丙 in a row.
    assert of("甲丁乙丙", "甲乙丙") == (0, pytest.approx(4 / 7))
    assert of("", "光荣") == (0, 0)
    assert of("") == (1, 1)
    assert not metrics.is_chinese("Kublai Khan (忽必烈) was a grandson")
