"""Write a text after another one, such as a summary or a translation.

    start  source  between  target  end

One Transformer reads the source and writes the target (Khandelwal et al. 2019, arXiv:1905.08836):
each token of the target, and the end after it, is predicted from the state before it, and only
these have a loss. Each text has its own room in a row, so that a source is cut in the same way
whether or not its target is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray
from tokenizers import Tokenizer

from rungwise.tasks.kinds.examples import Text
from rungwise.tasks.kinds.items import Frame, Item
from rungwise.tasks.kinds.pieces import cuts, ids_of


def longest_target(sequence_length: int, max_answer_tokens: int) -> int:
    """Return the most tokens of a target, without the end: at most half of a row."""
    return min(max_answer_tokens, (sequence_length - 3) // 2)


def encode(
    examples: Sequence[Text], tokenizer: Tokenizer, frame: Frame, max_answer_tokens: int
) -> list[Item]:
    """Encode each example as an item of one row. Both texts are cut at their ends; a cut target
    does not train the end."""
    longest = longest_target(frame.sequence_length, max_answer_tokens)
    room = frame.sequence_length - 3 - longest
    texts = [str(example.target or "") for example in examples]
    sources, targets = (ids_of(tokenizer, t) for t in ([e.text for e in examples], texts))
    items = []
    for index, (example, source, target) in enumerate(zip(examples, sources, targets, strict=True)):
        row = frame.two(source[:room], target[:longest])
        unended = len(target) > longest
        written = row.ids[row.second : len(row.ids) - unended]
        known = example.target is not None
        places = range(row.second - 1, row.second - 1 + len(written)) if known else ()
        side = max(len(source), len(target))
        cut = cuts(
            (example.text, source, 0, min(room, len(source))),
            (texts[index], target, 0, min(longest, len(target))),
        )
        needs = side + min(side, max_answer_tokens) + 3
        if len(target) > max_answer_tokens:
            needs = math.inf
        of_row = written if known else None
        items.append(Item((row,), index, of_row, tuple(places), needs=needs, cut=cut))
    return items


def decode(outputs: Sequence[NDArray[Any]], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Predict {"text"} for each example from the ids that were written for it."""
    # The tokenizer does not know the marks that fine-tuning adds and leaves them out.
    return [{"text": tokenizer.decode(ids.tolist())} for ids in outputs]
