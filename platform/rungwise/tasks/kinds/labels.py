"""Kinds that predict a label, labels or a number for a text or a pair of texts, or tags of words.

A text that is too long is cut at its end, or, if it is no pair, read in windows, each an item with
the target of its example; the logits of an example are their mean, the logarithmic opinion pool
(Genest & Zidek 1986). Macro F1 averages over the classes that occur in the targets or the
predictions, as scikit-learn does. Spearman's correlation is Pearson's of ranks, computed once on
the whole set.

Of words with tags each is tokenised by itself and represented by its first token (Devlin et al.
2019, section 5.3), or by its last one if the model does not see what follows. If all tags mark
spans, the spans are scored, as seqeval reads them.

Shapes: N examples, C labels."""

from __future__ import annotations

import itertools
import json
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import scipy  # its parts are imported when they are used
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rungwise.core.errors import DataError
from rungwise.tasks.kinds import kind as kinds
from rungwise.tasks.kinds import rivals
from rungwise.tasks.kinds.examples import Tagged, TaskInfo, Text
from rungwise.tasks.kinds.items import Frame, Item, Pairs, Row, longest_first, token_ids, windows
from rungwise.tasks.kinds.kind import Calibration, Outputs, Prediction, Rules, TaskKind, TextKind
from rungwise.tasks.kinds.rivals import Rival
from rungwise.tasks.scoring import metrics
from rungwise.tasks.scoring.metrics import Numbers, Predictions, TaskMetric, mean, means, ratio
from rungwise.tokenizer import ids_after_blank, special_ids
from rungwise.tokenizer.mask_units import HAN

if TYPE_CHECKING:
    from torch import Tensor

    from rungwise.tasks.kinds.heads import TaskHead
    from rungwise.tasks.kinds.kind import LossSum


class SentenceKind(TextKind):
    """A kind that predicts from one vector of the text or the pair."""

    pools = True
    finetune_keys = ("pairs", "windows")

    def takes(self, key: str) -> bool:
        return super().takes(key) and key != ("windows" if self.info.pair else "pairs")

    def build_head(self, stand: kinds.Stand) -> TaskHead:
        from rungwise.tasks.kinds.heads import SequenceHead

        pooled = (stand.pooling, stand.dropout, stand.pooler)
        return SequenceHead(stand.width, max(1, len(self.info.labels)), *pooled, self.reading.pairs)

    @abstractmethod
    def target(self, example: Text) -> int | float | tuple[int, ...]:
        """Return the target of an item. Raises DataError for one that the task does not have."""

    def encode(self, examples: Sequence[Text], tokenizer: Tokenizer, frame: Frame) -> list[Item]:
        """Encode each example as an item of one row, or two for a pair that `pairs` does not join:
        (A, B) and (B, A) in `both_orders`, (A) and (B) `apart`. A text in a row of its own is cut
        at its end, a pair longest first; both orders hold the same tokens, whichever text is the
        first. With `windows` a single text has an item for each window. Raises DataError for a
        single text where a pair is expected, the reverse, or a target of another task."""
        pairs, info = self.reading.pairs, self.info
        for example in examples:
            if info.pair != (example.second is not None):
                problem = "expected one text, found a pair; leave the second out"
                if info.pair:
                    problem = "expected a pair of texts, found one text"
                raise DataError(f"{example.where}: {problem}")
        firsts = token_ids(tokenizer, [example.text for example in examples])
        seconds = token_ids(tokenizer, [example.second or "" for example in examples])
        room = frame.sequence_length - (3 if info.pair and pairs != "apart" else 2)
        items = []
        for index, (example, first, second) in enumerate(
            zip(examples, firsts, seconds, strict=True)
        ):
            target = None if example.target is None else self.target(example)
            if self.reading.windows and not info.pair:
                spans = windows(len(first), room, self.reading.stride)
                items += [Item((frame.one(first[a:b]),), index, target) for a, b in spans]
                continue
            if pairs == "apart":
                texts = first[:room], second[:room]
            else:
                texts = longest_first(first, second, room, alike=pairs == "both_orders")
            rows = _pair_rows(*texts, frame, pairs) if info.pair else (frame.one(texts[0]),)
            cut = len(texts[0]) < len(first) or len(texts[1]) < len(second)
            items.append(Item(rows, index, target, cut=cut))
        return items


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


def _counts(predictions: Predictions, examples: Sequence[Text], info: TaskInfo) -> Numbers:
    """For each class: predicted correctly, predicted, is the target. (N, 3C)."""
    numbers = {label: number for number, label in enumerate(info.labels)}
    one_hot = np.eye(len(numbers))
    predicted = one_hot[[numbers[prediction["label"]] for prediction in predictions]]
    gold = one_hot[[numbers[str(example.target)] for example in examples]]
    return np.concatenate([predicted * gold, predicted, gold], axis=1)


