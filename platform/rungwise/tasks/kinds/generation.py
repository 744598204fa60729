"""Write a text after another one, such as a summary or a translation.

    start  source  between  target  end

One Transformer reads the source and writes the target (Khandelwal et al. 2019, arXiv:1905.08836):
only the tokens of the target, and the end after it, have a loss. Each text has its own room in a
row, so that a source is cut in the same way whether or not its target is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rungwise.core.errors import ConfigError
from rungwise.tasks.kinds.examples import TaskInfo, Text
from rungwise.tasks.kinds.items import Frame, Item, Row, cuts, token_ids
from rungwise.tasks.kinds.kind import Calibration, Outputs, Prediction, Rules, Stand, commonest
from rungwise.tasks.kinds.sentences import TextKind
from rungwise.tasks.scoring import metrics as chrf
from rungwise.tasks.scoring.metrics import Numbers, Predictions, TaskMetric, mean, means
from rungwise.tokenizer import CLEAN_UP

if TYPE_CHECKING:
    from torch import Tensor

    from rungwise.tasks.kinds.heads import TaskHead


def _pairs(predictions: Predictions, examples: Sequence[Text]) -> list[tuple[str, str]]:
    # A model writes clean text only, so the target is cleaned up too.
    clean = CLEAN_UP.normalize_str
    return [
        (clean(p["text"]), clean(str(e.target))) for p, e in zip(predictions, examples, strict=True)
    ]


def _count_runs(predictions: Predictions, examples: Any, info: TaskInfo) -> Numbers:
    return np.array([chrf.counts(*pair) for pair in _pairs(predictions, examples)], np.float64)


def _count_exact(predictions: Predictions, examples: Any, info: TaskInfo) -> Numbers:
    return means([chrf.is_same_text(*pair) for pair in _pairs(predictions, examples)])


class Generation(TextKind):
    """Predicts {"text"}."""

    name = "generation"
    answer = "text"
    writes = target_per_place = True
    words = "a text to write for another text"
    metrics: ClassVar[Mapping[str, TaskMetric]] = {
        "chrf": TaskMetric(_count_runs, chrf.value),
        "exact_match": TaskMetric(_count_exact, mean),
    }

    @property
    def longest_answer(self) -> int:
        """The most tokens of a target, without the end: at most half of a row."""
        return _longest_target(self.reading.sequence_length, self.reading.max_answer_tokens)

    def check_reading(self) -> None:
        if not self.longest_answer:
            raise ConfigError(
                f"finetune.sequence_length is {self.reading.sequence_length}, which leaves no room "
                "to write beside three marks and a source; choose 5 or more"
            )

    def build_head(self, stand: Stand) -> TaskHead:
        from rungwise.tasks.kinds.heads import TokenHead

        return TokenHead(stand.width, stand.num_tokens, stand.dropout)

    def read_logits(
        self, logits: Tensor, items: Sequence[Item], compute: Callable[[Sequence[Item]], Tensor]
    ) -> list[NDArray[Any]]:
        """Write the likeliest ids after each source, up to the end mark (greedy decoding).

        Each step reads the whole row again; texts are short enough to need no cache.
        """
        texts: list[list[int]] = [[] for _ in items]
        ends = [item.rows[0].ids[-1] for item in items]
        unended = list(range(len(items)))
        for _ in range(self.longest_answer):
            unknown = []
            for n in unended:
                row, text = items[n].rows[0], texts[n]
                ids = (*row.ids[: row.second], *text)
                segments = (*row.segments[: row.second], *[1] * len(text))
                row = Row(ids, segments, row.second)
                unknown.append(Item((row,), n, places=(len(ids) - 1,)))
            for n, token in zip(unended, compute(unknown).argmax(dim=1).tolist(), strict=True):
                texts[n].append(token)
            unended = [n for n in unended if texts[n][-1] != ends[n]]
            if not unended:
                break
        whole = zip(texts, ends, strict=True)
        return [np.array([t for t in text if t != end], np.int64) for text, end in whole]

    def example_score(self, row: Mapping[str, Any]) -> float:
        return float(chrf.is_same_text(row["prediction"], row["gold"]))

    def encode(self, examples: Sequence[Text], tokenizer: Tokenizer, frame: Frame) -> list[Item]:
        """Encode each example as an item of one row. Both texts are cut at their ends; a cut target
        does not train the end."""
        longest = _longest_target(frame.sequence_length, self.reading.max_answer_tokens)
        room = frame.sequence_length - 3 - longest
        texts = [str(example.target or "") for example in examples]
        sources = token_ids(tokenizer, [example.text for example in examples])
        targets = token_ids(tokenizer, texts)
        items = []
        for index, example in enumerate(examples):
            source, target = sources[index], targets[index]
            row = frame.two(source[:room], target[:longest])
            end = len(row.ids) - (len(target) > longest)
            cut = cuts(
                (example.text, source, 0, min(room, len(source))),
                (texts[index], target, 0, min(longest, len(target))),
            )
            side = max(len(source), len(target))
            needs = side + min(side, self.reading.max_answer_tokens) + 3
            if len(target) > self.reading.max_answer_tokens:
                needs = math.inf
            item = Item((row,), index, needs=needs, cut=cut)
            if example.target is not None:
                places = tuple(range(row.second - 1, end - 1))
                item = replace(item, target=row.ids[row.second : end], places=places)
            items.append(item)
        return items

    def decode(self, outputs: Outputs, calibration: Calibration) -> list[Prediction]:
        assert outputs.tokenizer is not None, "tokens are spelled by their tokenizer"
        # The tokenizer does not know the marks that fine-tuning adds and leaves them out.
        return [{"text": outputs.tokenizer.decode(ids.tolist())} for ids in outputs.arrays]

    def rules(self, train: Sequence[Text], test: Sequence[Text]) -> Rules:
        target = commonest(example.target for example in train)
        return {
            "majority": [{"text": target}] * len(test),
            "copy": [{"text": example.text} for example in test],
        }


def _longest_target(sequence_length: int, max_answer_tokens: int) -> int:
    return min(max_answer_tokens, (sequence_length - 3) // 2)
