"""Words and their tags: which piece of a row stands for which word (SPEC F6).

Each word is tokenised for itself, as its tags are given for it alone, and its first piece stands
for it (Devlin et al. 2019, section 5.3); its last one where the model does not see what follows.
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
from rungwise.instances.segmenters import HAN
from rungwise.tasks.examples import Tagged, TaskInfo
from rungwise.tasks.items import Frame, Item
from rungwise.tasks.pieces import ids_of
from rungwise.tokenizer import special_ids

_BEGINS_HAN = re.compile(f"[{HAN}]")


def encode(
    examples: Sequence[Tagged], info: TaskInfo, tokenizer: Tokenizer, frame: Frame
) -> list[Item]:
    """Items that together hold every word of every sentence once, in order.

    A sentence longer than the frame is cut between words, as late as may be, and a word longer
    than the frame after its last piece that fits. A word without any piece, such as one of control
    characters, is the unknown token. Raises DataError for tags that do not fit the words or the
    task.
    """
    pieces = _pieces(tokenizer, dict.fromkeys(word for e in examples for word in e.words))
    numbers = {label: number for number, label in enumerate(info.labels)}
    room = frame.sequence_length - 2
    items = []
    for index, example in enumerate(examples):
        tags = _tags(example, info, numbers)
        parts = [pieces[word][:room] for word in example.words]
        for first, end in _cuts([len(part) for part in parts], room):
            ids: list[int] = []
            places = []
            for part in parts[first:end]:
                places.append(1 + len(ids) + (0 if frame.reads_ahead else len(part) - 1))
                ids += part
            target = None if tags is None else tuple(tags[first:end])
            items.append(Item((frame.one(ids),), index, target, tuple(places), first))
    return items


def decode(
    outputs: Sequence[NDArray[Any]], items: Sequence[Item], count: int, info: TaskInfo
) -> list[dict[str, Any]]:
    """{"tags"} of each of `count` examples: the likeliest tag of each word for itself."""
    found: list[dict[str, Any]] = [{"tags": []} for _ in range(count)]
    for output, item in zip(outputs, items, strict=True):
        tags = found[item.example]["tags"]
        assert len(tags) == item.first, "the items of a sentence are in order"
        assert len(output) == len(item.places), "a row of logits a word"
        if item.places:
            tags += [info.labels[number] for number in np.asarray(output).argmax(axis=1)]
    return found


def is_span_tag(label: str) -> bool:
    """Whether a tag is one of a scheme that marks whole spans: O, or B-, I-, E-, S- and a type."""
    return label == "O" or (label[:2] in ("B-", "I-", "E-", "S-") and len(label) > 2)


def marks_spans(labels: Sequence[str]) -> bool:
    """Whether the labels of a task mark whole spans, so that these can be counted."""
    return all(map(is_span_tag, labels)) and any(label != "O" for label in labels)


def _pieces(tokenizer: Tokenizer, words: dict[str, None]) -> dict[str, list[int]]:
    # In byte-level BPE a word that follows a blank has other tokens than one that follows nothing,
    # and words of a text mostly do; Chinese has no blanks.
    blank = _blank_is_part_of_word(tokenizer)
    texts = [f" {w}" if blank and not _BEGINS_HAN.match(w) else w for w in words]
    found = dict(zip(words, ids_of(tokenizer, texts), strict=True))
    if not all(found.values()):
        (unknown,) = special_ids(tokenizer).require("unk")
        found = {word: ids or [unknown] for word, ids in found.items()}
    return found


def _blank_is_part_of_word(tokenizer: Tokenizer) -> bool:
    if tokenizer.pre_tokenizer is None:
        return False
    state = json.loads(tokenizer.pre_tokenizer.__getstate__())
    parts = state["pretokenizers"] if state["type"] == "Sequence" else [state]
    return any(part["type"] == "ByteLevel" and not part["add_prefix_space"] for part in parts)


def _cuts(lengths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """The first word of each item and the one after its last; no word gives one empty item."""
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
