"""Words and their tags, and the token that represents each word.

Each word is tokenised by itself and represented by its first token (Devlin et al. 2019, section
5.3), or by its last one if the model does not see what follows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rungwise.core.errors import DataError
from rungwise.tasks.kinds.examples import Tagged, TaskInfo
from rungwise.tasks.kinds.items import Frame, Item
from rungwise.tasks.kinds.pieces import cuts, ids_of
from rungwise.tasks.kinds.transitions import Transitions
from rungwise.tokenizer import special_ids
from rungwise.tokens.segmenters import HAN

_BEGINS_HAN = re.compile(f"[{HAN}]")


def encode(
    examples: Sequence[Tagged], info: TaskInfo, tokenizer: Tokenizer, frame: Frame
) -> list[Item]:
    """Encode sentences as items that together hold every word once, in order.

    A sentence longer than a row is cut between words, as late as possible; a word longer than a row
    loses its end. A word without tokens, such as one of control characters, becomes the unknown
    token. Raises DataError for tags that do not fit the words or the task.
    """
    pieces = _pieces(tokenizer, dict.fromkeys(word for e in examples for word in e.words))
    numbers = {label: number for number, label in enumerate(info.labels)}
    room = frame.sequence_length - 2
    items = []
    for index, example in enumerate(examples):
        tags = _tags(example, info, numbers)
        parts = [pieces[word][:room] for word in example.words]
        lengths = {word: len(pieces[word]) for word in example.words}
        needs = max(lengths.values(), default=0) + 2
        cut = cuts(*((w, pieces[w], 0, min(room, lengths[w])) for w in example.words))
        for first, end in _cuts([len(part) for part in parts], room):
            ids: list[int] = []
            places = []
            for part in parts[first:end]:
                places.append(1 + len(ids) + (0 if frame.reads_ahead else len(part) - 1))
                ids += part
            target = None if tags is None else tuple(tags[first:end])
            row = (frame.one(ids),)
            items.append(Item(row, index, target, tuple(places), first, needs, cut))
            cut = ()  # reported once per sentence
    return items


def decode(
    outputs: Sequence[NDArray[Any]], items: Sequence[Item], count: int, info: TaskInfo, legal: bool
) -> list[dict[str, Any]]:
    """Predict {"tags"} for each of `count` examples: the likeliest tag of each word, or with
    `legal` the likeliest sequence that the scheme allows."""
    allowed = Transitions.of(info.labels) if legal else None
    return [
        {"tags": [info.labels[tag] for tag in (allowed.best(each) if allowed else each.argmax(1))]}
        for each in joined(outputs, items, count, info)
    ]


def joined(
    outputs: Sequence[NDArray[Any]], items: Sequence[Item], count: int, info: TaskInfo
) -> list[NDArray[np.float64]]:
    """Join the logits of all rows of each of `count` sentences, (words, C)."""
    rows: list[list[NDArray[Any]]] = [[] for _ in range(count)]
    for output, item in zip(outputs, items, strict=True):
        assert len(rows[item.example]) == item.first, "the items of a sentence are in order"
        assert len(output) == len(item.places), "a row of logits a word"
        rows[item.example] += list(output)
    return [np.array(each, np.float64).reshape(len(each), len(info.labels)) for each in rows]


def is_span_tag(label: str) -> bool:
    """Whether a tag belongs to a span scheme: O, or B-, I-, E- or S- and a type."""
    return label == "O" or (label[:2] in ("B-", "I-", "E-", "S-") and len(label) > 2)


def marks_spans(labels: Sequence[str]) -> bool:
    """Whether all labels of a task are span tags, so that spans can be scored."""
    return all(map(is_span_tag, labels)) and any(label != "O" for label in labels)


def spans_of(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return the spans that tags mark, as seqeval reads them: type, first and last word."""
    from seqeval.metrics.sequence_labeling import get_entities  # takes half a second to import

    return set(get_entities(list(tags)))


def _pieces(tokenizer: Tokenizer, words: dict[str, None]) -> dict[str, list[int]]:
    # In byte-level BPE a word after a blank has other tokens than one after nothing, and most words
    # of a text follow a blank. Chinese has no blanks.
    blank = _blank_is_part_of_word(tokenizer)
    texts = [f" {w}" if blank and not _BEGINS_HAN.match(w) else w for w in words]
    ids_by_word = dict(zip(words, ids_of(tokenizer, texts), strict=True))
    if not all(ids_by_word.values()):
        (unknown,) = special_ids(tokenizer).require("unk")
        ids_by_word = {word: ids or [unknown] for word, ids in ids_by_word.items()}
    return ids_by_word


def _blank_is_part_of_word(tokenizer: Tokenizer) -> bool:
    if tokenizer.pre_tokenizer is None:
        return False
    state = json.loads(tokenizer.pre_tokenizer.__getstate__())
    parts = state["pretokenizers"] if state["type"] == "Sequence" else [state]
    return any(part["type"] == "ByteLevel" and not part["add_prefix_space"] for part in parts)


def _cuts(lengths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """[first, end) of the words of each item; a sentence without words gives one empty item."""
    cuts = []
    first, used = 0, 0
    for word, length in enumerate(lengths):
        if used + length > room:
            cuts.append((first, word))
            first, used = word, 0
        used += length
    return [*cuts, (first, len(lengths))]


def _tags(example: Tagged, info: TaskInfo, numbers: dict[str, int]) -> list[int] | None:
    if example.tags is None:
        return None
    if len(example.tags) != len(example.words):
        raise DataError(
            f"{example.where}: {len(example.words)} words, but {len(example.tags)} tags; each word "
            "needs one"
        )
    for tag in example.tags:
        if tag not in numbers:
            raise DataError(
                f"{example.where}: tag {tag!r} is none of the task's ({', '.join(info.labels)})"
            )
    return [numbers[tag] for tag in example.tags]
