"""Words and their tags. Each word is tokenised by itself and represented by its first token (Devlin
et al. 2019, section 5.3), or by its last one if the model does not see what follows. If all tags
mark spans, the spans are scored, as seqeval reads them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import scipy  # its parts are imported when they are used
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rungwise.tasks.kinds.examples import Tagged, TaskInfo
from rungwise.tasks.kinds.items import Frame, Item, token_ids
from rungwise.tasks.kinds.kind import (
    Calibration,
    Decision,
    Outputs,
    Prediction,
    Record,
    Rules,
    Stand,
    TaskKind,
    commonest,
)
from rungwise.tasks.kinds.rivals import Rival, tag_rival
from rungwise.tasks.scoring.metrics import Numbers, Predictions, TaskMetric, mean, ratio
from rungwise.tokenizer import ids_after_blank, special_ids
from rungwise.tokenizer.mask_units import HAN

if TYPE_CHECKING:
    from torch import Tensor

    from rungwise.tasks.kinds.heads import TaskHead

_SPAN_TAG = re.compile("O|[BIES]-.+", re.DOTALL)
_BEGINS_HAN = re.compile(f"[{HAN}]")


def marks_spans(labels: Sequence[str]) -> bool:
    """Whether all labels mark spans, which can be scored: O, or B-, I-, E- or S- and a type."""
    return {*labels} != {"O"} and all(map(_SPAN_TAG.fullmatch, labels)) and bool(labels)


def find_spans(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return the spans that tags mark, as seqeval reads them: type, first and last word."""
    from seqeval.metrics.sequence_labeling import get_entities  # takes half a second to import

    return set(get_entities(list(tags)))


def _count_words(predictions: Predictions, examples: Sequence[Tagged], info: TaskInfo) -> Numbers:
    """Correct words and words, (N, 2)."""
    pairs = [(p["tags"], e.tags or ()) for p, e in zip(predictions, examples, strict=True)]
    rows = [(sum(map(str.__eq__, predicted, gold)), len(gold)) for predicted, gold in pairs]
    return np.array(rows, np.float64).reshape(-1, 2)


def _count_spans(predictions: Predictions, examples: Sequence[Tagged], info: TaskInfo) -> Numbers:
    """Correct, predicted and target spans, (N, 3)."""
    rows = []
    for prediction, example in zip(predictions, examples, strict=True):
        predicted, gold = find_spans(prediction["tags"]), find_spans(example.tags or ())
        rows.append((len(predicted & gold), len(predicted), len(gold)))
    return np.array(rows, np.float64).reshape(-1, 3)


