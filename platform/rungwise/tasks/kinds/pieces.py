"""Encode texts as token ids, and cut those that do not fit in a row or read them in windows."""

import re
from collections.abc import Sequence

from tokenizers import Tokenizer

from rungwise.tasks.kinds.items import Cut
from rungwise.tokenizer import refuse_panic
from rungwise.tokens.segmenters import HAN

WORD = re.compile(rf"[{HAN}]|[^\s{HAN}]+")


def token_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of each text, without special tokens."""
    with refuse_panic():
        encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


def cuts(*texts: tuple[str, Sequence[int], int, int]) -> tuple[Cut, ...]:
    """Return the texts that lose something, from (text, ids, first token that stays, end)."""
    return tuple(Cut(text, begin, end) for text, ids, begin, end in texts if end - begin < len(ids))


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
    """Cut both texts at their ends to at most `room` tokens together.

    The longer one loses tokens until they fit, the second if they are equally long, as in BERT's
    released code; `alike`, both lose the odd token, so that the order does not matter.
    """
    fair = room // 2
    return (
        first[: max(fair if alike else room - fair, room - len(second))],
        second[: max(fair, room - len(first))],
    )
