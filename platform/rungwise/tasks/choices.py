"""Multiple choice: a row for each option, and the softmax over their scores (SPEC F5).

    start  context question  between  option  end

What does not fit is cut from the front of the context, because an option goes on from its end;
then from the front of the question, and last from the end of the option. The longest option says
how much goes, so that all options of an example are judged by the same context.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from numpy.typing import NDArray
from tokenizers import Tokenizer

from rungwise.core.errors import DataError
from rungwise.tasks.examples import ChoiceExample
from rungwise.tasks.items import Frame, Item
from rungwise.tasks.pieces import ids_of
from rungwise.tasks.sentences import softmax


def encode(examples: Sequence[ChoiceExample], tokenizer: Tokenizer, frame: Frame) -> list[Item]:
    """One item an example, of one row an option.

    Raises DataError for a target that is none of the options.
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
        mine = [option[:room] for option in islice(options, len(example.options))]
        text = [*context, *question]
        text = text[max(0, len(text) + max(map(len, mine)) - room) :]
        rows = tuple(frame.two(text, option) for option in mine)
        items.append(Item(rows, index, example.target))
    return items


def decode(
    outputs: Sequence[NDArray[Any]], items: Sequence[Item], count: int
) -> list[dict[str, Any]]:
    """{"option", "probabilities"} of each of `count` examples."""
    found: list[dict[str, Any]] = [{} for _ in range(count)]
    for output, item in zip(outputs, items, strict=True):
        shares = softmax(output)
        found[item.example] = {"option": int(shares.argmax()), "probabilities": shares.tolist()}
    return found
