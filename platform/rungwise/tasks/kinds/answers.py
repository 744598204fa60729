"""Kinds whose answer is a place in a context, as in SQuAD, one of several options, or a text that
is written.

    start  question          between  tokens of the context in this window  end
    start  context question  between  option                                end
    start  source            between  target                                end

Windows over a context follow google-research/bert, run_squad.py, but a question takes at most half
of the row, and a window begins at most half a window after the previous one. The score of a span is
the sum of its start and end logits; the best over all windows wins. No answer, with the score of
the row's first token, the lowest over the windows, wins by more than a threshold chosen on the
validation split (Devlin et al. 2019, section 4.3).

Options have a row each, and a softmax over their scores. A row that is too long first loses the
front of the context, then of the question, then the end of the option. The longest option decides,
so that all options are judged by the same context.

One Transformer reads a source and writes the target (Khandelwal et al. 2019, arXiv:1905.08836):
only the tokens of the target, and the end after it, have a loss. Each text has its own room in a
row, so that a source is cut in the same way whether or not its target is known."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import scipy  # its parts are imported when they are used
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rungwise.core.errors import DataError
from rungwise.tasks.kinds import kind as kinds
from rungwise.tasks.kinds.examples import Answer, ChoiceExample, Question, TaskInfo, Text
from rungwise.tasks.kinds.items import Frame, Item, Row, locate, token_ids, windows
from rungwise.tasks.kinds.kind import Calibration, Outputs, Prediction, Rules, TaskKind, TextKind
from rungwise.tasks.scoring import metrics
from rungwise.tasks.scoring.metrics import Numbers, Predictions, TaskMetric, mean, means, ratio
from rungwise.tokenizer import CLEAN_UP

if TYPE_CHECKING:
    from torch import Tensor

    from rungwise.tasks.kinds.heads import TaskHead
    from rungwise.tasks.kinds.kind import LossSum

NO_ANSWER = (0, 0)  # target: start and end at the first token of the row
THRESHOLD = "null_threshold"
_MOST_QUESTION_TOKENS = 64
_NO_TOKEN = 1e9  # lead of no answer if the context has no token
_SENTENCE = re.compile(r".*?(?:[.!?](?=\s)|[。！？]|$)", re.DOTALL)  # noqa: RUF001


def _answer_scores(predictions: Predictions, examples: Sequence[Question]) -> Numbers:
    """Exact match and F1 of each answer, (N, 2)."""
    pairs = zip(predictions, examples, strict=True)
    scores = [metrics.score_answer(p["text"], example) for p, example in pairs]
    return np.array(scores, np.float64).reshape(-1, 2)


def _count(predictions: Predictions, examples: Sequence[Question], info: TaskInfo) -> Numbers:
    """Exact match and F1 of each answer, and 1. (N, 3)."""
    return np.column_stack([_answer_scores(predictions, examples), np.ones(len(examples))])


@dataclass
class _Best:
    """The best span of an example over its windows, and the lowest score of no answer."""

    score: float = -np.inf
    start: int = 0
    end: int = 0
    no_answer: float = np.inf

    def add(self, logits: NDArray[np.float64], item: Item, max_answer_tokens: int) -> None:
        """Take the logits (T, 2) of a window into account."""
        self.no_answer = min(self.no_answer, float(logits[0].sum()))
        count = len(item.places)
        visible = np.array([start < end for start, end in item.places], bool)
        if not visible.any():
            return
        second = item.rows[0].second
        starts, ends = np.where(visible[:, None], logits[second : second + count], -np.inf).T
        longest = min(max_answer_tokens, count)
        # scores[s, l]: the span of tokens s to s + l.
        padded = np.concatenate([ends, np.full(longest - 1, -np.inf)])
        scores = starts[:, None] + np.lib.stride_tricks.sliding_window_view(padded, longest)
        first, more = divmod(int(scores.argmax()), longest)
        if scores[first, more] > self.score:
            self.score = float(scores[first, more])
            self.start, self.end = item.places[first][0], item.places[first + more][1]


class Span(TaskKind):
    """Predicts {"text", "start", "end", "no_answer_score"}. `text` is exactly `context[start:end]`,
    empty for no answer; without a threshold every context with a token has one. `no_answer_score`
    is the lead of no answer over the best span."""

    name = "span"
    answer = "text"
    words = "the place of the answer to a question in a context"
    columns = ("question", "context")
    metrics: ClassVar[Mapping[str, TaskMetric]] = {
        "f1": TaskMetric(_count, lambda n: ratio(n[..., 1], n[..., 2])),
        "exact_match": TaskMetric(_count, lambda n: ratio(n[..., 0], n[..., 2])),
    }

    def build_head(self, stand: kinds.Stand) -> TaskHead:
        from rungwise.tasks.kinds.heads import SpanHead

        return SpanHead(stand.width)

    @staticmethod
    def loss_sums(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> LossSum:
        """Return the sum of the means of the cross entropies of start and end."""
        from torch.nn import functional

        # (B, T, 2) -> (B, 2, T): two classifications over T positions.
        each_X = functional.cross_entropy(
            logits.transpose(1, 2).flatten(0, 1), targets.flatten(), reduction="none"
        )
        return each_X.sum() / 2, len(targets)

    def split_logits(self, logits: Tensor, items: Sequence[Item]) -> list[Tensor]:
        return [row[: len(item.rows[0].ids)] for row, item in zip(logits, items, strict=True)]

    def example_score(self, row: Mapping[str, Any]) -> float:
        answers = tuple(Answer(text, 0) for text in row["gold"])
        question = Question("", "", row["question"], row["context"], answers)
        return metrics.score_answer(row["prediction"], question)[1]

    def answer_text(self, row: Mapping[str, Any], answer: Any) -> str:
        answers = [answer] if isinstance(answer, str) else answer
        return " | ".join(dict.fromkeys(answers)) or "no answer"

    def parse(self, record: kinds.Record) -> Question:
        id_ = str(record.values.get("id") or record.where)
        return Question(record.where, id_, record.text("question"), record.text("context"))

    def encode(
        self, examples: Sequence[Question], tokenizer: Tokenizer, frame: Frame
    ) -> list[Item]:
        """Encode each window as an item; an empty context has one. Questions are cut at their end.
        The target is the first answer if the window holds all of its tokens, else NO_ANSWER."""
        contexts = list(dict.fromkeys(example.context for example in examples))
        located = dict(zip(contexts, locate(tokenizer, contexts), strict=True))
        questions = token_ids(tokenizer, [example.question for example in examples])
        items = []
        for index, (example, ids) in enumerate(zip(examples, questions, strict=True)):
            text = located[example.context]
            question = ids[: min(_MOST_QUESTION_TOKENS, (frame.sequence_length - 3) // 2)]
            answer = None
            if example.answers:
                first = example.answers[0]
                answer = text.covering(first.start, first.start + len(first.text))
            room = frame.sequence_length - 3 - len(question)
            for begin, end in windows(len(text.ids), room, self.reading.stride):
                row = frame.two(question, text.ids[begin:end])
                target = None if example.answers is None else NO_ANSWER
                if answer is not None and begin <= answer[0] and answer[1] < end:
                    offset = row.second - begin
                    target = (answer[0] + offset, answer[1] + offset)
                places = tuple(zip(text.starts[begin:end], text.ends[begin:end], strict=True))
                items.append(Item((row,), index, target, places, len(question) < len(ids)))
        return items

    def decode(self, outputs: Outputs, calibration: Calibration) -> list[Prediction]:
        best = [_Best() for _ in outputs.examples]
        for array, item in zip(outputs.arrays, outputs.items, strict=True):
            logits = np.asarray(array, np.float64)
            best[item.example].add(logits, item, self.reading.max_answer_tokens)
        threshold = calibration.get(THRESHOLD, np.inf)
        predictions = []
        for example, span in zip(outputs.examples, best, strict=True):
            lead = span.no_answer - span.score if span.end else _NO_TOKEN
            start, end = (0, 0) if lead > threshold else (span.start, span.end)
            text = example.context[start:end]
            predictions.append(
                {"text": text, "start": start, "end": end, "no_answer_score": float(lead)}
            )
        return predictions

    def calibrate(self, outputs: Outputs) -> dict[str, float]:
        """Choose the threshold with the best metric of the task, exact match or else F1, on these
        examples: the lowest of equally good ones; {} if all examples have answers."""
        examples = outputs.examples
        if all(example.answers for example in examples):
            return {}
        answered = self.decode(outputs, {})
        column = 0 if self.info.metric == "exact_match" else 1
        if_answered = _answer_scores(answered, examples)[:, column]
        if_not = _answer_scores([{"text": ""}] * len(examples), examples)[:, column]
        leads = np.array([prediction["no_answer_score"] for prediction in answered])
        order = np.argsort(leads, kind="stable")
        # Gain over answering none if the first k in this order are answered, for k = 0 to all.
        totals = np.concatenate([[0.0], np.cumsum((if_answered - if_not)[order])])
        ranked = leads[order]
        # A threshold cannot separate examples of equal lead.
        parts = np.concatenate([[True], ranked[1:] > ranked[:-1], [True]])
        k = int(np.where(parts, totals, -np.inf).argmax())
        return {THRESHOLD: float(ranked[k - 1] if k else ranked[0] - 1.0)}

    def rules(self, train: Sequence[Question], test: Sequence[Question]) -> Rules:
        return {
            "no_answer": [{"text": ""}] * len(test),
            "first_sentence": [
                {"text": next(_SENTENCE.finditer(example.context.lstrip()))[0]} for example in test
            ],
        }


def _pairs(predictions: Predictions, examples: Sequence[Text]) -> list[tuple[str, str]]:
    # A model writes clean text only, so the target is cleaned up too.
    clean = CLEAN_UP.normalize_str
    return [
        (clean(p["text"]), clean(str(e.target))) for p, e in zip(predictions, examples, strict=True)
    ]


def _count_runs(predictions: Predictions, examples: Any, info: TaskInfo) -> Numbers:
    return np.array([metrics.counts(*pair) for pair in _pairs(predictions, examples)], np.float64)


def _count_exact(predictions: Predictions, examples: Any, info: TaskInfo) -> Numbers:
    return means([metrics.is_same_text(*pair) for pair in _pairs(predictions, examples)])


class Generation(TextKind):
    """Predicts {"text"}."""

    name = "generation"
    answer = "text"
    writes = target_per_place = True
    words = "a text to write for another text"
    metrics: ClassVar[Mapping[str, TaskMetric]] = {
        "chrf": TaskMetric(_count_runs, metrics.value),
        "exact_match": TaskMetric(_count_exact, mean),
    }

    def build_head(self, stand: kinds.Stand) -> TaskHead:
        from rungwise.tasks.kinds.heads import TokenHead

        return TokenHead(stand.width, stand.num_tokens, stand.dropout)

    def read_logits(
        self, logits: Tensor, items: Sequence[Item], compute: Callable[[Sequence[Item]], Tensor]
    ) -> list[NDArray[Any]]:
        """Write the likeliest ids after each source, up to the end mark (greedy decoding). Each
        step reads the whole row again; texts are short enough to need no cache."""
        texts: list[list[int]] = [[] for _ in items]
        ends = [item.rows[0].ids[-1] for item in items]
        unended = list(range(len(items)))
        for _ in range(self._longest_target(self.reading.sequence_length)):
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
        return float(metrics.is_same_text(row["prediction"], row["gold"]))

    def encode(self, examples: Sequence[Text], tokenizer: Tokenizer, frame: Frame) -> list[Item]:
        """Encode each example as an item of one row. Both texts are cut at their ends; a cut target
        does not train the end."""
        longest = self._longest_target(frame.sequence_length)
        room = frame.sequence_length - 3 - longest
        sources = token_ids(tokenizer, [example.text for example in examples])
        targets = token_ids(tokenizer, [str(example.target or "") for example in examples])
        items = []
        for index, example in enumerate(examples):
            source, target = sources[index], targets[index]
            row = frame.two(source[:room], target[:longest])
            end = len(row.ids) - (len(target) > longest)
            item = Item((row,), index, cut=len(source) > room or len(target) > longest)
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
        target = kinds.commonest(example.target for example in train)
        return {
            "majority": [{"text": target}] * len(test),
            "copy": [{"text": example.text} for example in test],
        }

    def _longest_target(self, sequence_length: int) -> int:
        """The most tokens of a target, without the end: at most half of a row."""
        return min(self.reading.max_answer_tokens, (sequence_length - 3) // 2)


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

    def parse(self, record: kinds.Record) -> ChoiceExample:
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

    def build_head(self, stand: kinds.Stand) -> TaskHead:
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
        option = kinds.commonest(example.target for example in train)
        lengths = [[len(option) for option in example.options] for example in test]
        return {
            "majority": [{"option": option}] * len(test),
            "longest": [{"option": int(np.argmax(each))} for each in lengths],
        }


def _options(record: kinds.Record) -> tuple[str, ...]:
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
