"""Map the spans of a raw text to its sentences, after clean-up and segmentation.

    located("A  big\nred dog.", [(3, 10)], ["A big red dog."]) == Located([[2, 9]], 1, 0)

These steps change only blanks and invisible characters, so a position is the number of visible
characters before it, counted by cleaning each stretch between positions alone. A span whose letters
are not at that count is dropped, never moved to the wrong word.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from rungwise.corpus.cleaning.characters import clean


class LocatedSpans(NamedTuple):
    """One list [start 0, end 0, start 1, ...] per sentence, empty if no span is kept."""

    spans: list[list[int]]
    kept: int
    dropped: int


def locate_spans(
    text: str, spans: Sequence[tuple[int, int]], sentences: Sequence[str]
) -> LocatedSpans:
    """Locate spans of `text`, [start, end) in characters, in its sentences.

    A span is dropped if it is empty, lies outside the text, overlaps an earlier one (by start, then
    end), crosses the end of a sentence, or is changed by the clean-up.
    """
    inside = sorted((start, end) for start, end in spans if 0 <= start < end <= len(text))
    if not inside or not sentences:
        return LocatedSpans([], 0, len(spans))
    places = sorted({place for span in inside for place in span})
    visible = [_visible(text[a:b]) for a, b in itertools.pairwise((0, *places))]
    before = dict(zip(places, itertools.accumulate(map(len, visible)), strict=True))
    shown = [_visible(sentence) for sentence in sentences]
    # The number of visible characters before each sentence.
    starts = [0, *itertools.accumulate(map(len, shown))]
    by_sentence: list[list[int]] = [[] for _ in sentences]
    kept = taken = 0
    for start, end in inside:
        first, last = before[start], before[end]
        if first == last or start < taken or last > starts[-1]:
            continue
        number = bisect.bisect_right(starts, first) - 1
        begin, stop = first - starts[number], last - starts[number]
        if last > starts[number + 1] or shown[number][begin:stop] != _visible(text[start:end]):
            continue
        at = [index for index, letter in enumerate(sentences[number]) if letter != " "]
        by_sentence[number] += [at[begin], at[stop - 1] + 1]
        taken, kept = end, kept + 1
    return LocatedSpans(by_sentence if kept else [], kept, len(spans) - kept)


def is_list_of_spans(value: Any) -> bool:
    """Whether `value` is a list of pairs of whole numbers."""
    return isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(type(place) is int for place in pair)
        for pair in value
    )


def _visible(text: str) -> str:
    return clean(text).text.replace(" ", "").replace("\n", "")
