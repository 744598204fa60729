"""Texts and pairs of texts, each with labels or a number.

A text that is too long is cut at its end, or read in windows, each an item with the target of its
example. The logits of an example are the mean over its windows. Its label probabilities are then
the normalised geometric mean over the windows, the logarithmic opinion pool (Genest & Zidek 1986,
"Combining probability distributions", Statistical Science 1), as for a mean of log probabilities.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from tokenizers import Tokenizer

from rungwise.core.errors import ConfigError, DataError
from rungwise.tasks.kinds.examples import TaskInfo, Text
from rungwise.tasks.kinds.items import Frame, Item, Row
from rungwise.tasks.kinds.pieces import cuts, ids_of, longest_first
from rungwise.tasks.kinds.pieces import windows as windows_over

Pairs = Literal["joined", "both_orders", "apart"]
_Spans = tuple[tuple[int, int], tuple[int, int]]  # [begin, end) of both texts


def encode(
    examples: Sequence[Text],
    info: TaskInfo,
    tokenizer: Tokenizer,
    frame: Frame,
    *,
    pairs: Pairs,
    windows: bool,
    stride: int,
) -> list[Item]:
    """Encode each example as an item of one row, or two for a pair that `pairs` does not join:
    (A, B) and (B, A) in `both_orders`, (A) and (B) `apart`.

    A text in a row of its own is cut at its end, a pair longest first; both orders hold the same
    tokens. With `windows` there is an item per window over the longer text; the shorter one stands
    in each, cut to half of the row. Raises DataError for a single text where a pair is expected,
    the reverse, or a target of another task; ConfigError for two rows of a single text. Texts apart
    have no windows.
    """
    if pairs != "joined" and not info.pair:
        raise ConfigError(
            f"finetune.pairs is {pairs}, which is for pairs of texts, and this task has single "
            "texts; leave it out"
        )
    apart = pairs == "apart"
    for example in examples:
        _check_pair(example, info)
    firsts = ids_of(tokenizer, [example.text for example in examples])
    seconds = ids_of(tokenizer, [example.second or "" for example in examples])
    numbers = {label: number for number, label in enumerate(info.labels)}
    items = []
    for index, (example, first, second) in enumerate(zip(examples, firsts, seconds, strict=True)):
        marks = 3 if info.pair and not apart else 2
        room = frame.sequence_length - marks
        lengths = len(first), len(second)
        parts: list[_Spans]
        if apart:
            needs, parts = max(lengths), [((0, min(room, lengths[0])), (0, min(room, lengths[1])))]
        elif windows:
            needs, parts = 2 * min(lengths), _windows(*lengths, room, stride)
        else:
            needs, both = sum(lengths), longest_first(first, second, room)
            parts = [((0, len(both[0])), (0, len(both[1])))]
        (_, end), (_, second_end) = parts[-1]
        cut = cuts((example.text, first, 0, end), (example.second or "", second, 0, second_end))
        for one, two in parts:
            kept = first[slice(*one)], second[slice(*two)]
            rows = _rows(*kept, frame, pairs) if info.pair else (frame.one(kept[0]),)
            target = _target(example, info, numbers)
            items.append(Item(rows, index, target, needs=needs + marks, cut=cut))
            cut = ()  # reported once per example
    return items


def _windows(first: int, second: int, room: int, stride: int) -> list[_Spans]:
    """Windows over two texts of these lengths; of equal lengths the second counts as longer."""
    if first + second <= room:
        return [((0, first), (0, second))]
    kept = (0, min(first, second, room // 2))
    over = windows_over(max(first, second), room - kept[1], stride)
    return [(span, kept) if first > second else (kept, span) for span in over]


def pooled(outputs: Sequence[NDArray[Any]], items: Sequence[Item]) -> list[NDArray[np.float64]]:
    """Average the outputs of each example over its windows, which must be neighbours."""
    windows = itertools.groupby(zip(items, outputs, strict=True), lambda pair: pair[0].example)
    return [
        np.asarray(np.mean([output for _, output in each], axis=0, dtype=np.float64))
        for _, each in windows
    ]


def decode(
    outputs: Sequence[NDArray[Any]], items: Sequence[Item], info: TaskInfo
) -> list[dict[str, Any]]:
    """Predict {"label", "probability"}, or {"score"} in regression, for each example."""
    logits = pooled(outputs, items)
    if info.kind == "regression":
        return [{"score": float(each)} for each in logits]
    each_C = [softmax(each) for each in logits]
    return [{"label": info.labels[s.argmax()], "probability": float(s.max())} for s in each_C]


def _rows(
    first: Sequence[int], second: Sequence[int], frame: Frame, pairs: Pairs
) -> tuple[Row, ...]:
    match pairs:
        case "joined":
            return (frame.two(first, second),)
        case "both_orders":
            return frame.two(first, second), frame.two(second, first)
        case "apart":
            return frame.one(first), frame.one(second)


def _check_pair(example: Text, info: TaskInfo) -> None:
    if info.pair and example.second is None:
        raise DataError(f"{example.where}: expected a pair of texts, found one text")
    if not info.pair and example.second is not None:
        raise DataError(f"{example.where}: expected one text, found a pair; leave the second out")


def _target(
    example: Text, info: TaskInfo, numbers: dict[str, int]
) -> int | float | tuple[int, ...] | None:
    target = example.target
    if target is None:
        return None
    if info.kind == "regression":
        if isinstance(target, str | tuple):
            raise DataError(f"{example.where}: expected a number as target, found {target!r}")
        return float(target)
    names = target if info.kind == "multilabel" and isinstance(target, tuple) else (target,)
    for name in names:
        if name not in numbers:
            raise DataError(
                f"{example.where}: label {name!r} is none of the task's ({', '.join(info.labels)})"
            )
    if info.kind == "multilabel":
        return tuple(int(label in names) for label in info.labels)
    return numbers[str(target)]
