"""Model inputs: an example as rows of ids, and the places of tokens in their text.

    one text    start  a a a  end
    two texts   start  a a a  between  b b b  end

In BERT start is [CLS] and the other two are [SEP] (Devlin et al. 2019, figure 4); in GPT they are
three new tokens (Radford et al. 2018, figure 1). Segments are 1 after `between`.

Places are in code points of the original, whatever the tokenizer normalises, without blanks at both
ends. Tokens that share a character, such as bytes, share a place, and accents that a tokenizer
drops belong to the letter before them."""

import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tokenizers import Encoding, Tokenizer

from rungwise.tokenizer import refuse_panic

# A pair of texts as one row, as two with the texts in either order, or as a row for each text.
Pairs = Literal["joined", "both_orders", "apart"]
Pooling = Literal["cls", "mean", "last", "last_max_mean"]  # the vector of a row


@dataclass(frozen=True)
class Row:
    """One sequence. `second` is the index of the first token of the second text, or of `end`."""

    ids: tuple[int, ...]
    segments: tuple[int, ...]
    second: int


@dataclass(frozen=True)
class Item:
    """The rows of one forward pass that give one prediction.

    An item has one row, or one for each option of a choice, or two for a pair that is read in both
    orders or apart.
    `example` is the index of its example; a long context gives several items. `target` is what the
    head is trained on, as its kind has it: a number, an index, or a tuple; None if unknown.

    `places` maps the row back to the example. Tagging: the row position of the token that
    represents each word. Generation: the positions that predict the target. Span: [start, end) in
    characters of each context token, from `rows[0].second` on.

    `cut`: whether a text lost tokens that no other item of the example has.
    """

    rows: tuple[Row, ...]
    example: int
    target: Any = None
    places: tuple[Any, ...] = ()
    cut: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Frame:
    """The ids of the three marks, and the longest row, marks included. `reads_ahead`: whether a
    position sees those after it. If not, the last token represents a word."""

    start: int
    between: int
    end: int
    sequence_length: int
    reads_ahead: bool = True

    def one(self, text: Sequence[int]) -> Row:
        """A row of one text, which must fit."""
        ids = (self.start, *text, self.end)
        assert len(ids) <= self.sequence_length, "the text is longer than the frame"
        return Row(ids, (0,) * len(ids), len(ids) - 1)

    def two(self, first: Sequence[int], second: Sequence[int]) -> Row:
        """A row of two texts, which must fit together."""
        ids = (self.start, *first, self.between, *second, self.end)
        assert len(ids) <= self.sequence_length, "the texts are longer than the frame"
        begin = len(first) + 2
        return Row(ids, (0,) * begin + (1,) * (len(ids) - begin), begin)


def token_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of each text, without special tokens."""
    with refuse_panic():
        encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


def windows(tokens: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Return [begin, end) of each window of at most `room` tokens; together they cover all."""
    step = max(1, min(stride, room // 2))
    spans = [(0, min(tokens, room))]
    while spans[-1][1] < tokens:
        begin = spans[-1][0] + step
        spans.append((begin, min(tokens, begin + room)))
    return spans


def longest_first(
    first: Sequence[int], second: Sequence[int], room: int, *, alike: bool = False
) -> tuple[Sequence[int], Sequence[int]]:
    """Cut both texts at their ends to at most `room` tokens together. The longer one loses tokens
    until they fit, the second if they are equally long, as in BERT's released code; `alike`, both
    lose the odd token, so that the order does not matter."""
    fair = room // 2
    return (
        first[: max(fair if alike else room - fair, room - len(second))],
        second[: max(fair, room - len(first))],
    )


@dataclass(frozen=True)
class LocatedTokens:
    """The N tokens of a text: ids, and places [start, end) with both bounds ascending."""

    ids: list[int]
    starts: list[int]
    ends: list[int]

    def covering(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the first and last token with a character in [start, end), None if none has."""
        first = bisect_right(self.ends, start)
        last = bisect_left(self.starts, end) - 1
        while first <= last and self.starts[first] == self.ends[first]:
            first += 1
        while first <= last and self.starts[last] == self.ends[last]:
            last -= 1
        return (first, last) if first <= last else None


def locate(tokenizer: Tokenizer, texts: Sequence[str]) -> list[LocatedTokens]:
    """Tokenise each text and find the places of its tokens."""
    with refuse_panic():
        encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return [_locate_words(text, encoding) for text, encoding in zip(texts, encodings, strict=True)]


def _locate_words(text: str, encoding: Encoding) -> LocatedTokens:
    starts, ends = [], []
    for start, end in encoding.offsets:
        while start < end and text[start].isspace():
            start += 1
        while start < end and text[end - 1].isspace():
            end -= 1
        starts.append(start)
        ends.append(end)
    # A normaliser strips what follows a letter, or composes both to one, whose place is the first.
    for token in range(len(starts)):
        limit = starts[token + 1] if token + 1 < len(starts) else len(text)
        while starts[token] < ends[token] < limit and _continues_letter(text[ends[token]]):
            ends[token] += 1
    _join_overlapping(starts, ends)
    return LocatedTokens(encoding.ids, starts, ends)


def _continues_letter(character: str) -> bool:
    """Whether it is a mark on a letter, or a vowel or final of a Hangul syllable."""
    return unicodedata.category(character).startswith("M") or "\u1160" <= character <= "\u11ff"


def _join_overlapping(starts: list[int], ends: list[int]) -> None:
    """Give tokens that share characters, such as the bytes of one, their common range."""
    first = 0
    for token in range(1, len(starts) + 1):
        reach = max(ends[first:token])
        if token == len(starts) or starts[token] >= reach:
            together = token - first
            starts[first:token] = [min(starts[first:token])] * together
            ends[first:token] = [reach] * together
            first = token
