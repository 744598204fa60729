"""Baselines: the scores of simple rules that read little or none of the input.

    majority       the commonest label, set of labels, tag, target, or position of the right option
                   in the training split
    chance         the expected accuracy of a random guess (classification and choice)
    no_label       no text has a label
    most_frequent  the commonest labels of the training split, as many as maximise micro F1 there
    every_label    every text has all labels
    mean           the mean of the training scores
    word_majority  each word's commonest tag in the training split; the overall one for new words
    no_answer      no question has an answer
    first_sentence the first sentence of the context
    first_words    as many first words of the context as the median answer has
    longest        the option with the most characters
    copy           the unchanged source

A model has learned something if it beats them (Gururangan et al. 2018, arXiv:1803.02324, show how
much half of the input reveals).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rungwise.tasks.kinds.examples import ChoiceExample, Kind, Question, Tagged, TaskInfo, Text
from rungwise.tasks.kinds.pieces import WORD
from rungwise.tasks.scoring.metrics import indicators
from rungwise.tasks.scoring.scores import score

Rules = dict[str, list[dict[str, Any]]]  # the predictions of each rule
_SENTENCE = re.compile(r".*?(?:[.!?](?=\s)|[。！？]|$)", re.DOTALL)  # noqa: RUF001


def baselines(
    info: TaskInfo, train: Sequence[Any], test: Sequence[Any]
) -> dict[str, dict[str, float]]:
    """Score each rule on `test`; `train`, on which the rules are fitted, is the whole training
    split, whatever label budget a model gets.

    Raises DataError for an example of `test` without a target.
    """
    by_rule = {
        name: score(predictions, test, info)
        for name, predictions in _RULES[info.kind](info, train, test).items()
    }
    if info.kind == "classification":
        by_rule["chance"] = {"accuracy": 1 / len(info.labels)}
    if info.kind == "choice":
        by_rule["chance"] = {"accuracy": float(np.mean([1 / len(e.options) for e in test]))}
    return by_rule


def _classification(info: TaskInfo, train: Sequence[Text], test: Sequence[Text]) -> Rules:
    label = _commonest(example.target for example in train)
    return {"majority": [{"label": label}] * len(test)}


def _multilabel(info: TaskInfo, train: Sequence[Text], test: Sequence[Text]) -> Rules:
    gold_NC = indicators([example.target for example in train], info)
    order_C = np.argsort(-gold_NC.sum(axis=0), kind="stable")
    right_C = gold_NC.sum(axis=0)[order_C].cumsum()  # if each text gets the first 1, 2, ... labels
    f1_C = 2 * right_C / (len(train) * np.arange(1, len(right_C) + 1) + gold_NC.sum())
    rules = {
        "no_label": (),
        "majority": _commonest(example.target for example in train),
        "most_frequent": [info.labels[place] for place in order_C[: f1_C.argmax() + 1]],
        "every_label": info.labels,
    }
    return {name: [{"labels": said}] * len(test) for name, said in rules.items()}


def _regression(info: TaskInfo, train: Sequence[Text], test: Sequence[Text]) -> Rules:
    mean = float(np.mean([example.number for example in train]))
    return {"mean": [{"score": mean}] * len(test)}


def _tagging(info: TaskInfo, train: Sequence[Tagged], test: Sequence[Tagged]) -> Rules:
    tags_of: dict[str, Counter[str]] = {}
    for example in train:
        for word, tag in zip(example.words, example.tags or (), strict=True):
            tags_of.setdefault(word, Counter())[tag] += 1
    commonest = _commonest(tag for example in train for tag in example.tags or ())
    best = {word: _commonest(counts) for word, counts in tags_of.items()}
    return {
        "majority": [{"tags": [commonest] * len(example.words)} for example in test],
        "word_majority": [
            {"tags": [best.get(word, commonest) for word in example.words]} for example in test
        ],
    }


def _span(info: TaskInfo, train: Sequence[Question], test: Sequence[Question]) -> Rules:
    lengths = [len(WORD.findall(e.answers[0].text)) for e in train if e.answers]
    words = round(float(np.median(lengths))) if lengths else 1
    return {
        "no_answer": [{"text": ""}] * len(test),
        "first_sentence": [{"text": _first_sentence(example.context)} for example in test],
        "first_words": [{"text": _first_words(example.context, words)} for example in test],
    }


def _choice(info: TaskInfo, train: Sequence[ChoiceExample], test: Sequence[ChoiceExample]) -> Rules:
    option = _commonest(example.target for example in train)
    return {
        "majority": [{"option": option}] * len(test),
        "longest": [
            {"option": int(np.argmax([len(option) for option in example.options]))}
            for example in test
        ],
    }


def _generation(info: TaskInfo, train: Sequence[Text], test: Sequence[Text]) -> Rules:
    target = _commonest(example.target for example in train)
    return {
        "majority": [{"text": target}] * len(test),
        "copy": [{"text": example.text} for example in test],
    }


def _first_sentence(context: str) -> str:
    match = _SENTENCE.match(context.lstrip())
    return match[0] if match else ""


def _first_words(context: str, words: int) -> str:
    matches = list(WORD.finditer(context))[:words]
    return context[matches[0].start() : matches[-1].end()] if matches else ""


def _commonest(values: Iterable[Any] | Counter[str]) -> Any:
    """Return the most frequent value; the first in sorted order on a tie."""
    counts = values if isinstance(values, Counter) else Counter(values)
    return min(counts, key=lambda value: (-counts[value], value))


_RULES: Mapping[Kind, Callable[[TaskInfo, Any, Any], Rules]] = {
    "classification": _classification,
    "multilabel": _multilabel,
    "regression": _regression,
    "tagging": _tagging,
    "span": _span,
    "choice": _choice,
    "generation": _generation,
}