class Tagging(TaskKind):
    """Predicts {"tags"}, the likeliest tag of each word."""

    name = "tagging"
    answer = "tags"
    labelled = target_per_place = True
    finetune_keys = ("crf",)
    words = "one of {labels} tags for each word"
    columns = ("words",)
    is_one_text = True
    metrics: ClassVar[Mapping[str, TaskMetric]] = {
        "f1": TaskMetric(_count_spans, lambda n: ratio(2 * n[..., 0], n[..., 1] + n[..., 2])),
        "precision": TaskMetric(_count_spans, lambda n: ratio(n[..., 0], n[..., 1])),
        "recall": TaskMetric(_count_spans, lambda n: ratio(n[..., 0], n[..., 2])),
        "accuracy": TaskMetric(_count_words, mean),
    }

    def build_head(self, stand: Stand) -> TaskHead:
        from rungwise.tasks.kinds.heads import CrfHead, TokenHead

        head = CrfHead if stand.crf else TokenHead
        return head(stand.width, max(1, len(self.info.labels)), stand.dropout)

    def split_logits(self, logits: Tensor, items: Sequence[Item]) -> Sequence[Tensor]:
        return logits.split([len(item.places) for item in items])

    def metric_names(self) -> Sequence[str]:
        return tuple(self.metrics) if marks_spans(self.info.labels) else ("accuracy",)

    def parse(self, record: Record) -> Tagged:
        words = record.values.get("words")
        if not isinstance(words, list | tuple):
            words = record.text("words" if "words" in record.values else "text").split()
        return Tagged(record.where, record.texts("words", words))

    def encode(self, examples: Sequence[Tagged], tokenizer: Tokenizer, frame: Frame) -> list[Item]:
        """Encode sentences as items that together hold every word once, in order.

        A sentence longer than a row is cut between words, as late as possible; a word longer than a
        row loses its end. A word without tokens, such as one of control characters, becomes the
        unknown token. Raises DataError for tags that the task does not have.
        """
        pieces = _pieces(tokenizer, dict.fromkeys(word for e in examples for word in e.words))
        room = frame.sequence_length - 2
        items = []
        for index, example in enumerate(examples):
            tags = self._targets(example)
            parts = [pieces[word][:room] for word in example.words]
            cut = any(len(pieces[word]) > room for word in example.words)
            for first, end in _cuts([len(part) for part in parts], room):
                ids: list[int] = []
                places = []
                for part in parts[first:end]:
                    places.append(1 + len(ids) + (0 if frame.reads_ahead else len(part) - 1))
                    ids += part
                target = None if tags is None else tuple(tags[first:end])
                row = (frame.one(ids),)
                items.append(Item(row, index, target, tuple(places), cut))
        return items

    def decode(self, outputs: Outputs, calibration: Calibration) -> list[Prediction]:
        labels = self.info.labels
        return [
            {"tags": [labels[tag] for tag in logits.argmax(1)]} for logits in self._logits(outputs)
        ]

    def probabilities(self, outputs: Outputs) -> list[list[list[float]]]:
        return [scipy.special.softmax(logits, axis=-1).tolist() for logits in self._logits(outputs)]

    def example_score(self, row: Mapping[str, Any]) -> float:
        return float(np.mean([a == b for a, b in zip(row["gold"], row["prediction"], strict=True)]))

    def decisions(self, row: Mapping[str, Any]) -> list[Decision]:
        words = zip(row["gold"], row["prediction"], row["probabilities"], strict=True)
        return [Decision(gold, tag, p[self.info.labels.index(tag)]) for gold, tag, p in words]

    def class_items(self, answer: Any) -> set[tuple[Any, ...]] | None:
        return {*find_spans(answer)} if marks_spans(self.info.labels) else None

    def answer_text(self, row: Mapping[str, Any], answer: Any) -> str:
        """Return the words with their tags, O left out."""
        pairs = zip(row["words"], answer, strict=True)
        return " ".join(f"{word}/{tag}" for word, tag in pairs if tag != "O") or "nothing"

    def rivals(self) -> Sequence[Rival]:
        return (tag_rival(lambda example: self._targets(example) or (), len(self.info.labels)),)

    def rules(self, train: Sequence[Tagged], test: Sequence[Tagged]) -> Rules:
        tag_counts: dict[str, Counter[str]] = {}
        for example in train:
            for word, tag in zip(example.words, example.tags or (), strict=True):
                tag_counts.setdefault(word, Counter())[tag] += 1
        overall = commonest(tag for example in train for tag in example.tags or ())
        best = {word: commonest(counts) for word, counts in tag_counts.items()}
        return {
            "majority": [{"tags": [overall] * len(example.words)} for example in test],
            "word_majority": [
                {"tags": [best.get(word, overall) for word in example.words]} for example in test
            ],
        }

    def _logits(self, outputs: Outputs) -> list[NDArray[np.float64]]:
        """Join the logits of all rows of each sentence, (words, C)."""
        rows: list[list[NDArray[Any]]] = [[] for _ in outputs.examples]
        for array, item in zip(outputs.arrays, outputs.items, strict=True):
            assert len(array) == len(item.places), "a row of logits a word"
            rows[item.example] += list(array)
        labels = len(self.info.labels)
        return [np.array(each, np.float64).reshape(len(each), labels) for each in rows]

    def _targets(self, example: Tagged) -> list[int] | None:
        if example.tags is None:
            return None
        return [self.label_number(tag, example.where, "tag") for tag in example.tags]


def _pieces(tokenizer: Tokenizer, words: dict[str, None]) -> dict[str, list[int]]:
    # In byte-level BPE a word after a blank has other tokens than one after nothing, and most words
    # of a text follow a blank. Chinese has no blanks.
    blank = _blank_is_part_of_word(tokenizer)
    ids_by_word = dict(zip(words, token_ids(tokenizer, list(words)), strict=True))
    behind = [word for word in words if blank and not _BEGINS_HAN.match(word)]
    ids_by_word |= zip(behind, ids_after_blank(tokenizer, behind), strict=True)
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
    first, total = 0, 0
    for word, length in enumerate(lengths):
        if total + length > room:
            cuts.append((first, word))
            first, total = word, 0
        total += length
    return [*cuts, (first, len(lengths))]
