"""Spans: the same words before and after clean-up and segmentation, or none."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rungwise.corpus.building.range_builder import RangeBuilder
from rungwise.corpus.cleaning.characters import clean
from rungwise.corpus.cleaning.spans import LocatedSpans, locate_spans
from rungwise.corpus.config import Rules
from rungwise.corpus.document import RawDocument
from rungwise.corpus.readers.text import split_paragraphs


def sentences_of(text: str) -> list[str]:
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    draft = RawDocument("a", "b", split_paragraphs(plain, "paragraph"))
    tables = RangeBuilder(Rules(minimum_characters=1), "x").tables([draft])
    return [sentence for table in tables for sentence in table["sentences"][0].as_py()]


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("A big dog.", ["big"], [["big"]]),
        ("A  big\tdog.  It ran.", ["big\tdog", "ran"], [["big dog"], ["ran"]]),
        ("One.\r\n\r\n  Two three.", ["One", "Two three"], [["One"], ["Two three"]]),
        ("\ufeffNa\u00efve\u200b wo\u00adrd.", ["wo\u00adrd"], [["word"]]),
        ("Cafe\u0301 Rome.", ["Cafe\u0301", "Rome"], [["Caf\u00e9", "Rome"]]),
        ("\u4eca\u5929\u597d\u3002\u4ed6\u8bf4\u3002", ["\u4ed6\u8bf4"], [[], ["\u4ed6\u8bf4"]]),
        (
            "Private \ue000\U000f0000 use.",
            ["\ue000\U000f0000", "use"],
            [["\ue000\U000f0000", "use"]],
        ),
    ],
)
def test_spans_hold_the_same_words(text: str, words: list[str], expected: list[list[str]]) -> None:
    spans = [(text.index(word), text.index(word) + len(word)) for word in words]
    sentences = sentences_of(text)
    found = locate_spans(text, spans, sentences)
    read = [
        [sentence[a:b] for a, b in zip(places[::2], places[1::2], strict=True)]
        for sentence, places in zip(sentences, found.spans, strict=True)
    ]
    assert read == expected
    assert found.dropped == 0


@pytest.mark.parametrize(
    ("spans", "kept"),
    [
        ([(0, 3), (2, 5)], [[0, 3], []]),  # overlap: the first stays
        ([(2, 5), (0, 3)], [[0, 3], []]),
        ([(0, 3), (0, 3)], [[0, 3], []]),
        ([(0, 3), (3, 4)], [[0, 3, 3, 4], []]),
        ([(2, 6)], []),  # crosses the end of a sentence
        ([(-1, 2), (3, 99), (2, 2), (3, 1)], []),  # outside, empty, backwards
        ([(4, 5)], []),  # a blank
        ([(4, 7)], [[], [0, 2]]),  # blanks at the ends are not part of it
    ],
)
def test_what_cannot_be_placed_is_dropped_and_counted(
    spans: list[tuple[int, int]], kept: list[list[int]]
) -> None:
    found = locate_spans("One. Two.", spans, ["One.", "Two."])
    assert found.spans == kept
    assert found.dropped == len(spans) - sum(map(len, kept)) // 2


def test_a_document_without_text_has_no_spans() -> None:
    assert locate_spans(" ", [(0, 1)], []) == LocatedSpans([], 1)


PIECES = st.sampled_from(
    [*"ab.\n\r \t\u00a0\u0301\u200b\u200d\u4f60\u3002\ue000\ufeff", "\u1100", "\u1161", "A", "e. "]
)


@given(st.lists(PIECES, max_size=30).map("".join), st.data())
@example("aa\u0301a", None)
def test_a_span_that_is_kept_reads_as_the_text_it_was_of(text: str, data: st.DataObject) -> None:
    if data is None:
        spans = [(1, 2), (3, 4)]
    else:
        place = st.integers(-1, len(text) + 1)
        spans = data.draw(st.lists(st.tuples(place, place), max_size=6))
    sentences = sentences_of(text)
    found = locate_spans(text, spans, sentences)
    assert found.dropped == len(spans) - sum(map(len, found.spans)) // 2
    assert len(found.spans) in (0, len(sentences))
    read = []
    for sentence, places in zip(sentences, found.spans, strict=False):
        assert places == sorted(places)
        assert all(0 <= place <= len(sentence) for place in places)
        read += [sentence[a:b] for a, b in zip(places[::2], places[1::2], strict=True)]
    # In order, and each the clean form of one of those asked for.
    asked = [clean(text[a:b]).text.replace("\n", " ") for a, b in sorted(spans) if 0 <= a < b]
    left = iter(asked)
    assert all(any("".join(word.split()) == "".join(one.split()) for one in left) for word in read)


@given(st.lists(st.sampled_from(["One", "two.", "Three!", "four"]), min_size=1, max_size=12))
def test_in_plain_text_every_word_is_found(words: list[str]) -> None:
    text = "  \n ".join(words)
    spans, at = [], 0
    for word in words:
        spans.append((text.index(word, at), text.index(word, at) + len(word)))
        at = spans[-1][1]
    assert locate_spans(text, spans, sentences_of(text)).dropped == 0
