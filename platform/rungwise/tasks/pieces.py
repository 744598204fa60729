"""Texts as token ids, and what is cut off where they do not fit their row."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer


def ids_of(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The ids of each text, no special tokens added."""
    encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


def longest_first(
    first: Sequence[int], second: Sequence[int], room: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Both texts with at most `room` tokens together, cut at their ends.

    The longer one loses a token as long as they do not fit, and the second where they are equally
    long: the rule of BERT's released code for pairs.
    """
    fair = room // 2
    shorter_first, shorter_second = len(first) <= fair, len(second) <= fair
    if len(first) + len(second) <= room:
        return first, second
    if shorter_first:
        return first, second[: room - len(first)]
    if shorter_second:
        return first[: room - len(second)], second
    return first[: room - fair], second[:fair]
