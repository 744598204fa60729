"""The base of kinds that predict labels or a number for a text or a pair of texts.

A text that is too long is cut at its end, or read in windows, each an item with the target of its
example; the logits of an example are their mean, the logarithmic opinion pool (Genest & Zidek
1986).
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rungwise.core.errors import ConfigError, DataError
from rungwise.tasks.kinds.examples import TaskInfo, Text
from rungwise.tasks.kinds.items import (
    Frame,
    Item,
    Pairs,
    Row,
    cuts,
    longest_first,
    token_ids,
    windows,
)
from rungwise.tasks.kinds.kind import Outputs, Reading, Record, Stand, TaskKind

if TYPE_CHECKING:
    from rungwise.tasks.kinds.heads import TaskHead

_Spans = tuple[tuple[int, int], tuple[int, int]]  # [begin, end) of both texts


class TextKind(TaskKind):
    """A kind whose example is a text or a pair of texts."""

    def __init__(self, info: TaskInfo, reading: Reading | None = None) -> None:
        super().__init__(info, reading)
        self.columns = ("text", "second") if info.pair else ("text",)
        self.is_one_text = not info.pair

    @property
    def marks(self) -> int:
        return 3 if self.info.pair else 2

    def parse(self, record: Record) -> Text:
        return Text(record.where, *(record.text(name) for name in self.columns))


class SentenceKind(TextKind):
    """A kind that predicts from one vector of the text or the pair."""

    pools = has_windows = True
    finetune_keys = ("pairs", "windows")

    def takes(self, key: str) -> bool:
        return super().takes(key) and (key != "pairs" or self.info.pair)

    def build_head(self, stand: Stand) -> TaskHead:
        from rungwise.tasks.kinds.heads import SequenceHead

        pooled = (stand.pooling, stand.dropout, stand.pooler)
        return SequenceHead(stand.width, max(1, len(self.info.labels)), *pooled, self.reading.pairs)

    @abstractmethod
    def target(self, example: Text) -> int | float:
        """Return the target of an item. Raises DataError for one that the task does not have."""

    def encode(self, examples: Sequence[Text], tokenizer: Tokenizer, frame: Frame) -> list[Item]:
        """Encode each example as an item of one row, or two for a pair that `pairs` does not join:
        (A, B) and (B, A) in `both_orders`, (A) and (B) `apart`. A text in a row of its own is cut
        at its end, a pair longest first; both orders hold the same tokens, whichever text is the
        first. With `windows` there is an item per window over the longer text; the shorter one
        stands in each, cut to half of the row. Raises DataError for a single text where a pair is
        expected, the reverse, or a target of another task; ConfigError for two rows of a single
        text. Texts apart have no windows."""
        pairs, info = self.reading.pairs, self.info
        if pairs != "joined" and not info.pair:
            raise ConfigError(
                f"finetune.pairs is {pairs}, which is for pairs of texts, and this task has single "
                "texts; leave it out"
            )
        for example in examples:
            if info.pair != (example.second is not None):
                expected, found = ("one text", "a pair; leave the second out")
                if info.pair:
                    expected, found = ("a pair of texts", "one text")
                raise DataError(f"{example.where}: expected {expected}, found {found}")
        firsts = token_ids(tokenizer, [example.text for example in examples])
        seconds = token_ids(tokenizer, [example.second or "" for example in examples])
        marks = 3 if info.pair and pairs != "apart" else 2
        room = frame.sequence_length - marks
        items = []
        for index, (example, first, second) in enumerate(
            zip(examples, firsts, seconds, strict=True)
        ):
            lengths = len(first), len(second)
            parts: list[_Spans]
            if pairs == "apart":
                needs = max(lengths)
                parts = [((0, min(room, lengths[0])), (0, min(room, lengths[1])))]
            elif self.reading.windows:
                needs, parts = 2 * min(lengths), self._windows(first, second, room)
            else:
                needs, both = (
                    sum(lengths),
                    longest_first(first, second, room, alike=pairs == "both_orders"),
                )
                parts = [((0, len(both[0])), (0, len(both[1])))]
            (_, end), (_, second_end) = parts[-1]
            cut = cuts((example.text, first, 0, end), (example.second or "", second, 0, second_end))
            target = None if example.target is None else self.target(example)
            for span, second_span in parts:
                texts = first[slice(*span)], second[slice(*second_span)]
                rows = _pair_rows(*texts, frame, pairs) if info.pair else (frame.one(texts[0]),)
                items.append(Item(rows, index, target, needs=needs + marks, cut=cut))
                cut = ()  # reported once per example
        return items

    def _windows(self, first: Sequence[int], second: Sequence[int], room: int) -> list[_Spans]:
        """Windows over two texts; of equal lengths the second counts as longer or, in both orders,
        the one with the higher ids, whichever is the first."""
        lengths = len(first), len(second)
        if sum(lengths) <= room:
            return [((0, lengths[0]), (0, lengths[1]))]
        shorter = (0, min(*lengths, room // 2))
        spans = windows(max(lengths), room - shorter[1], self.reading.stride)
        is_first = lengths[0] > lengths[1]
        if lengths[0] == lengths[1] and self.reading.pairs == "both_orders":
            is_first = [*first] > [*second]
        return [(span, shorter) if is_first else (shorter, span) for span in spans]


def mean_logits(outputs: Outputs) -> list[NDArray[np.float64]]:
    """Average the outputs of each example over its windows, which are neighbours."""
    pairs = zip(outputs.items, outputs.arrays, strict=True)
    return [
        np.asarray(np.mean([array for _, array in windows], axis=0, dtype=np.float64))
        for _, windows in itertools.groupby(pairs, lambda pair: pair[0].example)
    ]


def _pair_rows(
    first: Sequence[int], second: Sequence[int], frame: Frame, pairs: Pairs
) -> tuple[Row, ...]:
    match pairs:
        case "joined":
            return (frame.two(first, second),)
        case "both_orders":
            return frame.two(first, second), frame.two(second, first)
        case "apart":
            return frame.one(first), frame.one(second)
