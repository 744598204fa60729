"""Multiple choice: one row per option, and a softmax over their scores.

    start  context question  between  option  end

A row that is too long first loses the front of the context, then of the question, then the end of
the option. The longest option decides, so that all options are judged by the same context.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import scipy  # its parts are imported when they are used
from tokenizers import Tokenizer

from rungwise.core.errors import DataError
from rungwise.tasks.kinds.examples import ChoiceExample, TaskInfo
from rungwise.tasks.kinds.items import Frame, Item, token_ids
from rungwise.tasks.kinds.kind import (
    Calibration,
    Outputs,
    Prediction,
    Record,
    Rules,
    Stand,
    TaskKind,
    commonest,
)
from rungwise.tasks.scoring.metrics import Numbers, Predictions, TaskMetric, mean, means

if TYPE_CHECKING:
    from torch import Tensor

    from rungwise.tasks.kinds.heads import TaskHead

_OPTION = "option"
_NUMBERED = re.compile(f"{_OPTION}[0-9]+")


def _count_right(
    predictions: Predictions, examples: Sequence[ChoiceExample], info: TaskInfo
) -> Numbers:
    return means([p["option"] == e.target for p, e in zip(predictions, examples, strict=True)])


class Choice(TaskKind):
    """Predicts {"option", "probabilities"}."""

    name = "choice"
    answer = "option"
    pools = True
    words = "which of several options continues a text"
    columns = ("context", "options")
    metrics: ClassVar[Mapping[str, TaskMetric]] = {"accuracy": TaskMetric(_count_right, mean)}

    @property
    def fields(self) -> tuple[str, ...]:
        return ("context", f"{_OPTION}0", f"{_OPTION}1")

    def parse(self, record: Record) -> ChoiceExample:
        question = record.text("question") if "question" in record else None
        return ChoiceExample(record.where, record.text("context"), question, _options(record))

    def encode(
        self, examples: Sequence[ChoiceExample], tokenizer: Tokenizer, frame: Frame
    ) -> list[Item]:
        """Encode each example as an item with one row per option."""
        contexts = token_ids(tokenizer, [example.context for example in examples])
        questions = token_ids(tokenizer, [example.question or "" for example in examples])
        options = iter(token_ids(tokenizer, [option for e in examples for option in e.options]))
        room = frame.sequence_length - 3
        items = []
        for index, (example, context, question) in enumerate(
            zip(examples, contexts, questions, strict=True)
        ):
            own = list(islice(options, len(example.options)))
            text, longest = [*context, *question], max(map(len, own))
            begin = max(0, len(text) + min(room, longest) - room)
            rows = tuple(frame.two(text[begin:], option[:room]) for option in own)
            items.append(Item(rows, index, example.target, cut=begin > 0 or longest > room))
        return items

    def build_head(self, stand: Stand) -> TaskHead:
        from rungwise.tasks.kinds.heads import ChoiceHead

        return ChoiceHead(stand.width, 1, stand.pooling, stand.dropout, stand.pooler)

    def split_logits(self, logits: Tensor, items: Sequence[Item]) -> list[Tensor]:
        return [row[: len(item.rows)] for row, item in zip(logits, items, strict=True)]

    def answer_text(self, row: Mapping[str, Any], answer: Any) -> str:
        return row["options"][answer]

    def decode(self, outputs: Outputs, calibration: Calibration) -> list[Prediction]:
        return [
            {"option": int(np.argmax(shares)), "probabilities": shares}
            for shares in self.probabilities(outputs)
        ]

    def probabilities(self, outputs: Outputs) -> list[list[float]]:
        return [
            scipy.special.softmax(np.asarray(array, np.float64)).tolist()
            for array in outputs.arrays
        ]

    def rules(self, train: Sequence[ChoiceExample], test: Sequence[ChoiceExample]) -> Rules:
        option = commonest(example.target for example in train)
        lengths = [[len(option) for option in example.options] for example in test]
        return {
            "majority": [{"option": option}] * len(test),
            "longest": [{"option": int(np.argmax(each))} for each in lengths],
        }


def _options(record: Record) -> tuple[str, ...]:
    options = record.values.get("options")
    if options is None:
        columns = {n: v for n, v in record.values.items() if _NUMBERED.fullmatch(str(n))}
        present = {name for name in columns if name in record}
        names = [f"{_OPTION}{number}" for number in range(len(present))]
        if missing := [name for name in names if name not in present]:
            raise DataError(
                f"{record.where}: {missing[0]} is missing, but there is {max(present - {*names})}"
            )
        options = [columns[name] for name in names]
    if not isinstance(options, list | tuple) or len(options) < 2:
        raise DataError(
            f"{record.where}: expected options, a list of 2 or more, or {_OPTION}0, {_OPTION}1 and "
            f"so on, found {', '.join(map(str, record.values))}"
            + (f" with options {options!r:.80}" if "options" in record else "")
        )
    return record.texts("options", options)