def _micro_f1(totals: Numbers) -> Numbers:
    """The accuracy, where each example has one label and one is predicted."""
    right, predicted, gold = metrics.thirds(totals)
    return ratio(2 * right.sum(-1), (predicted + gold).sum(-1))


def _macro_f1(totals: Numbers) -> Numbers:
    _, predicted, gold = metrics.thirds(totals)
    return ratio(metrics.f1_scores(totals).sum(-1), (predicted + gold > 0).sum(-1))


def _matthews(totals: Numbers) -> Numbers:
    """Gorodkin 2004: the correlation of two assignments, for any number of classes."""
    right, predicted, gold = metrics.thirds(totals)
    number = gold.sum(-1)
    covariance = right.sum(-1) * number - (predicted * gold).sum(-1)
    variances = (number**2 - (predicted**2).sum(-1)) * (number**2 - (gold**2).sum(-1))
    return ratio(covariance, np.sqrt(variances))


class Classification(SentenceKind):
    """Predicts {"label", "probability"}. `f1` is that of the second of two labels."""

    name = "classification"
    answer = "label"
    labelled = one_label = True
    finetune_keys = (*SentenceKind.finetune_keys, "class_weights")
    words = "one of {labels} labels for {input}"
    metrics: ClassVar[Mapping[str, TaskMetric]] = {
        "accuracy": TaskMetric(_counts, _micro_f1),
        "macro_f1": TaskMetric(_counts, _macro_f1),
        "f1": TaskMetric(_counts, lambda totals: metrics.f1_scores(totals)[..., 1]),
        "matthews": TaskMetric(_counts, _matthews),
    }

    def metric_names(self) -> list[str]:
        return [name for name in self.metrics if name != "f1" or self.positive]

    def target(self, example: Text) -> int:
        return self.label_number(example.target, example.where)

    def rivals(self) -> Sequence[Rival]:
        fit = partial(rivals.fit_classes, classes=len(self.info.labels))
        return rivals.text_rivals(self.target, fit, rivals.LOGISTIC)

    def decode(self, outputs: Outputs, calibration: Calibration) -> list[Prediction]:
        return [
            {"label": self.info.labels[np.argmax(shares)], "probability": max(shares)}
            for shares in self.probabilities(outputs)
        ]

    def probabilities(self, outputs: Outputs) -> list[list[float]]:
        return [scipy.special.softmax(logits).tolist() for logits in mean_logits(outputs)]

    def rules(self, train: Sequence[Text], test: Sequence[Text]) -> Rules:
        label = kinds.commonest(example.target for example in train)
        return {"majority": [{"label": label}] * len(test)}


_ROUNDING = 1e-12  # a variance below this share of the sum of squares counts as zero


def _both(predictions: Predictions, examples: Sequence[Text]) -> tuple[Numbers, Numbers]:
    predicted = np.array([float(prediction["score"]) for prediction in predictions])
    return predicted, np.array([example.number for example in examples])


def _moments(x: Numbers, y: Numbers) -> Numbers:
    """(N, 6): 1, x, y, x², y², xy, where x is the prediction and y the target."""
    # Shifting loses fewer digits when squares are subtracted; constants become exact zeros.
    x, y = (z - z[:1] for z in (x, y))
    return np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], axis=1)


def _count_numbers(predictions: Predictions, examples: Any, info: TaskInfo) -> Numbers:
    return _moments(*_both(predictions, examples))


def _count_ranks(predictions: Predictions, examples: Any, info: TaskInfo) -> Numbers:
    from scipy.stats import rankdata  # takes a second to import

    x, y = _both(predictions, examples)
    return _moments(rankdata(x), rankdata(y))


def _count_errors(predictions: Predictions, examples: Any, info: TaskInfo) -> Numbers:
    x, y = _both(predictions, examples)
    return means((x - y) ** 2)


def _correlation(totals: Numbers) -> Numbers:
    n, x, y, xx, yy, xy = np.moveaxis(totals, -1, 0)
    variance_x, variance_y = (
        np.where(n * squares - total**2 > _ROUNDING * n * squares, n * squares - total**2, 0.0)
        for squares, total in ((xx, x), (yy, y))
    )
    return ratio(n * xy - x * y, np.sqrt(variance_x) * np.sqrt(variance_y))


