"""Encode questions and their contexts: windows over long contexts, and the characters of tokens.

    start  question  between  tokens of the context in this window  end

Windows follow the released SQuAD code (google-research/bert, run_squad.py): each begins `stride`
tokens after the previous one. Two bounds are our own and change nothing at the paper's 384 tokens
and stride 128: a question takes at most half of the row, and a window begins at most half a window
after the previous one, so that some window contains each answer of up to half a window.

Places count code points of the original text, whatever the tokenizer normalises, so that an answer
is a slice of it. A token's place excludes blanks at both ends and is empty for a blank token.
Tokens that share a character, such as bytes, share a place. Accents that a tokenizer drops belong
to the letter before them. Other characters dropped at the edge of a token, such as a byte order
mark, belong to none: annotators do not see them either.
"""

from __future__ import annotations

import math
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Encoding, Tokenizer

from rungwise.tasks.kinds.examples import Question
from rungwise.tasks.kinds.items import Frame, Item
from rungwise.tasks.kinds.pieces import cuts, ids_of, windows

NO_ANSWER = (0, 0)  # target: start and end at the first token of the row


@dataclass(frozen=True)
class Located:
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


def encode(
    examples: Sequence[Question],
    tokenizer: Tokenizer,
    frame: Frame,
    stride: int,
    max_question_tokens: int,
) -> list[Item]:
    """Encode each window as an item; an empty context has one. Questions are cut at their end.

    The target is the first answer if the window holds all of its tokens, else NO_ANSWER.
    """
    contexts = list(dict.fromkeys(example.context for example in examples))
    located = dict(zip(contexts, locate(tokenizer, contexts), strict=True))
    questions = ids_of(tokenizer, [example.question for example in examples])
    longest = min(max_question_tokens, (frame.sequence_length - 3) // 2)
    items = []
    for index, (example, asked) in enumerate(zip(examples, questions, strict=True)):
        text = located[example.context]
        question = asked[:longest]
        cut = cuts((example.question, asked, 0, len(question)))
        needs = 2 * len(asked) + 3 if len(asked) <= max_question_tokens else math.inf
        wanted = _answer(example, text)
        room = frame.sequence_length - 3 - len(question)
        for begin, end in windows(len(text.ids), room, stride):
            row = frame.two(question, text.ids[begin:end])
            target = None
            if example.answers is not None:
                target = NO_ANSWER
                if wanted is not None and begin <= wanted[0] and wanted[1] < end:
                    offset = row.second - begin
                    target = (wanted[0] + offset, wanted[1] + offset)
            places = tuple(zip(text.starts[begin:end], text.ends[begin:end], strict=True))
            items.append(Item((row,), index, target, places, needs=needs, cut=cut))
            cut = ()  # reported once per question
    return items


def locate(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Located]:
    """Tokenise each text and find the places of its tokens."""
    encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return [_located(text, encoding) for text, encoding in zip(texts, encodings, strict=True)]


def _located(text: str, encoding: Encoding) -> Located:
    starts, ends = [], []
    for start, end in encoding.offsets:
        while start < end and text[start].isspace():
            start += 1
        while start < end and text[end - 1].isspace():
            end -= 1
        starts.append(start)
        ends.append(end)
    # Accents that a normaliser strips follow their letter.
    for token in range(len(starts)):
        limit = starts[token + 1] if token + 1 < len(starts) else len(text)
        while starts[token] < ends[token] < limit and _is_mark(text[ends[token]]):
            ends[token] += 1
    _join_overlapping(starts, ends)
    return Located(encoding.ids, starts, ends)


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


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


def _answer(example: Question, text: Located) -> tuple[int, int] | None:
    if not example.answers:
        return None
    answer = example.answers[0]
    return text.covering(answer.start, answer.start + len(answer.text))
