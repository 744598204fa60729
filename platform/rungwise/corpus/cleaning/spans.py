"""Map the spans of a raw text to its sentences, after clean-up and segmentation.

    locate_spans("A  big\nred dog.", [(3, 10)], ["A big red dog."]) == LocatedSpans([[2, 9]], 0)

These steps change only blanks and invisible characters, so a position is the number of visible
characters before it, counted by cleaning the text between positions alone. A span whose letters are
not at that count is dropped, never moved to the wrong word.
"""

import bisect
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from rungwise.corpus.cleaning.characters import clean


class LocatedSpans(NamedTuple):
    """One list [start 0, end 0, start 1, ...] per sentence, no list if all spans were dropped."""

    spans: list[list[int]]
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
        return LocatedSpans([], len(spans))
    bounds = sorted({bound for span in inside for bound in span})
    between = [_visible(text[a:b]) for a, b in itertools.pairwise((0, *bounds))]
    before = dict(zip(bounds, itertools.accumulate(map(len, between)), strict=True))
    visible = [_visible(sentence) for sentence in sentences]
    # The number of visible characters before each sentence.
    starts = [0, *itertools.accumulate(map(len, visible))]
    by_sentence: list[list[int]] = [[] for _ in sentences]
    previous_end = 0
    for start, end in inside:
        first, last = before[start], before[end]
        if first == last or start < previous_end or last > starts[-1]:
            continue
        number = bisect.bisect_right(starts, first) - 1
        begin, stop = first - starts[number], last - starts[number]
        if last > starts[number + 1] or visible[number][begin:stop] != _visible(text[start:end]):
            continue
        at = [index for index, letter in enumerate(sentences[number]) if letter != " "]
        by_sentence[number] += [at[begin], at[stop - 1] + 1]
        previous_end = end
    located = sum(map(len, by_sentence)) // 2
    return LocatedSpans(by_sentence if located else [], len(spans) - located)


def _visible(text: str) -> str:
    return clean(text).text.replace(" ", "").replace("\n", "")