class Regression(SentenceKind):
    """Predicts {"score"}."""

    name = "regression"
    answer = "score"
    real_targets = numeric = True
    words = "a number for {input}"
    metrics: ClassVar[Mapping[str, TaskMetric]] = {
        "pearson": TaskMetric(_count_numbers, _correlation),
        "spearman": TaskMetric(_count_ranks, _correlation),
        "mean_squared_error": TaskMetric(_count_errors, mean, selects=False),
    }

    def target(self, example: Text) -> float:
        return example.number

    @staticmethod
    def loss_sums(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> LossSum:
        """Return the sum of the squared errors, and their number."""
        from torch.nn import functional

        return functional.mse_loss(logits[:, 0], targets, reduction="sum"), len(targets)

    def split_logits(self, logits: Tensor, items: Sequence[Item]) -> Tensor:
        return logits[:, 0]

    def example_score(self, row: Mapping[str, Any]) -> float:
        return abs(row["prediction"] - row["gold"])

    def rivals(self) -> Sequence[Rival]:
        return rivals.text_rivals(self.target, rivals.fit_numbers, "ridge regression")

    def decode(self, outputs: Outputs, calibration: Calibration) -> list[Prediction]:
        return [{"score": float(score)} for score in mean_logits(outputs)]

    def rules(self, train: Sequence[Text], test: Sequence[Text]) -> Rules:
        score = float(np.mean([example.number for example in train]))
        return {"mean": [{"score": score}] * len(test)}


THRESHOLD = "label_threshold"
_THRESHOLDS = np.arange(1, 100) / 100


def _indicators(labels: Iterable[Any], info: TaskInfo) -> NDArray[np.bool_]:
    """Return which of the task's labels each example has, (N, C), from collections of names."""
    return np.array([[name in each for name in info.labels] for each in labels], bool)


def _sums(predicted_NC: NDArray[np.bool_], gold_NC: NDArray[np.bool_]) -> Numbers:
    """Whether all labels are right, and 1; for each label: predicted correctly, predicted, is a
    target. (N, 2 + 3C)."""
    exact_N2 = means((predicted_NC == gold_NC).all(axis=1))
    of_labels = (predicted_NC & gold_NC, predicted_NC, gold_NC)
    return np.concatenate([exact_N2, *of_labels], axis=1, dtype=np.float64)


def _count_labels(predictions: Predictions, examples: Sequence[Text], info: TaskInfo) -> Numbers:
    predicted_NC = _indicators([prediction["labels"] for prediction in predictions], info)
    return _sums(predicted_NC, _indicators([example.target for example in examples], info))


class Multilabel(SentenceKind):
    """Predicts {"labels", "probabilities"}: labels in alphabetical order, probabilities of all
    labels in the order of the task. Labels with a probability above a threshold are taken. One
    threshold serves all labels and is chosen on the validation split: the best one for F1 is half
    of the highest possible F1, so never above 0.5 (Lipton et al. 2014, arXiv:1402.1892). Micro F1
    counts each decision on a label once, so that rare labels do not dominate; macro F1 averages
    over all labels."""

    name = "multilabel"
    answer = "labels"
    labelled = real_targets = True
    finetune_keys = (*SentenceKind.finetune_keys, "class_weights")
    words = "which of {labels} labels {input} has"
    metrics: ClassVar[Mapping[str, TaskMetric]] = {
        "micro_f1": TaskMetric(_count_labels, lambda totals: _micro_f1(totals[..., 2:])),
        "macro_f1": TaskMetric(
            _count_labels, lambda totals: metrics.f1_scores(totals[..., 2:]).mean(-1)
        ),
        "exact_match": TaskMetric(_count_labels, mean),
    }

    def target(self, example: Text) -> tuple[int, ...]:
        names = example.target if isinstance(example.target, tuple) else (example.target,)
        for name in names:
            self.label_number(name, example.where)
        return tuple(int(label in names) for label in self.info.labels)

    @staticmethod
    def loss_sums(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> LossSum:
        """Return the sum of the binary cross entropies, each averaged over the labels."""
        from torch.nn import functional

        each_BC = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        if weights is not None:
            each_BC = each_BC * weights.gather(0, targets.long())
        return each_BC.mean(dim=1).sum(), len(targets)

    @staticmethod
    def count_classes(targets_N: Tensor, num_classes: int) -> Tensor:
        """Count the absence and the presence of each label, (2, C)."""
        import torch

        present_C = targets_N.sum(dim=0)
        return torch.stack((len(targets_N) - present_C, present_C))

    def decisions(self, row: Mapping[str, Any]) -> list[kinds.Decision]:
        return [
            kinds.Decision(str(label in row["gold"]), str(present), p if present else 1 - p)
            for label, p in zip(self.info.labels, row["probabilities"], strict=True)
            for present in [label in row["prediction"]]
        ]

    def class_items(self, answer: Any) -> set[tuple[Any, ...]]:
        return set(zip(answer))

    def answer_text(self, row: Mapping[str, Any], answer: Any) -> str:
        return ", ".join(answer) or "no label"

    def rivals(self) -> Sequence[Rival]:
        return rivals.text_rivals(self.target, rivals.fit_labels, rivals.LOGISTIC)

    def decode(self, outputs: Outputs, calibration: Calibration) -> list[Prediction]:
        threshold = calibration.get(THRESHOLD, 0.5)
        predictions = []
        for shares in self.probabilities(outputs):
            pairs = zip(self.info.labels, shares, strict=True)
            labels = sorted(label for label, share in pairs if share > threshold)
            predictions.append({"labels": labels, "probabilities": shares})
        return predictions

    def probabilities(self, outputs: Outputs) -> list[list[float]]:
        return [scipy.special.expit(logits).tolist() for logits in mean_logits(outputs)]

    def calibrate(self, outputs: Outputs) -> dict[str, float]:
        """Choose the threshold, in hundredths, with the best metric of the task on these examples;
        of equally good ones, the nearest to 0.5."""
        share_NC = np.array(self.probabilities(outputs))
        gold_NC = _indicators([example.target for example in outputs.examples], self.info)
        totals = [_sums(share_NC > t, gold_NC).sum(axis=0) for t in _THRESHOLDS]
        scores = self.value(np.stack(totals))
        ranks = range(len(_THRESHOLDS))
        best = max(ranks, key=lambda n: (scores[n], -abs(_THRESHOLDS[n] - 0.5)))
        return {THRESHOLD: float(_THRESHOLDS[best])}

    def rules(self, train: Sequence[Text], test: Sequence[Text]) -> Rules:
        """Give every text the commonest set of labels, or so many of the commonest labels that
        micro F1 is the highest on the training split."""
        info = self.info
        gold_NC = _indicators([example.target for example in train], info)
        order_C = np.argsort(-gold_NC.sum(axis=0), kind="stable")
        right_C = gold_NC.sum(axis=0)[order_C].cumsum()  # if each text gets the first 1, 2, ...
        f1_C = 2 * right_C / (len(train) * np.arange(1, len(right_C) + 1) + gold_NC.sum())
        rules = {
            "majority": kinds.commonest(example.target for example in train),
            "most_frequent": [info.labels[place] for place in order_C[: f1_C.argmax() + 1]],
        }
        return {name: [{"labels": labels}] * len(test) for name, labels in rules.items()}


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

    def build_head(self, stand: kinds.Stand) -> TaskHead:
        from rungwise.tasks.kinds.heads import CrfHead, TokenHead

        head = CrfHead if stand.crf else TokenHead
        return head(stand.width, max(1, len(self.info.labels)), stand.dropout)

    def split_logits(self, logits: Tensor, items: Sequence[Item]) -> Sequence[Tensor]:
        return logits.split([len(item.places) for item in items])

    def metric_names(self) -> Sequence[str]:
        return tuple(self.metrics) if marks_spans(self.info.labels) else ("accuracy",)

    def parse(self, record: kinds.Record) -> Tagged:
        words = record.values.get("words")
        if not isinstance(words, list | tuple):
            words = record.text("words" if "words" in record.values else "text").split()
        return Tagged(record.where, record.texts("words", words))

    def encode(self, examples: Sequence[Tagged], tokenizer: Tokenizer, frame: Frame) -> list[Item]:
        """Encode sentences as items that together hold every word once, in order. A sentence longer
        than a row is cut between words, as late as possible; a word longer than a row loses its
        end. A word without tokens, such as one of control characters, becomes the unknown token.
        Raises DataError for tags that the task does not have."""
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

    def decisions(self, row: Mapping[str, Any]) -> list[kinds.Decision]:
        words = zip(row["gold"], row["prediction"], row["probabilities"], strict=True)
        return [kinds.Decision(gold, tag, p[self.info.labels.index(tag)]) for gold, tag, p in words]

    def class_items(self, answer: Any) -> set[tuple[Any, ...]] | None:
        return {*find_spans(answer)} if marks_spans(self.info.labels) else None

    def answer_text(self, row: Mapping[str, Any], answer: Any) -> str:
        """Return the words with their tags, O left out."""
        pairs = zip(row["words"], answer, strict=True)
        return " ".join(f"{word}/{tag}" for word, tag in pairs if tag != "O") or "nothing"

    def rivals(self) -> Sequence[Rival]:
        labels = len(self.info.labels)
        return (rivals.tag_rival(lambda example: self._targets(example) or (), labels),)

    def rules(self, train: Sequence[Tagged], test: Sequence[Tagged]) -> Rules:
        tag_counts: dict[str, Counter[str]] = {}
        for example in train:
            for word, tag in zip(example.words, example.tags or (), strict=True):
                tag_counts.setdefault(word, Counter())[tag] += 1
        overall = kinds.commonest(tag for example in train for tag in example.tags or ())
        best = {word: kinds.commonest(counts) for word, counts in tag_counts.items()}
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
