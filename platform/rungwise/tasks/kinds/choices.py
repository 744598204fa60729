"""Multiple choice: one row per option, and a softmax over their scores.

    start  context question  between  option  end

A row that is too long first loses the front of the context, because an option continues its end,
then the front of the question, then the end of the option. The longest option decides the cut, so
that all options of an example are judged by the same context.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from tokenizers import Tokenizer

from rungwise.core.errors import DataError
from rungwise.tasks.kinds.examples import ChoiceExample
from rungwise.tasks.kinds.items import Frame, Item
from rungwise.tasks.kinds.pieces import cuts, ids_of


def encode(examples: Sequence[ChoiceExample], tokenizer: Tokenizer, frame: Frame) -> list[Item]:
    """Encode each example as an item with one row per option.

    Raises DataError for a target that is not one of the options.
    """
    contexts = ids_of(tokenizer, [example.context for example in examples])
    questions = ids_of(tokenizer, [example.question or "" for example in examples])
    options = iter(ids_of(tokenizer, [option for e in examples for option in e.options]))
    room = frame.sequence_length - 3
    items = []
    for index, (example, context, question) in enumerate(
        zip(examples, contexts, questions, strict=True)
    ):
        if example.target is not None and not 0 <= example.target < len(example.options):
            raise DataError(
                f"{example.where}: option {example.target} is the answer, but there are "
                f"{len(example.options)} options, from 0 on"
            )
        whole_options = list(islice(options, len(example.options)))
        own_options = [option[:room] for option in whole_options]
        text = [*context, *question]
        begin = max(0, len(text) + max(map(len, own_options)) - room)
        rows = tuple(frame.two(text[begin:], option) for option in own_options)
        in_context = min(begin, len(context))
        cut = cuts(
            (example.context, context, in_context, len(context)),
            (example.question or "", question, begin - in_context, len(question)),
            *(
                (written, option, 0, min(room, len(option)))
                for written, option in zip(example.options, whole_options, strict=True)
            ),
        )
        needs = len(text) + max(map(len, whole_options)) + 3
        items.append(Item(rows, index, example.target, needs=needs, cut=cut))
    return items


def decode(
    outputs: Sequence[NDArray[Any]], items: Sequence[Item], count: int
) -> list[dict[str, Any]]:
    """Predict {"option", "probabilities"} for each of `count` examples."""
    predictions: list[dict[str, Any]] = [{} for _ in range(count)]
    for output, item in zip(outputs, items, strict=True):
        shares = softmax(np.asarray(output, np.float64))
        predictions[item.example] = {
            "option": int(shares.argmax()),
            "probabilities": shares.tolist(),
        }
    return predictions
