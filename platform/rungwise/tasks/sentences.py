"""Sentences and sentence pairs, with one label or one number for each (SPEC F2, F3, F4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from tokenizers import Tokenizer

from rungwise.core.errors import ConfigError, DataError
from rungwise.tasks.examples import TaskInfo, Text
from rungwise.tasks.items import Frame, Item, Row
from rungwise.tasks.pieces import cuts, ids_of, longest_first


def encode(
    examples: Sequence[Text], info: TaskInfo, tokenizer: Tokenizer, frame: Frame, both_orders: bool
) -> list[Item]:
    """Encode each example as an item of one row, or with `both_orders` of (A, B) and (B, A).

    A sentence is cut at its end, a pair longest first; both orders hold the same tokens. Raises
    DataError for a pair where a sentence is expected, the reverse, and a target of another task;
    ConfigError for `both_orders` without pairs.
    """
    if both_orders and not info.pair:
        raise ConfigError(
            "finetune.both_orders is for pairs of texts, and this task has single texts; set it "
            "to false"
        )
    for example in examples:
        _check_pair(example, info)
    firsts = ids_of(tokenizer, [example.text for example in examples])
    seconds = ids_of(tokenizer, [example.second or "" for example in examples])
    numbers = {label: number for number, label in enumerate(info.labels)}
    items = []
    for index, (example, first, second) in enumerate(zip(examples, firsts, seconds, strict=True)):
        room = frame.sequence_length - (3 if info.pair else 2)
        kept, kept_second = longest_first(first, second, room)
        texts = (example.text, first, kept), (example.second or "", second, kept_second)
        items.append(
            Item(
                _rows(kept, kept_second, info.pair, frame, both_orders),
                index,
                _target(example, info, numbers),
                needs=len(first) + len(second) + frame.sequence_length - room,
                cut=cuts(*((text, ids, 0, len(part)) for text, ids, part in texts)),
            )
        )
    return items


def decode(
    outputs: Sequence[NDArray[Any]], items: Sequence[Item], count: int, info: TaskInfo
) -> list[dict[str, Any]]:
    """Predict {"label", "probability"}, or {"score"} in regression, for `count` examples."""
    predictions: list[dict[str, Any]] = [{} for _ in range(count)]
    for output, item in zip(outputs, items, strict=True):
        if info.kind == "regression":
            predictions[item.example] = {"score": float(np.asarray(output).reshape(()))}
        else:
            shares = softmax(np.asarray(output, np.float64))
            best = int(shares.argmax())
            predictions[item.example] = {
                "label": info.labels[best],
                "probability": float(shares[best]),
            }
    return predictions


def _rows(
    first: Sequence[int], second: Sequence[int], pair: bool, frame: Frame, both_orders: bool
) -> tuple[Row, ...]:
    if not pair:
        return (frame.one(first),)
    orders = [(first, second), (second, first)] if both_orders else [(first, second)]
    return tuple(frame.two(*order) for order in orders)


def _check_pair(example: Text, info: TaskInfo) -> None:
    if info.pair and example.second is None:
        raise DataError(f"{example.where}: expected a pair of texts, found one text")
    if not info.pair and example.second is not None:
        raise DataError(f"{example.where}: expected one text, found a pair; leave the second out")


def _target(example: Text, info: TaskInfo, numbers: dict[str, int]) -> int | float | None:
    target = example.target
    if target is None:
        return None
    if info.kind == "regression":
        if isinstance(target, str):
            raise DataError(f"{example.where}: expected a number as target, found {target!r}")
        return float(target)
    if not isinstance(target, str) or target not in numbers:
        raise DataError(
            f"{example.where}: label {target!r} is none of the task's ({', '.join(info.labels)})"
        )
    return numbers[target]
